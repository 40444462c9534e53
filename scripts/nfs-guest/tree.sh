# shellcheck shell=sh
# tree.sh - what both ends do with trees of files. Run in a guest by busybox sh.

# sums DIR - of all that is below: kind, mode, links, name and where a link points; and the SHA-256 of each file. Sorted, so
# that two ends can be compared.
sums() (
    cd "$1" || exit 1
    find . | sort | tr '\n' '\0' | xargs -0 stat -c '%F %a %h %N'
    find . -type f | sort | tr '\n' '\0' | xargs -0 sha256sum
)

# corners DIR - files of the sizes at which a transport does something else: inline or by chunk, with and without
# padding, one segment or several.
corners() {
    mkdir -p "$1" || return 1
    for size in 0 1 2 3 4 5 127 128 500 1000 1024 1025 2047 3000 4000 4095 4096 4097 8191 65535 65536 65537 1048577; do
        head -c "$size" /dev/urandom >"$1/$size" || return 1
    done
}
