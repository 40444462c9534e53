# shellcheck shell=sh
# tree.sh - functions for trees of files that both ends use. busybox sh runs it in a guest.

# sums DIR - prints kind, mode, links, name and link target of everything below DIR, and the SHA-256
# of each file. The output is sorted, so that two ends can be compared.
sums() (
    cd "$1" || exit 1
    find . | sort | tr '\n' '\0' | xargs -0 stat -c '%F %a %h %N'
    find . -type f | sort | tr '\n' '\0' | xargs -0 sha256sum
)

# corners DIR - makes files of the sizes at which a transport changes its behaviour: inline or by
# chunk, with and without padding, one segment or several.
corners() {
    mkdir -p "$1" || return 1
    for size in 0 1 2 3 4 5 127 128 500 1000 1024 1025 2047 3000 4000 4095 4096 4097 8191 65535 \
        65536 65537 1048577; do
        head -c "$size" /dev/urandom >"$1/$size" || return 1
    done
}
