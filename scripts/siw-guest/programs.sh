# shellcheck shell=bash disable=SC2154 # interop-siw, which sources this, sets the other variables
# programs.sh - the runs `programs` of `interop-siw --full`: the same unmodified program at both
# ends, in the guest over siw, and on this host over Heddle, by `heddle run` on an appliance.

PROGRAM_PACKAGES=(rdmacm-utils perftest librdmacm1)
PROGRAMS=()
declare -A SERVER=() CLIENT=() EXPECT_LINE=()
# program NAME SERVER CLIENT [LINE] - `@` is the port and `%` the server's address; the client must
# print a line that matches LINE.
program() {
    PROGRAMS+=("$1")
    SERVER[$1]=$2 CLIENT[$1]=$3 EXPECT_LINE[$1]=${4:-}
}
program_perftest() { # NAME LINE PROGRAM OPTION...
    program "$1" "$3 -R -F -p @ ${*:4}" "$3 -R -F -p @ ${*:4} %" "$2"
}
# Programs whose server sends first, which MPA forbids unless the client asks for the peer-to-peer
# model: Heddle's client asks, siw's only in the variants p2p and p2pread.
list_server_first() {
    program ucmatose 'ucmatose -p @ -C 5 -S 3000' 'ucmatose -s % -p @ -C 5 -S 3000' \
        'return status 0'
    program_perftest write_lat '^ *64 +200 ' ib_write_lat -s 64 -n 200
    program_perftest write_bw-both '^ *4096 +200 ' ib_write_bw -b -s 4096 -n 200
}
list_programs() {
    local test size
    for size in 64 4096 65535; do
        program "rping-$size" "rping -s -V -C 20 -S $size -a % -p @" \
            "rping -c -V -C 20 -S $size -a % -p @"
    done
    # rdma_client ends with 0 whatever happens.
    program rdma_client 'rdma_server -p @' 'rdma_client -s % -p @' '^rdma_client: end 0'
    program riostream 'riostream -p @ -I 10 -C 10 -T v' 'riostream -s % -p @ -I 10 -C 10 -T v' \
        '^custom'
    program rstream 'rstream -p @ -S 65536 -I 10 -C 10 -T v' \
        'rstream -s % -p @ -S 65536 -I 10 -C 10 -T v' '^custom'
    for test in write_bw read_bw send_bw; do
        program_perftest "$test" '^ *65536 +60 ' "ib_$test" -s 65536 -n 60
        program_perftest "$test-4qp" '^ *4096 +200 ' "ib_$test" -q 4 -s 4096 -n 50
    done
    # Every length up to 8 MiB makes a capture of 80 MiB, so only one test does this.
    program_perftest write_bw-all '^ *8388608 +5 ' ib_write_bw -a -n 5
    program_perftest read_bw-events '^ *4096 +200 ' ib_read_bw -e -s 4096 -n 200
    for test in read_lat send_lat; do
        program_perftest "$test" '^ *64 +200 ' "ib_$test" -s 64 -n 200
    done
}

command_of() { # COMMAND PORT SERVER
    local text=${1//@/$2}
    echo "${text//%/$3}"
}
# Output of a program that has failed but ends with 0.
TROUBLE='fail|error|unable|flush|mismatch'

appliance_start() { # RUN MTU
    {
        echo "[control]"
        echo "socket = \"$OUT/programs.sock\""
        echo "[infiniband]"
        echo "cm = false"
        echo "[[port]]"
        echo "vdev = \"$VDEV\""
        echo "mtu = $2"
        echo "addresses = [\"$HEDDLE_IP/24\"]"
        # The servers of all cases wait at the same time, so they need many queues.
        echo "[[client]]"
        echo "who = \"user:root\""
        echo "listen = [\"any\"]"
        echo "queues = 2048"
    } >"$OUT/$1.toml"
    start peer "$OUT/$1.peer.log" "$HEDDLE" serve -v --config "$OUT/$1.toml"
    for _ in {1..300}; do
        [[ ! -S $OUT/programs.sock ]] || return 0
        kill -0 "$peer" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
is_listening() { # PORT
    "$HEDDLE" status --socket "$OUT/programs.sock" --json | grep -q ":$1\""
}

# program_clients RUN VARIANT MTU CRC - runs clients in the guest, each with its own server here.
program_clients() {
    local run=$1-client variant=$2 mtu=$3 crc=$4 guest peer capture name port=7400 s pid
    local -A pids=()
    wanted "$run" || return 0
    say "$run: siw $variant, MTU $mtu"
    appliance_start "$run" "$mtu" || { result "$run" WRONG "no appliance"; return; }
    {
        echo 'failed=0'
        for name in "${PROGRAMS[@]}"; do
            echo "timeout 9000 $(command_of "${CLIENT[$name]}" "$port" "$HEDDLE_IP") \\"
            echo "    >/tmp/out 2>&1; s=\$?; cat /tmp/out"
            echo "grep -iqE '$TROUBLE' /tmp/out && s=99"
            [[ ! ${EXPECT_LINE[$name]} ]] ||
                echo "grep -qE '${EXPECT_LINE[$name]}' /tmp/out || s=98"
            echo "[ \$s = 0 ] || failed=1; mark $name \$s"
            port=$((port + 1))
        done
        echo 'exit $failed'
    } >"$OUT/$run.sh"
    capture_start "$run"
    port=7400
    for name in "${PROGRAMS[@]}"; do
        # shellcheck disable=SC2046
        start pid "$OUT/$run-$name.log" "$HEDDLE" run --socket "$OUT/programs.sock" -- \
            $(command_of "${SERVER[$name]}" "$port" "$HEDDLE_IP")
        pids[$name]=$pid
        for _ in {1..100}; do
            is_listening "$port" && break
            sleep 0.1
        done
        port=$((port + 1))
    done
    guest_start guest "$run" "$GUEST_IP" tap0 "$variant" "$mtu" "$OUT/$run.sh"
    wait "$guest" || true
    capture_end || result "$run" WRONG "the capture ended badly"
    for name in "${PROGRAMS[@]}"; do
        s=$(marked "$OUT/$run.console.log" "$name")
        for _ in {1..50}; do
            kill -0 "${pids[$name]}" 2>/dev/null || break
            sleep 0.1
        done
        if kill -0 "${pids[$name]}" 2>/dev/null; then
            stop "${pids[$name]}" KILL 2>/dev/null || true
            result "$run-$name" WRONG "the server does not end, client: ${s:-unknown}"
        elif ! wait "${pids[$name]}"; then
            result "$run-$name" WRONG "the server failed, client: ${s:-unknown}"
        elif [[ $s != 0 ]]; then
            result "$run-$name" WRONG "client: ${s:-unknown}"
        else
            result "$run-$name" ok
        fi
    done
    stop "$peer" TERM || result "$run" WRONG "heddle serve ended with status $?"
    judge_wire "$run-wire" --crc "$crc" --aborts "$OUT/$run.pcap"
}

# program_servers RUN VARIANT MTU CRC - runs servers in the guest, and their clients here.
program_servers() {
    local run=$1-server variant=$2 mtu=$3 crc=$4 guest peer capture name port=7400 s
    local -A ours=()
    wanted "$run" || return 0
    say "$run: siw $variant, MTU $mtu"
    appliance_start "$run" "$mtu" || { result "$run" WRONG "no appliance"; return; }
    for name in "${PROGRAMS[@]}"; do
        # If its client has failed, a server keeps the others waiting no longer than their clients
        # wait.
        echo "timeout 120 $(command_of "${SERVER[$name]}" "$port" "$GUEST_IP") >/tmp/out 2>&1 &"
        echo "wait_listen $port && mark listening $name; wait \$!; s=\$?; cat /tmp/out"
        # For 255, see interop-siw.
        [[ ${SERVER[$name]} != rping* ]] || echo '[ $s != 255 ] || s=0'
        echo "mark $name \$s"
        port=$((port + 1))
    done >"$OUT/$run.sh"
    cc -Wall -Werror -shared -fPIC -o "$OUT/patience.so" "$ROOT/scripts/siw-guest/patience.c" -ldl
    capture_start "$run"
    guest_start guest "$run" "$GUEST_IP" tap0 "$variant" "$mtu" "$OUT/$run.sh"
    port=7400
    for name in "${PROGRAMS[@]}"; do
        ours[$name]=unknown
        if wait_line "$OUT/$run.console.log" "@@mark listening $name@@" 150 "$guest"; then
            s=0
            # shellcheck disable=SC2046
            ip netns exec "$NS" timeout 120 env LD_PRELOAD="$OUT/patience.so" \
                "$HEDDLE" run --socket "$OUT/programs.sock" -- \
                $(command_of "${CLIENT[$name]}" "$port" "$GUEST_IP") >"$OUT/$run-$name.log" 2>&1 ||
                s=$?
            ! grep -iqE "$TROUBLE" "$OUT/$run-$name.log" || s=99
            [[ ! ${EXPECT_LINE[$name]} ]] ||
                grep -qE "${EXPECT_LINE[$name]}" "$OUT/$run-$name.log" || s=98
            ours[$name]=$s
        fi
        port=$((port + 1))
    done
    wait "$guest" || true
    capture_end || result "$run" WRONG "the capture ended badly"
    for name in "${PROGRAMS[@]}"; do
        s=$(marked "$OUT/$run.console.log" "$name")
        if [[ ${ours[$name]} == 0 && $s == 0 ]]; then
            result "$run-$name" ok
        else
            result "$run-$name" WRONG "client: ${ours[$name]}, server in the guest: ${s:-unknown}"
        fi
    done
    stop "$peer" TERM || result "$run" WRONG "heddle serve ended with status $?"
    judge_wire "$run-wire" --crc "$crc" --aborts "$OUT/$run.pcap"
}

program_matrix() {
    PROGRAMS=()
    list_programs
    program_clients programs-crc crc 1500 1,1
    list_server_first
    program_clients programs p2p 1500 0,1
    program_servers programs fixed 1500 -,-
    program_servers programs-crc crc 1500 1,1
}
