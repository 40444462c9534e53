# shellcheck shell=bash disable=SC2154 # interop-siw, which sources this, sets the other variables
# matrix.sh - the cases of `interop-siw --full`, which runs all of them. The list omits impossible
# cases:
#   rev1 with rping -s: in MPA revision 1 an accepting siw has no RDMA Reads (IRD and ORD are 0), on
#     which rping relies
#   ucmatose and ib_write_lat with a siw that does not ask for the peer-to-peer model: their servers
#     send first, which MPA forbids there. A case checks that Heddle reports that.
#   perftest's -b, and -a of ib_write_lat: docs/guide/services.md gives the reason
#   cmtime with more than 71 connections: siw gives a process no more queue pairs (the same page)

CASES=0
result() { # CASE ok|WRONG [WHAT]
    CASES=$((CASES + 1))
    printf '%-26s %-5s %s\n' "$1" "$2" "${3:-}"
    [[ $2 == ok ]] || fail "$1" "${3:-}"
}
check_wire() { # CASE PCAP CRC [COUNT SIZE]
    judge_wire "$1" --crc "$3" "$2" "${@:4}"
}
judge_wire() { # CASE ARGUMENT... - of check-iwarp-pcap
    local case=$1 line
    if line=$("$ROOT/scripts/check-iwarp-pcap" "${@:2}"); then
        result "$case" ok "$line"
    else
        result "$case" WRONG "$line"
    fi
}
check_rping() { # CASE PCAP CRC PORT COUNT SIZE - judges one run, cut out of a capture of several
    tshark -r "$2" -Y "tcp.port == $4" -F pcap -w "$OUT/$1.pcap" 2>>"$OUT/tshark.log" || true
    check_wire "$1" "$OUT/$1.pcap" "$3" "$5" "$6"
}
marked() { # CONSOLE WORD... - prints the status that the guest marked with these words
    tr -d '\r' <"$1" | sed -n "s/^@@mark ${*:2} \([0-9]*\)@@$/\1/p" | tail -n 1
}
guest_start() { # VARIABLE RUN IP TAP VARIANT MTU SCRIPT
    start "$1" "$OUT/$2.guest.log" "$ROOT/scripts/siw-guest/run" --tap "$4" --ip "$3/24" \
        --mtu "$6" --variant "$5" --name "$2" --log "$OUT/$2.console.log" --timeout 9000 "$7"
}
# with --only, skip the runs that the user does not name
wanted() { [[ ! $only || ",$only," == *",$1,"* ]]; }
set_mtu() { for dev in hd0 hd1 tap0 tap1 br0; do inside ip link set "$dev" mtu "$1"; done; }

# ---- clients in the guest ------------------------------------------------------------------------
# The guest's clock may run several times too fast, so the `timeout` there is only a last resort.
LIST=() LISTEN=()
declare -A COMMAND=() RPING_RUNS=() EXPECT=()
add() { # NAME SERVICE COMMAND - `@` in the command is the port
    local port=$((7200 + ${#LIST[@]}))
    LIST+=("$1")
    LISTEN+=(--listen "$HEDDLE_IP:$port=$2")
    COMMAND[$1]=${3//@/$port}
}
add_rping() { # SIZE...
    local size
    for size in "$@"; do
        RPING_RUNS[rping-$size]="$((7200 + ${#LIST[@]})) 20 $size"
        add "rping-$size" rping "timeout 9000 rping -c -V -C 20 -S $size -a $HEDDLE_IP -p @"
    done
}
add_perftest() { # SERVICE OPTION...
    local program=${1%%,*}
    add "$program" "$1" "timeout 9000 $program -d siw0 -R -F -p @ ${*:2} $HEDDLE_IP"
}
add_test() { # NAME LINE SERVICE OPTION... - a perftest test whose last line of figures matches LINE
    EXPECT[$1]=$2
    add "$1" "$3" "timeout 9000 ${3%%,*} -d siw0 -R -F -p @ ${*:4} $HEDDLE_IP"
}
add_long_tests() { # every length up to 8 MiB, and four queue pairs of 50 messages each
    local test
    for test in write_bw read_bw send_bw; do
        add_test "$test-all" '^ *8388608 +5 ' "ib_$test" -a -n 5
        add_test "$test-4qp" '^ *4096 +200 ' "ib_$test" -q 4 -s 4096 -n 50
    done
}
add_programs() { # programs whose clients send first
    add rdma_client rdma_server "timeout 9000 rdma_client -s $HEDDLE_IP -p @"
    add cmtime cmtime "timeout 9000 cmtime -s $HEDDLE_IP -c 71 -p @"
    add_perftest ib_write_bw -s 16384 -n 60
    add_perftest ib_read_bw -s 65536 -n 16
    add_perftest ib_send_bw -s 1000 -n 1500
    add_perftest ib_read_lat -s 64 -n 200
    add_perftest ib_send_lat -s 64 -n 200
}
add_p2p_programs() { # programs whose servers send first
    add ucmatose ucmatose,count=5,size=3000 \
        "timeout 9000 ucmatose -s $HEDDLE_IP -c 4 -C 5 -S 3000 -p @"
    add_perftest ib_write_lat,size=64 -s 64 -n 200
}
begin() { LIST=() LISTEN=() COMMAND=() RPING_RUNS=() EXPECT=(); }

# clients RUN VARIANT MTU CRC [HEDDLE-OPTION...] - runs the added clients in one guest, against one
# Heddle. CRC is check-iwarp-pcap's option.
clients() {
    local run=$1-client variant=$2 mtu=$3 crc=$4 guest peer capture name s
    wanted "$run" || return 0
    say "$run: siw $variant, MTU $mtu"
    {
        echo 'failed=0'
        for name in "${LIST[@]}"; do
            echo "echo '+ ${COMMAND[$name]}'"
            echo "{ ${COMMAND[$name]}; } >/tmp/out 2>&1; s=\$?; cat /tmp/out"
            # cmtime and rdma_client return 0 whatever happens.
            echo "grep -iqE 'fail|error|unable|flush' /tmp/out && s=99"
            [[ ! ${EXPECT[$name]:-} ]] || echo "grep -qE '${EXPECT[$name]}' /tmp/out || s=98"
            echo "[ \$s = 0 ] || failed=1; mark $name \$s"
        done
        echo 'exit $failed'
    } >"$OUT/$run.sh"
    capture_start "$run"
    start peer "$OUT/$run.peer.log" "$HEDDLE" serve -v --vdev "$VDEV" --mtu "$mtu" \
        --ip "$HEDDLE_IP/24" "${LISTEN[@]}" "${@:5}"
    wait_line "$OUT/$run.peer.log" '^[^+].*listening' 30 "$peer" ||
        { result "$run" WRONG "no server"; return; }
    guest_start guest "$run" "$GUEST_IP" tap0 "$variant" "$mtu" "$OUT/$run.sh"
    wait "$guest" || true
    sleep 0.5
    stop "$peer" TERM || result "$run" WRONG "heddle serve ended with status $?"
    capture_end || result "$run" WRONG "the capture ended badly"
    for name in "${LIST[@]}"; do
        s=$(marked "$OUT/$run.console.log" "$name")
        if [[ $s != 0 ]]; then
            result "$run-$name" WRONG "status ${s:-unknown}"
        elif [[ ${RPING_RUNS[$name]:-} ]]; then
            # shellcheck disable=SC2086
            check_rping "$run-$name" "$OUT/$run.pcap" "$crc" ${RPING_RUNS[$name]}
        else
            result "$run-$name" ok
        fi
    done
    check_wire "$run-wire" "$OUT/$run.pcap" "$crc"
}

# ---- rping -s in the guest -----------------------------------------------------------------------
# servers RUN VARIANT MTU CRC [HEDDLE-OPTION...]
servers() {
    local run=$1-server variant=$2 mtu=$3 crc=$4 guest capture size s port sizes=(64 4096 65535)
    local -A ours=()
    wanted "$run" || return 0
    say "$run: siw $variant, MTU $mtu"
    port=7300
    for size in "${sizes[@]}"; do
        echo "timeout 9000 rping -s -V -C 20 -S $size -a $GUEST_IP -p $port &"
        echo "wait_listen $port && mark listening $size"
        # For 255, see interop-siw.
        echo "wait \$!; s=\$?; [ \$s != 255 ] || s=0; mark rping-$size \$s"
        port=$((port + 1))
    done >"$OUT/$run.sh"
    capture_start "$run"
    guest_start guest "$run" "$GUEST_IP" tap0 "$variant" "$mtu" "$OUT/$run.sh"
    port=7300
    for size in "${sizes[@]}"; do
        ours[$size]=0
        wait_line "$OUT/$run.console.log" "@@mark listening $size@@" 150 "$guest" &&
            ip netns exec "$NS" timeout 60 \
                "$HEDDLE" rping -c -V -C 20 -S "$size" -a "$GUEST_IP" -p "$port" \
                --vdev "$VDEV" --mtu "$mtu" --ip "$HEDDLE_IP/24" "${@:5}" >>"$OUT/$run.peer.log" \
                2>&1 || ours[$size]=$?
        port=$((port + 1))
    done
    wait "$guest" || true
    capture_end || result "$run" WRONG "the capture ended badly"
    port=7300
    for size in "${sizes[@]}"; do
        s=$(marked "$OUT/$run.console.log" "rping-$size")
        if [[ ${ours[$size]} == 0 && $s == 0 ]]; then
            check_rping "$run-rping-$size" "$OUT/$run.pcap" "$crc" "$port" 20 "$size"
        else
            result "$run-rping-$size" WRONG "heddle rping: ${ours[$size]}, rping -s: ${s:-unknown}"
        fi
        port=$((port + 1))
    done
}

# ---- perftest's servers in the guest -------------------------------------------------------------
# bench_servers RUN VARIANT MTU CRC [HEDDLE-OPTION...] - `heddle bench --perftest` is their client.
bench_servers() {
    local run=$1-server variant=$2 mtu=$3 crc=$4 guest capture test s port=7350
    local tests=(write_bw read_bw send_bw write_lat read_lat send_lat)
    local -A ours=()
    wanted "$run" || return 0
    say "$run: siw $variant, MTU $mtu"
    for test in "${tests[@]}"; do
        echo "timeout 9000 ib_$test -d siw0 -R -F -p $port -s 4096 -n 200 >/tmp/out 2>&1 &"
        echo "wait_listen $port && mark listening $test; wait \$!; s=\$?; cat /tmp/out"
        echo "mark ib_$test \$s"
        port=$((port + 1))
    done >"$OUT/$run.sh"
    capture_start "$run"
    guest_start guest "$run" "$GUEST_IP" tap0 "$variant" "$mtu" "$OUT/$run.sh"
    port=7350
    for test in "${tests[@]}"; do
        ours[$test]=0
        wait_line "$OUT/$run.console.log" "@@mark listening $test@@" 150 "$guest" &&
            ip netns exec "$NS" timeout 60 "$HEDDLE" bench --perftest --op "${test%_*}" \
                --mode "${test#*_}" --size 4096 --iters 200 --connect "$GUEST_IP:$port" \
                --vdev "$VDEV" --mtu "$mtu" --ip "$HEDDLE_IP/24" "${@:5}" \
                --quiet --json "$OUT/$run-$test.json" >>"$OUT/$run.peer.log" 2>&1 || ours[$test]=$?
        port=$((port + 1))
    done
    wait "$guest" || true
    capture_end || result "$run" WRONG "the capture ended badly"
    for test in "${tests[@]}"; do
        s=$(marked "$OUT/$run.console.log" "ib_$test")
        if [[ ${ours[$test]} != 0 || $s != 0 ]]; then
            result "$run-$test" WRONG "heddle bench: ${ours[$test]}, ib_$test: ${s:-unknown}"
        elif ! grep -qE '"ops": (199|200),' "$OUT/$run-$test.json"; then
            result "$run-$test" WRONG "heddle bench did not measure 200 operations"
        else
            result "$run-$test" ok
        fi
    done
    without_refused "$OUT/$run.pcap" "$OUT/$run-wire.pcap"
    judge_wire "$run-wire" --crc "$crc" "$OUT/$run-wire.pcap"
}
# without_refused PCAP TO - leaves out connections that were refused: perftest's server listens anew
# a while after its first connection, and the client asks until then.
without_refused() {
    local refused
    refused=$(tshark -r "$1" -T fields -e tcp.stream -e tcp.flags.reset 2>>"$OUT/tshark.log" |
        awk '$1 != "" { frames[$1]++; resets[$1] += $2 ~ /1|True/ }
            END { for (s in frames) if (frames[s] == 2 && resets[s]) print s }' | paste -sd,)
    tshark -r "$1" ${refused:+-Y "!(tcp.stream in {$refused})"} -F pcap -w "$2" 2>>"$OUT/tshark.log"
}

# ---- by themselves -------------------------------------------------------------------------------
# Programs whose server sends first, in the client-server model: Heddle rejects them at once, with
# the reason.
refused() {
    local run=refused guest peer name
    wanted "$run" || return 0
    say "$run: siw fixed"
    begin
    add_p2p_programs
    for name in "${LIST[@]}"; do echo "${COMMAND[$name]}; mark $name \$?"; done >"$OUT/$run.sh"
    start peer "$OUT/$run.peer.log" "$HEDDLE" serve -v --vdev "$VDEV" --ip "$HEDDLE_IP/24" \
        "${LISTEN[@]}"
    wait_line "$OUT/$run.peer.log" '^[^+].*listening' 30 "$peer" ||
        { result "$run" WRONG "no server"; return; }
    guest_start guest "$run" "$GUEST_IP" tap0 fixed 1500 "$OUT/$run.sh"
    wait "$guest" || true
    stop "$peer" TERM || result "$run" WRONG "heddle serve ended with status $?"
    for name in "${LIST[@]}"; do
        if [[ $(marked "$OUT/$run.console.log" "$name") =~ ^[1-9] ]] &&
            grep -q "rejected.*${name}.*peer-to-peer" "$OUT/$run.peer.log"; then
            result "$run-$name" ok
        else
            result "$run-$name" WRONG "not rejected, or not for that reason"
        fi
    done
}

# The script kills one guest in the middle of its work; Heddle serves another meanwhile and
# afterwards.
killed() {
    local run=killed guest doomed peer
    wanted "$run" || return 0
    say "$run: two guests, siw fixed"
    echo "mark begin; rping -c -V -C 0 -S 4096 -a $HEDDLE_IP -p 7200" >"$OUT/doomed.sh"
    {
        echo "rping='timeout 9000 rping -c -V -S 4096 -a $HEDDLE_IP -p 7200'"
        echo '$rping -C 50 || exit 1; mark before; $rping -C 300 || exit 2; $rping -C 50 || exit 3'
    } >"$OUT/$run.sh"
    start peer "$OUT/$run.peer.log" "$HEDDLE" serve -v --vdev "$VDEV" --ip "$HEDDLE_IP/24" \
        --listen "$HEDDLE_IP:7200=rping"
    wait_line "$OUT/$run.peer.log" '^[^+].*listening' 30 "$peer" ||
        { result "$run" WRONG "no server"; return; }
    guest_start doomed doomed 10.88.0.3 tap1 fixed 1500 "$OUT/doomed.sh"
    wait_line "$OUT/$run.peer.log" 'connected.*10\.88\.0\.3' 120 "$doomed" ||
        { result "$run" WRONG "no first guest"; return; }
    guest_start guest "$run" "$GUEST_IP" tap0 fixed 1500 "$OUT/$run.sh"
    wait_line "$OUT/$run.console.log" '@@mark before' 120 "$guest" ||
        { result "$run" WRONG "no second guest"; return; }
    stop "$doomed" KILL 2>/dev/null || true # its QEMU dies with it
    if wait "$guest"; then
        result "$run-others" ok
    else
        result "$run-others" WRONG "the other guest: status $?"
    fi
    # the time-out of retransmissions removes what is left of the first
    if wait_line "$OUT/$run.peer.log" '(ended|closed).*10\.88\.0\.3' 240 "$peer"; then
        result "$run-itself" ok \
            "$(grep '10\.88\.0\.3' "$OUT/$run.peer.log" | grep -o 'reason=.*' | tail -n 1)"
    else
        result "$run-itself" WRONG "its connection is still there"
    fi
    stop "$peer" TERM || result "$run" WRONG "heddle serve ended with status $?"
}

full_matrix() {
    set_mtu 1500
    begin; add_rping 64 4096 65535; add_programs
    # 1,000 connections and their ends, 50 at a time
    local once="timeout 9000 cmtime -s $HEDDLE_IP -c 50 -p @"
    add connects-1000 cmtime \
        "i=0; while [ \$i -lt 20 ]; do $once || break; i=\$((i + 1)); done; [ \$i = 20 ]"
    clients fixed fixed 1500 0,1
    servers fixed fixed 1500 -,-
    bench_servers bench fixed 1500 -,-
    begin; add_long_tests
    clients perftest fixed 1500 0,1
    refused
    killed

    begin; add_rping 64 4096 65535; add_programs
    clients crc crc 1500 1,1
    servers crc crc 1500 1,1
    bench_servers bench-crc crc 1500 1,1
    clients gso gso 1500 0,1
    servers gso gso 1500 -,-
    set_mtu 9000
    clients mtu9000 crc 9000 1,1
    servers mtu9000 crc 9000 1,1
    set_mtu 1500

    add_p2p_programs
    clients p2p p2p 1500 0,1
    servers p2p-write p2p 1500 -,- --rtr write
    servers p2p-read p2p 1500 -,- --rtr read
    clients p2pread p2pread 1500 0,1

    begin; add_rping 64 4096 65535
    clients nocrc fixed 1500 0,0 --crc off
    servers nocrc fixed 1500 0,0 --crc off
    clients stock stock 1500 0,1
    clients rev1 rev1 1500 0,1
    program_matrix
    ((CASES > 0)) || die "no run of that name"
    ((FAILED == 0)) || die "$FAILED of $CASES cases failed; logs and captures are in $OUT"
    say "all $CASES cases${only:+ of $only} passed in $SECONDS s; captures are in $OUT"
}
