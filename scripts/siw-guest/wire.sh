# shellcheck shell=bash disable=SC2154 # the sourcing script sets the variables not set here
# wire.sh - the wire of `interop-siw`, `interop-rxe`, `interop-gateway` and `interop-nfs`, in a
# network namespace of its own. These scripts source it; OUT is the folder for logs and captures.

NS=heddle-interop-$$
new_netns "$NS"
inside() { ip netns exec "$NS" "$@"; } # not for `&`: its pid would be that of a wrapping shell
inside sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
inside ip link add br0 type bridge mcast_snooping 0
inside ip tuntap add dev tap0 mode tap
inside ip tuntap add dev tap1 mode tap # for a second guest
inside ip link add hd0 type veth peer name hd1
for dev in tap0 tap1 hd1; do inside ip link set "$dev" master br0; done
for dev in br0 tap0 tap1 hd0 hd1; do inside ip link set "$dev" up; done
for dev in hd0 hd1; do
    inside ethtool -K "$dev" tx off tso off gso off gro off rxvlan off txvlan off >/dev/null
done

# wire_tamper LOG RULE... - puts siw-guest/tamper into the wire of the first guest.
wire_tamper() {
    inside ip link add tp0 type veth peer name tp1
    inside ip link set tap0 nomaster
    inside ip link set tp1 master br0
    for dev in tp0 tp1; do
        inside ethtool -K "$dev" tx off tso off gso off gro off rxvlan off txvlan off >/dev/null
        inside ip link set "$dev" up
    done
    start tamper "$1" "$ROOT/scripts/siw-guest/tamper" tap0 tp0 "${@:2}"
    wait_line "$1" '^ready' 10 "$tamper"
}

# A shell starts background processes with SIGINT ignored, so end them with TERM.
start() { # VARIABLE LOG COMMAND... - in the background, in the namespace; sets VARIABLE to the pid
    local var=$1 log=$2
    shift 2
    echo "+ $*" >"$log"
    ip netns exec "$NS" "$@" >>"$log" 2>&1 &
    printf -v "$var" %s "$!"
    defer stop "$!" TERM
}

capture_start() { # CASE
    start capture "$OUT/$1.dumpcap.log" dumpcap -q -P -i tap0 -w "$OUT/$1.pcap"
    wait_line "$OUT/$1.dumpcap.log" '^File:' 10 "$capture"
}
capture_end() {
    sleep 1 # dumpcap writes its data a block at a time, and drops the last one when told to end
    stop "$capture" TERM
}
