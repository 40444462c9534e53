# The script of a guest that runs commands of the host, any number at a time, for `run --share DIR`:
# it takes a file /host/q/NAME.cmd, writes the command's output to NAME.out, and its status to
# NAME.rc when the command has ended. The host ends the guest.
mkdir -p /host/q
mark agent
while :; do
    for f in /host/q/*.cmd; do
        # A pattern that matches nothing expands to itself.
        [ -e "$f" ] || continue
        b=${f%.cmd} n=${f##*/}
        mv "$f" "/tmp/$n"
        (
            sh "/tmp/$n" >"$b.out" 2>&1 </dev/null
            echo $? >"$b.tmp"
            mv "$b.tmp" "$b.rc"
        ) &
    done
    usleep 50000
done
