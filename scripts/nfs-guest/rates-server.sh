# shellcheck shell=sh
# rates-server.sh - makes the guest of server.sh serve memory by Heddle too. busybox sh runs it
# before server.sh, after a line each for
#   HEDDLE_IP HEDDLE_MOUNT_PORT  Heddle's address, and its port for MOUNT on the guest's own address
#   HEDDLE_CRC                   on or off
#   NIC                          the PCI address of Heddle's NIC
# The guest needs hugepages, the part `nic` and, in /host, Heddle.
#
# knfsd has eth0 with siw, and Heddle has another NIC of the same kind, which DPDK drives.

nic=/sys/bus/pci/devices/$NIC
echo uio_pci_generic >"$nic/driver_override"
[ ! -e "$nic/driver" ] || echo "$NIC" >"$nic/driver/unbind"
echo "$NIC" >/sys/bus/pci/drivers_probe
[ "$(basename "$(readlink "$nic/driver")")" = uio_pci_generic ] || exit 1

mkdir /heddle
mount -t tmpfs -o "size=${EXPORT_MIB}m" heddle /heddle || exit 1
/host/heddle serve --pci "$NIC" --ip "$HEDDLE_IP/24" --crc "$HEDDLE_CRC" --idle backoff \
    --memory 64 --socket /tmp/heddle.sock \
    --listen "$HEDDLE_IP:$NFS_PORT=nfs:/heddle,tcp=${IP%/*}:$HEDDLE_MOUNT_PORT" \
    >/tmp/heddle.log 2>&1 &
tries=0
until grep -q 'listening' /tmp/heddle.log; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || { cat /tmp/heddle.log; exit 1; }
    usleep 100000
done
cat /tmp/heddle.log
