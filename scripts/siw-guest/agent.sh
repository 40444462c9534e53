# The script of a guest that runs commands of the host, any number at a time, for `run --share DIR`: a file
# /host/q/NAME.cmd is taken, what it says goes to NAME.out, and its status to NAME.rc when it has ended. The host
# ends the guest.
mkdir -p /host/q
mark agent
while :; do
    for f in /host/q/*.cmd; do
        # A pattern that matches nothing stands for itself.
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
