# shellcheck shell=bash
# lib.sh - functions that the scripts of this folder share. Source it, do not run it:
#
#   set -euo pipefail
#   . "$(dirname "$(realpath "$0")")/lib.sh"
#
# It sets ROOT (the top of the repository), reports every command that fails, and on exit, however
# the script ends, undoes everything that was registered with `defer`, last first.

# shellcheck disable=SC2034 # for the scripts that source this
ROOT=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export LC_ALL=C

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "error: $*"; exit 1; }

set -o errtrace
trap 'say "line $LINENO: failed: $BASH_COMMAND"' ERR

# usage - prints the comment at the head of the calling script and ends with status 2.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# ---- cleanup -------------------------------------------------------------------------------------
_DEFERRED=()

# defer COMMAND ARG... - runs this when the script ends. Ignores its failures.
defer() { local c; printf -v c '%q ' "$@"; _DEFERRED+=("$c"); }

_run_deferred() {
    local status=$? i
    trap - ERR
    set +e
    for ((i = ${#_DEFERRED[@]} - 1; i >= 0; i--)); do eval "${_DEFERRED[i]}" 2>/dev/null; done
    exit "$status"
}
trap _run_deferred EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# stop PID [SIGNAL [SECONDS]] - ends a child of ours and reaps it: SIGNAL first (TERM), KILL after
# SECONDS (5). Returns the child's exit status.
stop() {
    local pid=$1 signal=${2:-TERM} tenths=$((${3:-5} * 10))
    kill -"$signal" "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null && ((tenths-- > 0)); do sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid"
}

# new_netns NAME - makes a network namespace that goes away with the script.
new_netns() {
    ip netns add "$1"
    defer ip netns del "$1"
    ip -n "$1" link set lo up
}

# ---- waiting -------------------------------------------------------------------------------------

# wait_line FILE REGEX SECONDS [PID] - waits until FILE has a line that matches; fails after
# SECONDS, or when process PID has ended without that line.
wait_line() {
    local file=$1 regex=$2 seconds=$3 pid=${4:-} end=$((SECONDS + $3)) alive=1
    until grep -aqE -- "$regex" "$file" 2>/dev/null; do
        ((alive)) || { say "process $pid ended before it wrote /$regex/ to $file"; return 1; }
        ((SECONDS < end)) || { say "no /$regex/ in $file after $seconds s"; return 1; }
        if [[ $pid ]] && ! kill -0 "$pid" 2>/dev/null; then alive=0; else sleep 0.1; fi
    done
}

# ---- packages ------------------------------------------------------------------------------------

need_root() { ((EUID == 0)) || die "this needs root: run it with sudo"; }

# need_packages PACKAGE... - checks for Debian packages. As root it installs the missing ones,
# otherwise it names the one command that would.
need_packages() {
    local p missing=() log
    for p in "$@"; do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) == installed ]] ||
            missing+=("$p")
    done
    ((${#missing[@]})) || return 0
    local get=(apt-get install -y --no-install-recommends "${missing[@]}")
    ((EUID == 0)) || die "packages are missing; run: sudo ${get[*]}"
    say "installing ${missing[*]}"
    log=$(mktemp)
    defer rm -f "$log"
    export DEBIAN_FRONTEND=noninteractive
    "${get[@]}" >"$log" 2>&1 || { apt-get update && "${get[@]}"; } >"$log" 2>&1 ||
        { tail -n 20 "$log" >&2; die "could not install: ${missing[*]}"; }
}

# debian_mirror - prints the address from which this machine's apt has Debian, if it has any.
debian_mirror() {
    # shellcheck disable=SC2016 # apt fills these in
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
        'Label: Debian' 2>/dev/null | head -n 1 || true
}

# need_build [PACKAGE...] - installs what a build of the workspace takes, and these packages as
# well.
need_build() {
    need_packages libdpdk-dev dpdk-dev libclang-dev pkg-config gcc libc6-dev "$@"
    command -v cargo >/dev/null || die "cargo is missing: install Rust first (https://rustup.rs)"
}

# need_promtool - puts Prometheus's checker into PATH. Debian has it in the server's package, whose
# installation starts a server: so this only unpacks the package, below target/.
need_promtool() {
    local tools=$ROOT/target/tools dir
    command -v promtool >/dev/null && return
    if [[ ! -x $tools/usr/bin/promtool ]]; then
        say "fetching promtool"
        dir=$(mktemp -d)
        defer rm -rf "$dir"
        (cd "$dir" && apt-get download prometheus >/dev/null) ||
            die "apt-get download prometheus failed"
        mkdir -p "$tools"
        dpkg -x "$dir"/prometheus_*.deb "$tools"
    fi
    export PATH=$tools/usr/bin:$PATH
}

# need_nextest - installs the runner of the tests, a cargo command, if it is missing.
need_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return
    say "installing cargo-nextest"
    cargo install --locked cargo-nextest
}

# need_mdbook - puts the maker of the book into PATH, without its server and its watcher. Debian
# has no package of it.
need_mdbook() {
    local tools=$ROOT/target/tools version=0.5.4
    if [[ $("$tools/bin/mdbook" --version 2>/dev/null) != "mdbook v$version" ]]; then
        command -v cargo >/dev/null ||
            die "cargo is missing: install Rust first (https://rustup.rs)"
        say "installing mdbook"
        # A debug build is quick enough for some seventy pages.
        cargo install --locked --debug --quiet --no-default-features --features search \
            --root "$tools" --version "$version" mdbook
    fi
    export PATH=$tools/bin:$PATH
}

# need_miri - installs the interpreter that finds undefined behaviour, a component of nightly Rust.
need_miri() {
    cargo +nightly --version >/dev/null 2>&1 ||
        die "a nightly Rust is missing: rustup toolchain install nightly"
    cargo +nightly miri --version >/dev/null 2>&1 && return
    say "installing Miri"
    rustup component add --toolchain nightly miri rust-src
}
