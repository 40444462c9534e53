# shellcheck shell=sh
# server.sh - a guest that exports /export by knfsd over RDMA, and obeys orders over TCP. busybox sh
# runs it in the guest, after a line each for EXPORT_MIB, NFS_PORT, MOUNT_PORT and ORDER_PORT.
#
# An order is one line of one TCP connection to ORDER_PORT; the guest prints `@@mark done ORDER@@`
# on the console when it has carried out the order:
#   sums      prints what /export holds, see `sums` in tree.sh, between the marks `sums` and `done
#             sums`
#   restart   stops knfsd, which removes its listener and all connections, and starts it again
#   stop, go  the two halves of restart
#   stats     prints what knfsd has counted
#   end       powers the guest off

go() {
    rpc.nfsd --no-udp --no-nfs-version 4 --nfs-version 3 --rdma="$NFS_PORT" 4 &&
        wait_listen "$NFS_PORT"
}
stop() {
    rpc.nfsd 0
    while grep -q '^rdma' /proc/fs/nfsd/portlist; do usleep 50000; done
}
stats() {
    cat /proc/fs/nfsd/portlist /proc/net/rpc/nfsd
    for file in /proc/sys/sunrpc/svc_rdma/*; do echo "${file##*/} $(tr '\n' ' ' <"$file")"; done
}

mount -t nfsd nfsd /proc/fs/nfsd || exit 1
echo 1048576 >/proc/fs/nfsd/max_block_size # knfsd would choose less for its little memory
mount -t tmpfs -o "size=${EXPORT_MIB}m" export /export || exit 1
echo '/export *(rw,insecure,no_root_squash,no_subtree_check,fsid=1)' >/etc/exports
rpcbind && exportfs -ra && rpc.mountd -p "$MOUNT_PORT" --no-nfs-version 4 || exit 1
go || exit 1
mark serving
while :; do
    order=$(nc -l -p "$ORDER_PORT" </dev/null)
    case $order in
    sums) mark sums; sums /export ;;
    restart) stop && go || exit 1 ;;
    stop | go) "$order" || exit 1 ;;
    stats) mark stats; stats ;;
    end) break ;;
    *) mark unknown "$order"; continue ;;
    esac
    mark "done" "$order"
done
! dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace'
