# shellcheck shell=bash disable=SC2154 # the sourcing script sets the variables not set here
# heddle-client.sh - `heddle nfs` against Linux's knfsd over RDMA. interop-nfs sources it and
# provides functions for it.
#
#   heddle, 10.88.0.3 --(net_af_packet)-- hd0 =veth= hd1 --[br0]-- tap1 -- guest, 10.88.0.1
#   MOUNT by TCP: 10.88.0.9

readonly HEDDLE_IP=10.88.0.3
declare -A CRC_OPTION=([fixed]=off [crc]=on)

# on_wire COMMAND [OPTION...] - runs `heddle nfs` on the wire of the guest.
on_wire() { inside "$HEDDLE" nfs "$@" "${WIRE[@]}"; }
remote() { echo "$SERVER_IP:$NFS_PORT:/export/$1"; }
# tried CHECK COMMAND... - passes if the command succeeds; its output is in OUT/VARIANT-CHECK.log.
tried() {
    local log=$OUT/$variant-$1.log
    if "${@:2}" >"$log" 2>&1; then
        ok "$1" "$(tail -n 1 "$log")"
    else
        fail "$1" "$(tail -n 1 "$log"); $log"
    fi
}
# refused CHECK TEXT COMMAND... - passes if the command ends with status 1 and prints TEXT.
refused() {
    local log=$OUT/$variant-$1.log status=0
    "${@:3}" >"$log" 2>&1 || status=$?
    if ((status == 1)) && grep -q "$2" "$log"; then
        ok "$1" "$(tail -n 1 "$log")"
    else
        fail "$1" "status $status; $log"
    fi
}
capture_server() { # CASE
    start capture "$OUT/$1.dumpcap.log" dumpcap -q -P -i tap1 -w "$OUT/$1.pcap"
    wait_line "$OUT/$1.dumpcap.log" '^File:' 10 "$capture"
}
file_sums() (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sort -k 2)

listed() {
    cmp <(on_wire ls "$(remote "$1")") \
        <(cd "$2" && find . -mindepth 1 -maxdepth 1 -printf '%P\n' | LC_ALL=C sort)
}
shown() { cmp <(on_wire cat "$(remote "$1")") "$2"; }
brought() { # copies from the server into a new directory
    on_wire cp -r --verify "$(remote "$1")" "$2" && diff -r "$3" "$2"
}
barred() { # copies on a terminal, which has a bar
    local command
    printf -v command '%q ' ip netns exec "$NS" "$HEDDLE" nfs cp "$(remote "$1")" "$2" "${WIRE[@]}"
    script -qec "$command" /dev/null </dev/null | tr '\r' '\n' | sed 's/\x1b\[[0-9]*[A-Z]//g' |
        grep -a '/1.00 MiB.*/1 files' && cmp "$2" "$3"
}
astray() { # copies into a directory with a link; must not write to the link's target
    mkdir -p "$2"
    ln -s "$2-astray" "$2/$3"
    on_wire cp -r "$(remote "$1")" "$(dirname "$2")"
}
brought_old() { # copies a file, by a client that does not try version 2 first
    cmp <(on_wire cat "$(remote "$1")" --rpc-version 1) "$2"
}
same_sums() { # compares with the guest's sums, without the other output of `sums`
    knfsd_order "$variant" sums || return 1
    cmp <(grep -E '^[0-9a-f]{64}  ' "$OUT/$variant-server.sums" | sort -k 2) <(file_sums "$1") &&
        echo "$(file_sums "$1" | wc -l) files are the same on both sides"
}
cut() { # LOCAL - stops knfsd during a copy, and starts it again
    local copy
    on_wire cp --verify "$1" "$(remote "$(basename "$1")")" &
    copy=$!
    sleep 1
    knfsd_order "$variant" restart || return 1
    wait "$copy" || return 1
    sleep 1
    connections=$(tshark -r "$OUT/$variant-cut.pcap" \
        -Y "tcp.dstport == $NFS_PORT && tcp.flags.syn == 1" 2>/dev/null | wc -l)
    echo "$connections connections"
    ((connections >= 2))
}

client_run() {
    local local=$OUT/$variant-files
    say "siw variant $variant: boot"
    WIRE=(--mount "$SERVER_IP:$MOUNT_PORT" --crc "${CRC_OPTION[$variant]}"
        --vdev net_af_packet0,iface=hd0
        --ip "$HEDDLE_IP/24")
    rm -rf "$local" "$OUT/$variant-"{back,links,bar}
    mkdir -p "$local"
    (. "$ROOT/scripts/nfs-guest/tree.sh" && corners "$local/corners") || die "no files to copy"
    cp -r "${SIW_GUEST:-$ROOT/.cache/siw-guest}$tree" "$local/tree"
    knfsd_start "$variant" "$variant" || { fail serve "the guest does not serve"; return; }
    capture_server "$variant"
    tried empty on_wire ls "$(remote '')"
    tried up on_wire cp -r --verify "$local/corners" "$(remote '')"
    tried up-tree on_wire cp -r --verify "$local/tree" "$(remote tree)"
    tried ls listed corners "$local/corners"
    tried ls-long on_wire ls -l "$(remote corners)"
    tried stat on_wire stat "$(remote corners/65537)"
    tried cat shown corners/1048577 "$local/corners/1048577"
    tried down brought corners "$OUT/$variant-back" "$local/corners"
    tried bar barred corners/1048577 "$OUT/$variant-bar" "$local/corners/1048577"
    refused link 'is a symbolic link here' astray corners "$OUT/$variant-links/corners" 4097
    [[ ! -e $OUT/$variant-links/corners-astray ]] ||
        fail link "$OUT/$variant-links/corners-astray was written"
    tried version-1 brought_old corners/4097 "$local/corners/4097"
    refused missing 'the name is not there' on_wire cat "$(remote nowhere)"
    refused export 'in no export' on_wire ls "$SERVER_IP:$NFS_PORT:/elsewhere"
    refused directory 'is a directory' on_wire cp "$(remote corners)" "$OUT"
    capture_end || fail capture "ended badly"
    capture_server "$variant-cut"
    head -c 67108864 /dev/urandom >"$local/long"
    tried cut cut "$local/long"
    capture_end || fail capture "ended badly"
    tried sums same_sums "$local"
    knfsd_end || fail server "ended with status $?"
    judged rpcrdma "$OUT/$variant.rpcrdma.log" "$ROOT/scripts/check-rpcrdma-pcap" \
        --port "$NFS_PORT" "$OUT/$variant.pcap"
    judged rpcrdma-cut "$OUT/$variant-cut.rpcrdma.log" "$ROOT/scripts/check-rpcrdma-pcap" \
        --port "$NFS_PORT" "$OUT/$variant-cut.pcap"
    rm -rf "$local" "$OUT/$variant-"{back,links,bar}
}
