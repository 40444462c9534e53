# shellcheck shell=bash disable=SC2154,SC2034 # the sourcing script sets the variables not set here
# cm.sh - functions that `interop-rxe` and `interop-gateway` share: guests that run cm-peer, and
# checks of what the guests and the wire have seen. The scripts source it after wire.sh; OUT is the
# folder for logs and captures.

FAILED=0
ok() { printf '%-24s ok    %s\n' "$1" "${2:-}"; }
wrong() { # CASE WHAT
    printf '%-24s WRONG %s\n' "$1" "$2"
    FAILED=$((FAILED + 1))
}
prefix_of() { if [[ $1 == *:* ]]; then echo 64; else echo 24; fi; }
guest_start() { # VARIABLE NAME IP TAP SCRIPT [VARIANT]
    start "$1" "$OUT/$2.guest.log" "$ROOT/scripts/siw-guest/run" --tap "$4" \
        --ip "$3/$(prefix_of "$3")" \
        --variant "${6:-rxe}" --name "$2" --log "$OUT/$2.console.log" --timeout 300 "$5"
}
# Runs of programs in the guest: a guest's script calls `run CASE COMMAND...`; `saw CASE REGEX...`
# checks that the run has lines that match these, in this order.
read -r -d '' GUEST_LIB <<'END' || true
run() { name=$1; shift; echo "@@run $name@@"; timeout 4000 "$@" 2>&1; echo "@@end $name $?@@"; }
END
saw() { # CONSOLE CASE REGEX...
    tr -d '\r' <"$1" | sed -n "/^@@run $2@@$/,/^@@end $2 /p" >"$OUT/$2.run.log"
    has_lines "$2" 'in the guest' "$OUT/$2.run.log" "${@:3}"
}
# Checks a listener's lines in the guest, in this order.
listener_saw() { # CONSOLE NAME REGEX...
    tr -d '\r' <"$1" | sed -n "s/^$2: //p" >"$OUT/$2.listener.log"
    has_lines "$2" 'in the guest' "$OUT/$2.listener.log" "${@:3}"
}
hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
# Checks that a file has lines that match these, in this order.
has_lines() { # CASE WHERE FILE REGEX...
    local regex line
    exec 5<"$3"
    for regex in "${@:4}"; do
        while :; do
            IFS= read -r line <&5 || { exec 5<&-; wrong "$1" "not $2: $regex"; return 1; }
            [[ ! $line =~ $regex ]] || break
        done
    done
    exec 5<&-
    ok "$1" "$2"
}
on_wire() { has_lines "$1" 'on the wire' "${@:2}"; }

# Prints the lines of check-cm-pcap of the connections whose REQ is for a port.
wire_of() { # FILE PORT
    awk -v port="port=$2" '
        FNR == NR { if ($2 == "REQ" && index($0, port " ")) ids[substr($3, 7)]; next }
        {
            for (i = 3; i <= NF && i <= 4; i++) {
                split($i, f, "=")
                if (f[2] in ids) { print; next }
            }
        }' "$1" "$1"
}
port_on_wire() { # CASE FILE PORT REGEX...
    wire_of "$2" "$3" >"$OUT/$1.wire.log"
    on_wire "$1" "$OUT/$1.wire.log" "${@:4}"
}
