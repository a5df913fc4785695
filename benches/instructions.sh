#!/usr/bin/env bash
# Counts the instructions that memprof adds to one page fault, one system call and so on, in guests whose clock counts
# instructions. Unlike times, these counts do not depend on the load of the machine.
#
#   benches/instructions.sh [SERIES…]      (default: 6.12 newest)
#   benches/instructions.sh --programs [SERIES…]
#                          (what each BPF program takes; the kernel's measurement makes the whole dearer)
#
# MEMPROF=PATH measures this memprof, instead of target/release/memprof. The kernels are those of tests/vm.sh. Needs what that
# needs, and gcc.
#
# QEMU emulates one processor and advances its clock by a nanosecond for each instruction (-icount shift=0). The CPU time of
# the measured process is therefore its number of instructions, in user space and in the kernel; memprof's own threads have their
# own CPU time.
set -uo pipefail
[ -z "${MEMPROF-}" ] || MEMPROF=$(realpath "$MEMPROF") || exit 1
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/arm64.sh
source scripts/arm64.sh
# shellcheck source=tests/vm/guest.sh
source tests/vm/guest.sh

memprof=${MEMPROF:-target/release/memprof}
cache=${MEMPROF_VM_CACHE:-$HOME/.cache/memprof-vm}
boot_limit=1800 # seconds, on a busy machine
# Without it, the kernel may stop trusting its clock, whose pace it compares with that of the emulated devices.
kernel_arguments='tsc=reliable'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

build_guest() {
    build_base benches/instructions/check.sh || return 1
    mkdir -p "$work/more/bin"
    strip -o "$work/more/bin/memprof" "$memprof" || return 1
    gcc -std=gnu11 -O2 -g -pthread -fno-omit-frame-pointer -fno-optimize-sibling-calls -o "$work/more/bin/instructions" \
        benches/workloads/instructions.c || return 1
    build_more "$work/more"
}

# Without `erms`, the kernel clears a page by 512 instructions of 8 bytes instead of 4,096 of one byte: a processor needs far less
# time for them than for so many other instructions, and memprof's share would appear too small.
count_on() {
    local series=$1 image nonce=$RANDOM$RANDOM$RANDOM out=$work/out status
    image=$(image_of "$series") || die "$series: there is no image of this kernel"
    : >"$out"
    boot "$image" "$nonce" "$wanted" "$out" -machine pc -accel tcg,thread=single -icount shift=0,sleep=off -smp 1 -cpu max,-erms
    tr -d '\r' <"$out" >"$out.text"
    status=$(sed -n "s/^VM-EXIT:$nonce:\([0-9]*\)\$/\1/p" "$out.text")
    [ "$status" = 0 ] || { cat "$out.text" && tail -n 20 "$work/console" "$work/qemu" && die "$series: not measured"; }
    "print_$wanted" <"$out.text"
}

print_counts() {
    awk '
        $1 == "guest" { kernel = $2 }
        $1 == "row" && $2 == "base" { base[$3] = $4 }
        $1 == "row" && $2 != "base" { names[++n] = $2; paths[n] = $3; figures[n] = $4; spread[n] = $6 - $5 }
        END {
            printf "\n| Linux %s | base | with memprof | added | ratio | spread |\n|---|---|---|---|---|---|\n", kernel
            for (i = 1; i <= n; i++) {
                b = base[paths[i]]
                printf "| %s %s | %.0f | %.0f | %.0f | %.2f | %.0f |\n", names[i], paths[i], b, figures[i], figures[i] - b,
                    figures[i] / b, spread[i]
            }
        }'
}

# What each of memprof's BPF programs takes of an operation, by the kernel's own measurement of their run time.
print_programs() {
    awk '
        $1 == "guest" { printf "\n| Linux %s | program | runs per operation | instructions per operation | per run |\n|---|---|---|---|---|\n", $2 }
        $1 == "program" && $2 != "base" { printf "| %s %s | %s | %.2f | %.0f | %.0f |\n", $2, $3, $4, $5, $6, $6 / $5 }'
}

wanted=counts
[ "${1-}" != --programs ] || { wanted=programs && shift; }
[ $# -gt 0 ] || set -- 6.12 newest
apt_there=true
prepare_apt amd64 || { apt_there=false && say "cannot reach Debian's archive; using only the kept images"; }
find_emulator
build_guest || die "cannot assemble the guest's files"
for series; do count_on "$series"; done
