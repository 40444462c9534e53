# shellcheck shell=bash disable=SC2154,SC2034 # the sourcing script sets the variables not set here
# rates.sh - fio on mounts of Heddle's NFS service and of Linux's knfsd, in turns. interop-nfs
# sources it and provides functions for it.
#
#   server: knfsd, siw, eth0 10.88.0.1 --tap1--[br0]--tap0-- client: NFS, siw, 10.88.0.2
#           heddle, DPDK,    10.88.0.4 --tap2--[br0]
#
# Both servers run in one guest, with a virtio NIC each and without offloads, and export memory
# (tmpfs). Each guest has one processor that QEMU emulates. So the rates are those of an emulator:
# only their ratios say something. Waiting servers cost little: knfsd sleeps, and Heddle naps.

readonly RATES_IP=10.88.0.4 RATES_MOUNT_PORT=20050 RATES_NIC=0000:00:10.0

rates_run() {
    local console=$OUT/rates-$variant-client.console.log status=0 crc=off host=$OUT/host
    [[ $variant != crc ]] || crc=on
    say "siw variant $variant: boot"
    mkdir -p "$host"
    cp "$HEDDLE" "$host/heddle"
    inside ip tuntap add dev tap2 mode tap
    inside ip link set tap2 master br0 up
    {
        printf '%s=%s\n' EXPORT_MIB 128 NFS_PORT "$NFS_PORT" MOUNT_PORT "$MOUNT_PORT" \
            ORDER_PORT "$ORDER_PORT" HEDDLE_IP "$RATES_IP" HEDDLE_MOUNT_PORT "$RATES_MOUNT_PORT" \
            HEDDLE_CRC "$crc" NIC "$RATES_NIC"
        cat "$ROOT"/scripts/nfs-guest/{tree,rates-server,server}.sh
    } >"$OUT/rates-$variant-server.sh"
    KNFSD_CONSOLE=$OUT/rates-$variant-server.console.log
    start knfsd "$OUT/rates-$variant-server.log" "$ROOT/scripts/siw-guest/run" --tap tap1 \
        --ip "$SERVER_IP/24" --variant "$variant" --with nfs --with nic --memory 1536 \
        --name server --share "$host" --append hugepages=160 --qemu \
        "-netdev tap,id=heddle,ifname=tap2,script=no,downscript=no,vhost=off,vnet_hdr=off" --qemu \
        "-device virtio-net-pci,netdev=heddle,addr=0x10,romfile=,disable-legacy=on" \
        --log "$KNFSD_CONSOLE" --timeout 4500 "$OUT/rates-$variant-server.sh"
    if ! wait_line "$KNFSD_CONSOLE" '@@mark serving@@' 600 "$knfsd"; then
        fail serve "$KNFSD_CONSOLE"
        return
    fi
    {
        printf "%s='%s'\n" KNFSD "$SERVER_IP:/export" \
            KNFSD_MOUNT "mountproto=tcp,mountport=$MOUNT_PORT" HEDDLE "$RATES_IP:/heddle" \
            HEDDLE_MOUNT "mountproto=tcp,mountport=$RATES_MOUNT_PORT,mounthost=$SERVER_IP" \
            NFS_PORT "$NFS_PORT" ROUNDS "$rounds" SECONDS_EACH 4 FILE_MIB 64 JOBS "$jobs"
        cat "$ROOT/scripts/nfs-guest/rates-client.sh"
    } >"$OUT/rates-$variant-client.sh"
    start client "$OUT/rates-$variant-client.log" "$ROOT/scripts/siw-guest/run" --tap tap0 \
        --ip "$CLIENT_IP/24" --variant "$variant" --with nfs --with fio --memory 1024 \
        --name client --log "$console" --timeout 4200 "$OUT/rates-$variant-client.sh"
    wait "$client" || status=$?
    ((status == 0)) || { fail rates "$console"; return; }
    tell "$SERVER_IP" end && wait "$knfsd" || fail serve "ended with status $?"
    rates_table "$console"
    inside ip link del tap2
}

# rates_table CONSOLE - prints the median of each job, and of the ratios within the rounds.
rates_table() {
    tr -d '\r' <"$1" | sed -n 's/^@@rate \(.*\)@@$/\1/p' | python3 -c '
import statistics, sys
rates = {}
for line in sys.stdin:
    number, server, job, rate = line.split()
    rates.setdefault(job, {}).setdefault(server, {})[number] = float(rate)
variant = sys.argv[1]
def middle(values, digits):
    values = sorted(values)
    return "%.*f (%.*f to %.*f)" % (
        digits, statistics.median(values), digits, values[0], digits, values[-1])
for job, by in rates.items():
    heddle, knfsd = by["heddle"], by["knfsd"]
    assert heddle.keys() == knfsd.keys() and min(knfsd.values()) > 0, job
    ratios = [heddle[n] / knfsd[n] for n in heddle]
    print("%-6s %-7s heddle %s MiB/s, knfsd %s MiB/s, ratio %s" % (
        variant, job, middle([r / 1024 for r in heddle.values()], 2),
        middle([r / 1024 for r in knfsd.values()], 2), middle(ratios, 2)))
assert rates, "nothing was measured"
' "$variant" || fail rates "$1"
}
