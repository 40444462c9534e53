# shellcheck shell=bash disable=SC2154,SC2034 # the sourcing script sets the variables not set here
# guests.sh - guests with Linux's NFS over RDMA, as server and as client. Scripts source it after
# siw-guest/wire.sh; they set OUT, SERVER_IP, CLIENT_IP, NFS_PORT, MOUNT_PORT and ORDER_PORT, and
# give the namespace an address before.

# marked CONSOLE FROM TO - prints the lines between the last mark FROM and the next mark TO.
marked() {
    tr -d '\r' <"$1" | awk -v from="@@mark $2@@" -v to="@@mark $3@@" '
        $0 == from { text = ""; inside = 1; next }
        $0 == to { inside = 0 }
        inside { text = text $0 "\n" }
        END { printf "%s", text }'
}

# knfsd_start NAME VARIANT [MIB] - starts a guest that exports /export; returns when it does.
knfsd_start() {
    {
        printf '%s=%s\n' EXPORT_MIB "${3:-256}" NFS_PORT "$NFS_PORT" MOUNT_PORT "$MOUNT_PORT" \
            ORDER_PORT "$ORDER_PORT"
        cat "$ROOT/scripts/nfs-guest/tree.sh" "$ROOT/scripts/nfs-guest/server.sh"
    } >"$OUT/$1-server.sh"
    KNFSD_CONSOLE=$OUT/$1-server.console.log
    start knfsd "$OUT/$1-server.log" "$ROOT/scripts/siw-guest/run" --tap tap1 --ip "$SERVER_IP/24" \
        --variant "$2" \
        --with nfs --memory 768 --name server --log "$KNFSD_CONSOLE" --timeout 4500 \
        "$OUT/$1-server.sh"
    wait_line "$KNFSD_CONSOLE" '@@mark serving@@' 300 "$knfsd"
}
# tell IP [LINE] - sends a line to ORDER_PORT of a guest, and waits until the guest is ready for it.
tell() {
    local end=$((SECONDS + 60))
    until inside bash -c "exec 3<>/dev/tcp/$1/$ORDER_PORT && echo '${2:-}' >&3" 2>/dev/null; do
        ((SECONDS < end)) || { say "nobody at $1 takes orders"; return 1; }
        sleep 0.2
    done
}
# knfsd_order NAME ORDER - see server.sh; returns when the guest has carried it out. The output of
# `sums` goes to OUT/NAME-server.sums.
knfsd_order() {
    local had want
    had=$(grep -ac "@@mark done $2@@" "$KNFSD_CONSOLE") || true
    tell "$SERVER_IP" "$2" || return 1
    want=$((SECONDS + 300))
    until (($(grep -ac "@@mark done $2@@" "$KNFSD_CONSOLE" || true) > had)); do
        ((SECONDS < want)) && kill -0 "$knfsd" 2>/dev/null || return 1
        sleep 0.1
    done
    [[ $2 != sums ]] || marked "$KNFSD_CONSOLE" sums "done sums" >"$OUT/$1-server.sums"
}
knfsd_end() {
    tell "$SERVER_IP" end || return 1
    wait "$knfsd"
}

# client_start NAME VARIANT FIO - starts a guest that runs client.sh; `client` is its pid,
# OUT/NAME-client.console.log its console.
client_start() {
    local with=(--with nfs --with tree)
    [[ ${tree:-} != /linux ]] || with+=(--with linux)
    (($3 == 0)) || with+=(--with fio)
    {
        printf '%s=%s\n' SERVER "$SERVER_IP" NFS_PORT "$NFS_PORT" EXPORT "${export:-/export}" \
            MOUNT_OPTIONS \
            "mountproto=tcp,mountport=$MOUNT_PORT${mount_host:+,mounthost=$mount_host}" FIO "$3" \
            FIO_MIB "${fio:-2}" \
            TREE "${tree:-/tree}" SMALL "${small:-/tree}" NAMES "${names:-600}" DEVICES \
            "${devices:-1}" ORDER_PORT "$ORDER_PORT"
        cat "$ROOT"/scripts/nfs-guest/{tree,client}.sh
    } >"$OUT/$1-client.sh"
    start client "$OUT/$1-client.log" "$ROOT/scripts/siw-guest/run" --tap tap0 \
        --ip "$CLIENT_IP/24" --variant "$2" \
        "${with[@]}" --memory 1024 --name client --log "$OUT/$1-client.console.log" --timeout 4200 \
        "$OUT/$1-client.sh"
}
