# shellcheck shell=sh
# client.sh - a guest that mounts an export by NFSv3 over RDMA and tries it out. busybox sh runs it
# in the guest, after tree.sh and a line each for
#   SERVER NFS_PORT EXPORT     the export to mount
#   MOUNT_OPTIONS              more options, e.g. mountproto=tcp,mountport=20048
#   FIO                        1: fio's verify jobs too (needs the part fio), the smallest of
#                              FIO_MIB
#   TREE SMALL NAMES           the tree to copy, the tree to copy while the server is away, and the
#                              number of names in the long directory
#   DEVICES                    1: the server makes devices
#   ORDER_PORT                 the port where the host says that the script may continue
# The parts that hold the trees must be in the guest.
#
# Each check ends in a line `@@check NAME ok UPTIME@@` or `@@check NAME FAILED@@`. At `@@mark
# quiet@@` the guest has nothing mounted, and the script waits for a connection to ORDER_PORT.
# `@@mark cut@@` asks the host to restart the server. `@@mark sums@@` ... `@@mark summed@@` enclose
# what the export should hold in the end.

failed=0
check() { # NAME COMMAND...
    checked=$1
    shift
    if "$@"; then
        echo "@@check $checked ok $(cut -d' ' -f1 /proc/uptime)@@"
    else
        echo "@@check $checked FAILED@@"
        failed=$((failed + 1))
    fi
}
is_mounted() { grep -q " /mnt nfs .*proto=rdma" /proc/mounts; }
attach() {
    is_mounted || mount.nfs "$SERVER:$EXPORT" /mnt \
        -o "rdma,port=$NFS_PORT,vers=3,nolock${MOUNT_OPTIONS:+,$MOUNT_OPTIONS}"
}
detach() { umount /mnt; }
# Unmount to drop the cache, so that the following reads come over the wire.
again() { detach && attach; }
# xprt N - prints the Nth figure of the transport in /proc/self/mountstats: 3 connections made; 6
# calls sent; 7 replies; 8 replies to no call; 11 Read chunks, 12 Write chunks, 13 Reply chunks; 20
# invalid replies
xprt() { awk -v n="$1" '$1 == "xprt:" && $2 == "rdma" { print $(n + 2) }' /proc/self/mountstats; }
mountstats() { grep -A 12 ' on /mnt ' /proc/self/mountstats | grep -aE 'opts:|caps:|xprt:'; }

equal_trees() { diff -r "$1" "$2"; }
copy_in() { cp -a "$1" "/mnt/$2" && again && equal_trees "$1" "/mnt/$2"; }
copy_out() { cp -a "/mnt/$1" /tmp/out && equal_trees "$2" /tmp/out && rm -rf /tmp/out; }

names() (
    d=/mnt/names
    mkdir $d && cd $d || return 1
    echo one >a && mv a b && [ ! -e a ] && [ "$(cat b)" = one ] || return 1
    echo two >c && mv c b && [ "$(cat b)" = two ] || return 1
    ln b hard && [ "$(stat -c %h b)" = 2 ] && ln -s b soft && [ "$(readlink soft)" = b ] || return 1
    ln -s "$(head -c 1000 /dev/zero | tr '\0' x)" long && [ "$(readlink long | wc -c)" = 1001 ] ||
        return 1
    rm b && [ "$(cat hard)" = two ] && [ ! -e soft ] && [ -L soft ] || return 1
    echo three >>hard && [ "$(cat hard)" = "two
three" ] || return 1
    truncate -s 100000 hard && [ "$(stat -c %s hard)" = 100000 ] && truncate -s 3 hard &&
        [ "$(cat hard)" = two ] || return 1
    chmod 640 hard && [ "$(stat -c %a hard)" = 640 ] && chown 7:8 hard &&
        [ "$(stat -c %u:%g hard)" = 7:8 ] || return 1
    touch -d '2001-02-03 04:05:06' hard && [ "$(stat -c %Y hard)" = 981173106 ] || return 1
    mkfifo pipe && [ -p pipe ] || return 1
    if [ "$DEVICES" = 1 ]; then
        mknod zero c 1 5 && [ -c zero ] || return 1
    else
        ! mknod zero c 1 5 2>/dev/null && [ ! -e zero ] || return 1
    fi
    # a file that is removed while it is open, which the client renames
    exec 4<hard && rm hard && [ "$(cat <&4)" = two ] && exec 4<&- && [ ! -e hard ] || return 1
    mkdir sub && echo x >sub/x && ! rmdir sub 2>/dev/null && rm -r sub && [ ! -e sub ] || return 1
    cd / && rm -r $d && [ ! -e $d ]
)
# A directory whose list takes many READDIRs, or one long reply.
directory() {
    mkdir /mnt/many && i=0
    while [ $i -lt "$NAMES" ]; do
        : >"/mnt/many/a-name-that-is-long-enough-to-make-the-list-long-$i" || return 1
        i=$((i + 1))
    done
    again && [ "$(ls /mnt/many | sort -u | wc -l)" = "$NAMES" ] && rm -r /mnt/many
}
space() { [ "$(df -k /mnt | awk 'NR == 2 { print ($2 > 0) }')" = 1 ]; }

# Prints fio's rates over all its threads: `READ 12.3MiB/s WRITE 4567KiB/s`; the reads of the
# verification are included.
rates() { sed -n 's/^ *\(READ\|WRITE\): bw=\([^ ]*\) .*/\1 \2/p' /tmp/fio.out | tr '\n' ' '; }
# Uses O_DIRECT, so that the verified data has crossed the wire twice.
verify_job() { # NAME BS RW MIB [OPTION...]
    name=$1 bs=$2 rw=$3 mib=$4
    shift 4
    fio --name="$name" --directory=/mnt/fio --thread --ioengine=psync --direct=1 --size="${mib}m" \
        --bs="$bs" --rw="$rw" \
        --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=1 --eta=never \
        --output=/tmp/fio.out "$@"
    status=$?
    grep -aE 'err=|verify:|IO error|read:|write:|READ:|WRITE:' /tmp/fio.out
    echo "@@rate $checked $(rates)@@"
    return $status
}
# Random writes that fio reads again, then mixed random reads and writes, by one thread and by four
# with a file each. These jobs do not use blocks of several sizes: with those, fio 3.33 finds data
# that it has not written, on a local disk as well.
fio_jobs() {
    mkdir -p /mnt/fio
    more=$((8 * FIO_MIB))
    check fio-4k verify_job 4k 4k randwrite "$FIO_MIB"
    check fio-64k verify_job 64k 64k randwrite "$more"
    check fio-1m verify_job 1m 1m randwrite "$more"
    check fio-sizes verify_job sizes 4k-256k randwrite "$more"
    check fio-mixed verify_job mixed 16k randrw "$more"
    check fio-threads verify_job threads 64k randrw "$more" --numjobs=4 --group_reporting
    rm -rf /mnt/fio
}

# Copies while the server goes away and comes back, until the transport has reconnected once. No
# copy fails, and the last one, which met the interruption, is whole. The copies overwrite files and
# never create or remove one: in version 3, a server that has done such an operation and lost the
# reply with its connection may answer the repeated call with an error.
cut_off() {
    before=$(xprt 3)
    round=0
    cp -a "$SMALL" /mnt/cut || return 1
    mark cut
    while [ "$(xprt 3)" = "$before" ]; do
        round=$((round + 1))
        [ $round -le 500 ] || return 1
        cp -a "$SMALL/." /mnt/cut/ || return 1
    done
    echo "connections made: $before before, $(xprt 3) after, in round $round"
    again && equal_trees "$SMALL" /mnt/cut
}

# Checks the counters of this mount's transport: reads came in chunks, and no reply was wrong.
counted() {
    [ "$(xprt 12)" -gt 0 ] || return 1
    for field in 8 20; do [ "$(xprt $field)" = 0 ] || return 1; done
}

check mount attach
if is_mounted; then
    mark mounted
    check space space
    check names names
    corners /tmp/corners
    check corners-in copy_in /tmp/corners corners
    check corners-out copy_out corners /tmp/corners
    check directory directory
    check tree-in copy_in "$TREE" tree
    check tree-out copy_out tree "$TREE"
    [ "$FIO" != 1 ] || fio_jobs
    mountstats
    check counted counted
    check umount detach
    mark quiet
    nc -l -p "$ORDER_PORT" </dev/null >/dev/null
    check mount-again attach
    check cut cut_off
    mark sums
    sums /mnt
    mark summed
    mountstats
    check umount-again detach
fi
! dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace' || failed=$((failed + 1))
[ $failed = 0 ]
