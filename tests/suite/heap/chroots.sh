#!/usr/bin/env bash
# Compares heap snapshots with the figures of the C libraries of other Debian releases: glibc 2.31, 2.41 and that of
# the coming release, and with those of their jemalloc, and attaches to processes there. Makes a system of each with debootstrap,
# compiles the workloads in it, and runs the tests.
#
#   tests/suite/heap/chroots.sh [SUITE…]      (bullseye trixie sid without an argument)
#
# The systems are kept in MEMPROF_TEST_CHROOTS (default /var/tmp/memprof-chroots), about 400 MB each. Needs root.
# Exit status 77: skipped, with the reason printed.
set -euo pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

skip() {
    report_skipped "chroots: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
[ $# -gt 0 ] || set -- bullseye trixie sid

dir=${MEMPROF_TEST_CHROOTS-/var/tmp/memprof-chroots}
mkdir -p "$dir"
roots=''
for suite; do
    root=$dir/$suite
    if [ ! -e "$root/made-with-jemalloc" ]; then
        say "making $root"
        rm -rf "$root"
        mirror=$(archive_address '' || true)
        debootstrap --variant=minbase --include=gcc,libc6-dev,libjemalloc2 "$suite" "$root" ${mirror:+"$mirror"} >"$dir/log" ||
            { tail -n 5 "$dir/log" >&2 && skip "debootstrap failed (no Debian mirror?)"; }
        touch "$root/made-with-jemalloc"
    fi
    cp tests/workloads/*.[ch] "$root/root/"
    for name in heap leaks sentinel allocating_threads allocations; do
        chroot "$root" gcc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls \
            -o "/$name" "/root/$name.c"
    done
    chroot "$root" gcc -O1 -g -pthread -DJEMALLOC -o /heap-jemalloc /root/heap.c -l:libjemalloc.so.2
    say "$suite: $(chroot "$root" ldd --version | head -n 1)"
    roots=$roots${roots:+:}$root
done
export MEMPROF_TEST_ROOTS=$roots
cargo test --test suite -- --nocapture other_releases
