# shellcheck shell=sh
# rates-client.sh - a guest that measures two exports by fio, in turns. busybox sh runs it in the
# guest, after a line each for
#   KNFSD KNFSD_MOUNT HEDDLE HEDDLE_MOUNT  the exports as mount.nfs takes them, and the options of
#                                          their MOUNT
#   NFS_PORT                               the port of both
#   ROUNDS SECONDS_EACH FILE_MIB           rounds, seconds of a job, and MiB of its file
# Prints `@@rate ROUND SERVER JOB KIB_PER_SECOND@@` for each job.

attach() { # SERVER
    case $1 in
    knfsd) at=$KNFSD options=$KNFSD_MOUNT ;;
    heddle) at=$HEDDLE options=$HEDDLE_MOUNT ;;
    esac
    mount.nfs "$at" /mnt -o "rdma,port=$NFS_PORT,vers=3,nolock,$options"
}
# O_DIRECT: each read and each write crosses the wire, and the client keeps nothing.
job() { # ROUND SERVER NAME RW BS
    fio --name="$3" --filename=/mnt/file --rw="$4" --bs="$5" --size="${FILE_MIB}m" --direct=1 \
        --ioengine=psync --thread --numjobs="$JOBS" --group_reporting --time_based \
        --runtime="$SECONDS_EACH" --ramp_time=1 --randseed="$1" --minimal --eta=never \
        --output=/tmp/fio.out || { cat /tmp/fio.out; return 1; }
    # Fields 7 and 48 of fio's terse form are the bandwidths of reads and of writes.
    echo "@@rate $1 $2 $3 $(awk -F';' '$1 == 3 { print $7 + $48; exit }' /tmp/fio.out)@@"
}
measure() { # ROUND SERVER
    attach "$2" || return 1
    # The first write of a file is to new memory of the server, so it is not counted.
    [ -e /mnt/file ] || dd if=/dev/zero of=/mnt/file bs=1M count="$FILE_MIB" 2>/dev/null || return 1
    job "$1" "$2" write write 64k || return 1
    job "$1" "$2" read read 64k || return 1
    job "$1" "$2" random randread 4k || return 1
    umount /mnt
}
round=0
while [ $round -lt "$ROUNDS" ]; do
    round=$((round + 1))
    # Each of the two is first in every other round.
    if [ $((round % 2)) = 1 ]; then order='heddle knfsd'; else order='knfsd heddle'; fi
    for server in $order; do measure $round "$server" || exit 1; done
done
! dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace'
