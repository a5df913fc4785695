#!/usr/bin/env bash
# Counts the instructions that memprof adds to a page fault, a system call, a process and so on, in guests whose clock counts
# instructions. Unlike times, the counts do not depend on the load of the machine. docs/instructions.md explains the rows.
#
#   benches/instructions.sh [SERIES…]             (default: 6.1 6.12 newest, the kernels of tests/vm.sh)
#   benches/instructions.sh --compare [SERIES…]   (also compares with docs/instructions.md; exit status 1 if a row has risen)
#   benches/instructions.sh --write               (also writes the tables there)
#   benches/instructions.sh --programs [SERIES…]  (what each BPF program takes; the measurement itself makes it dearer)
#
# MEMPROF=PATH measures this memprof instead of target/release/memprof. MEMPROF_BENCH_ROWS='all other' measures only these rows.
# Needs what tests/vm.sh needs, and gcc.
#
# QEMU emulates one processor and advances its clock by a nanosecond for each instruction (-icount shift=0). The CPU time of the
# measured process is therefore its number of instructions, in user space and in the kernel, with the interrupts that arrive
# meanwhile. memprof's threads have their own CPU time.
set -uo pipefail
[ -z "${MEMPROF-}" ] || MEMPROF=$(realpath "$MEMPROF") || exit 1
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/arm64.sh
source scripts/arm64.sh
# shellcheck source=tests/vm/guest.sh
source tests/vm/guest.sh

document=docs/instructions.md
marker='<!-- benches/instructions.sh --write replaces what follows. -->'
series=(6.1 6.12 newest)
memprof=${MEMPROF:-target/release/memprof}
cache=${MEMPROF_VM_CACHE:-$HOME/.cache/memprof-vm}
boot_limit=3600 # seconds, on a busy machine
# The kernel trusts its clock, whose pace it otherwise compares with that of emulated devices, and does not try its ciphers, which takes
# the processor for seconds.
kernel_arguments='tsc=reliable cryptomgr.notests'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

build_guest() {
    local bin=$work/more/bin
    build_base benches/instructions/check.sh && mkdir -p "$bin" && strip -o "$bin/memprof" "$memprof" || return 1
    gcc -std=gnu11 -O2 -g -pthread -fno-omit-frame-pointer -fno-optimize-sibling-calls -o "$bin/instructions" \
        benches/workloads/instructions.c || return 1
    build_more "$work/more" || return 1
    # The program that the path `spawn` runs.
    echo 'int main(void) { return 0; }' | gcc -O2 -static -o "$bin/nothing" -x c - && archive "$work/more" "$work/more.cpio"
}

# Measures in a guest, to $work/out.text. Without the two features, the kernel clears and copies a page by some 700 and 1,300
# instructions. With them it uses one that repeats itself 4,096 times and is counted as often, but takes a processor no longer:
# memprof's share would look smaller than it is.
count_on() {
    local image nonce=$RANDOM$RANDOM$RANDOM out=$work/out status
    image=$(image_of "$1") || die "$1: there is no image of this kernel"
    : >"$out"
    boot "$image" "$nonce" "$what${MEMPROF_BENCH_ROWS:+ $MEMPROF_BENCH_ROWS}" "$out" \
        -machine pc -accel tcg,thread=single -icount shift=0,sleep=off -smp 1 -cpu max,-erms,-fsrm
    tr -d '\r' <"$out" >"$out.text"
    status=$(sed -n "s/^VM-EXIT:$nonce:\([0-9]*\)\$/\1/p" "$out.text")
    [ "$status" = 0 ] || { cat "$out.text" && tail -n 20 "$work/console" "$work/qemu" && die "$1: not measured"; }
}

# The table of a kernel. A start has no base.
print_counts() {
    awk -v series="$1" '
        function row(path, base, count, memprof) {
            base = int(base)
            count = int(count)
            printf "| %s | %.0f | %.0f | %.0f | %s | %.0f |\n", path, base, count, count - base,
                base ? sprintf("%.2f", count / base) : "", memprof
        }
        $1 == "guest" {
            printf "\n## Series %s: Linux %s\n\n", series, $2
            print "| row | base | with memprof | added | ratio | memprof itself |\n|---|---|---|---|---|---|"
        }
        $1 == "base" { base[$2, $3] = $4 }
        $1 == "row" { row($2 " " $3, base[$2, $3], $4, $7) }' "$work/out.text"
}

# What each of memprof's BPF programs takes of an operation, by the time for which the kernel says that it ran.
print_programs() {
    awk -v series="$1" '
        $1 == "guest" {
            printf "\n## Series %s: Linux %s\n\n", series, $2
            print "| row | program | runs per operation | instructions per operation | per run |\n|---|---|---|---|---|"
        }
        $1 == "program" { printf "| %s %s | %s | %.2f | %.0f | %.0f |\n", $2, $3, $4, $5, $6, $6 / $5 }' "$work/out.text"
}

# Compares the tables of two files. Fails if a row has risen: if what memprof adds is more than 3 % more, and more than the counts
# differ from run to run. Counts of different kernels are not judged.
compare() {
    awk -F ' *[|] *' '
        /^## / { series = $0; sub(/:.*/, "", series); kernel = $0; sub(/.*: /, "", kernel) }
        /^## / && FNR == NR { stored_kernel[series] = kernel }
        /^## / && FNR != NR {
            other = stored_kernel[series] != kernel
            printf "\n%s, %s", substr(series, 4), kernel
            if (other) printf "; stored for %s: nothing is judged", stored_kernel[series] ? stored_kernel[series] : "no kernel"
            print "\n\n| row | added, stored | added | difference | |\n|---|---|---|---|---|"
        }
        !/^[|]/ || $3 !~ /^[0-9]/ { next }
        FNR == NR { stored[series, $2] = $5; known[series, $2] = 1; next }
        !known[series, $2] { printf "| %s | | %s | | new |\n", $2, $5; next }
        {
            old = stored[series, $2]
            margin = 0.03 * (old > 0 ? old : 0)
            noise = 5 + 0.005 * $3
            risen = !other && $2 !~ / thread$/ && $5 - old > (margin > noise ? margin : noise)
            if (risen) failed++
            printf "| %s | %s | %s | %+.0f | %s |\n", $2, old, $5, $5 - old, risen ? "RISEN" : ""
        }
        END { exit failed > 0 }' "$1" "$2"
}

write_tables() {
    awk -v marker="$marker" '{ print } $0 == marker { exit }' "$document" >"$work/document" &&
        cat "$work/document" "$work/tables" >"$document"
}

what=counts then=:
case ${1-} in
--programs) what=programs && shift ;;
--compare) then="compare $document $work/tables" && shift ;;
--write)
    shift
    [ -z "$*${MEMPROF_BENCH_ROWS-}" ] || die "--write measures all rows on all of the default kernels"
    then=write_tables
    ;;
-*) die "unknown option: $1; the beginning of this script names those that there are" ;;
esac
[ $# -eq 0 ] || series=("$@")
apt_there=true
prepare_apt amd64 || { apt_there=false && say "cannot reach Debian's archive; using only the kept images"; }
find_emulator
build_guest || die "cannot assemble the guest's files"
for name in "${series[@]}"; do
    count_on "$name"
    sed -n 's/^lost /lost with /p' "$work/out.text" >&2
    "print_$what" "$name" | tee -a "$work/tables"
done
$then
