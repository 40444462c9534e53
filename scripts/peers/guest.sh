# shellcheck shell=sh disable=SC2154 # guest.py sets SECONDS_ and calls the functions
# guest.sh - measures in the guest of `bench --peers --guest`, whose busybox runs it. guest.py puts
# calls of `perftest` and `heddle_bench` after it. Each run leaves files in /host for the host:
#
#   NAME.out      what the client wrote
#   NAME.idle     two samples of the machine before the run
#   NAME.samples  samples during the run: uptime in seconds, and ticks in which processors were busy

ADDRESS=${IP%/*}
NOW=none
PORT=20000
# Each page of a program on /host would come through the share.
mkdir /programs
cp /host/heddle /host/libibverbs.so.1 /programs/
export PATH=/programs:$PATH HEDDLE_LIBDIR=/programs XDG_RUNTIME_DIR=/tmp

# Makes an RDMA device the only one: both on one interface would have the same address.
device() { # siw|rxe|none
    [ "$1" != "$NOW" ] || return 0
    rdma link delete siw0 2>/dev/null
    rdma link delete rxe0 2>/dev/null
    case $1 in
    siw | rxe) rdma link add "${1}0" type "$1" netdev eth0 || return 1 ;;
    esac
    NOW=$1
}

sample() {
    read -r up _ </proc/uptime
    read -r _ user nice system _ _ irq softirq _ </proc/stat
    echo "$up $((user + nice + system + irq + softirq))"
}

# Ends the private RNIC of an earlier run, which would wait for more programs and take time.
quiet() {
    while pids=$(pidof heddle); do
        kill $pids
        usleep 100000
    done
}

# Waits until the server of a device listens.
listens() { # DEVICE PORT SERVER
    tries=0
    while [ $tries -lt 600 ] && kill -0 "$3" 2>/dev/null; do
        case $1 in
        heddle) heddle status --json --socket /tmp/heddle/private.sock 2>/dev/null ;;
        *) rdma resource show cm_id | grep LISTEN ;;
        esac | grep -q ":$2\b" && break
        tries=$((tries + 1))
        usleep 100000
    done
    # rdma_cm says LISTEN a moment before siw does.
    usleep 300000
    [ $tries -lt 600 ] && kill -0 "$3" 2>/dev/null
}

# Runs a client and takes samples. Returns its status.
watch() { # NAME COMMAND...
    name=$1
    shift
    timeout -s KILL $((SECONDS_ + 60)) "$@" >"/tmp/$name.out" 2>"/tmp/$name.err" &
    client=$!
    : >"/tmp/$name.samples"
    while kill -0 "$client" 2>/dev/null; do
        sample >>"/tmp/$name.samples"
        usleep 100000
    done
    wait "$client"
}

# The files go to the host at the end: during a run they would cost it time.
hand_over() { # NAME STATUS
    [ "$2" = 0 ] || { echo "status $2" >"/host/$1.failed"; cat /tmp/server >>"/tmp/$1.err"; }
    for kind in idle samples err out; do mv "/tmp/$1.$kind" "/host/$1.$kind"; done
    mark "$1" "$2"
}

rest() { # NAME
    quiet
    sample >"/tmp/$1.idle"
    sleep 1
    sample >>"/tmp/$1.idle"
}

perftest() { # NAME DEVICE MTU PROGRAM OPTION...
    name=$1 program=$4
    PORT=$((PORT + 1)) address=$ADDRESS run=''
    [ "$2" != heddle ] || address=127.0.0.1 run='heddle run --'
    kind=$2
    device "$kind"
    ip link set lo mtu "$3"
    shift 4
    rest "$name"
    timeout -s KILL $((SECONDS_ + 90)) $run "$program" -R -F -p $PORT "$@" >/tmp/server 2>&1 &
    server=$!
    status=1
    if listens "$kind" $PORT $server; then
        watch "$name" $run "$program" -R -F -p $PORT "$@" "$address"
        status=$?
    else
        echo 'the server does not listen' >"/tmp/$name.err"
        : >"/tmp/$name.out"
        : >"/tmp/$name.samples"
    fi
    usleep 300000
    kill $server 2>/dev/null
    wait $server
    hand_over "$name" $status
}

heddle_bench() { # NAME OPTION...
    name=$1
    shift
    device none
    rest "$name"
    : >/tmp/server
    watch "$name" heddle bench --json - --quiet "$@"
    hand_over "$name" $?
}
