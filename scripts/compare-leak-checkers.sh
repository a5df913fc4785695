#!/usr/bin/env bash
# Compares the unreachable blocks that memprof, valgrind's memcheck and LeakSanitizer find in the workloads that forget
# some, and prints a table: blocks, and bytes as the program asked for them (memprof: bytes of chunks, which are rounded up).
#
#   scripts/compare-leak-checkers.sh [MEMPROF]      (target/debug/memprof without an argument)
#
# Needs root, gcc, g++, rustc and valgrind. Rust's own LeakSanitizer needs an unstable compiler. GCC's is preloaded there, as
# part of AddressSanitizer: with the library that has only LeakSanitizer, Rust programs crash at their start (GCC 12).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

memprof=$PWD/${1-target/debug/memprof}
[ -x "$memprof" ] || die "there is no $memprof: run cargo build"
command -v valgrind >/dev/null || die "valgrind is not installed"
work=$(mktemp -d)
workload=''
clean_up() {
    [ -z "$workload" ] || kill "$workload" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
sources=$PWD/tests/workloads

for flags in '' -fsanitize=leak; do
    gcc -O1 -g -pthread ${flags:+"$flags"} -o "$work/leaks$flags" "$sources/leaks.c"
    g++ -O1 -g -pthread ${flags:+"$flags"} -o "$work/classes$flags" "$sources/classes.cpp"
done
rustc --edition 2021 -g -o "$work/boxes" "$sources/boxes.rs"

# Blocks and bytes that memprof finds.
by_memprof() {
    local fifo=$work/$1.fifo out=$work/$1.out
    rm -f "$fifo" && mkfifo "$fifo"
    "$work/$1" <"$fifo" >"$out" &
    workload=$!
    exec 9>"$fifo"
    # It prints a line when it is ready.
    until [ -s "$out" ]; do sleep 0.1; done
    timeout 60 "$memprof" heap --pid "$workload" --format json |
        python3 -c 'import json, sys; lost = json.load(sys.stdin)["unreachable"]; print(lost["chunks"], lost["bytes"])'
    exec 9>&-
    wait "$workload"
    workload=''
}

# What is lost, directly and through other lost blocks; then what is lost perhaps.
by_memcheck() {
    timeout 120 valgrind --leak-check=full "$work/$1" </dev/null 2>&1 >/dev/null | awk '
        { gsub(",", "") }
        / (definitely|indirectly) lost: / { bytes += $4; blocks += $7 }
        / possibly lost: / { possibly = $7 }
        END { print blocks + 0, bytes + 0, possibly + 0 }'
}

by_lsan() {
    local program=$work/$1-fsanitize=leak preloaded=
    if [ ! -x "$program" ]; then
        program=$work/$1 preloaded=$(gcc -print-file-name=libasan.so)
    fi
    # (The program's name has a "=" in it, which env would take for a variable.)
    # shellcheck disable=SC2016
    { timeout 60 sh -c 'LD_PRELOAD=$1 exec "$2"' sh "$preloaded" "$program" </dev/null 2>&1 >/dev/null || true; } |
        awk '/^SUMMARY/ { print $7, $3; found = 1 } END { if (!found) print 0, 0 }'
}

printf '%-10s%20s%30s%20s\n' workload memprof 'memcheck (and "possibly")' LeakSanitizer
for name in leaks classes boxes; do
    read -r blocks bytes < <(by_memprof "$name")
    read -r lost lost_bytes possibly < <(by_memcheck "$name")
    read -r leaked leaked_bytes < <(by_lsan "$name")
    printf '%-10s%9s %10s%12s %10s %6s%9s %10s\n' "$name" "$blocks" "$bytes" "$lost" "$lost_bytes" "$possibly" \
        "$leaked" "$leaked_bytes"
done
