#!/usr/bin/env bash
# Fuzzes the readers of other people's files, guided by coverage (cargo-fuzz). An input must cause no panic, no
# invalid memory access, no excessive memory use and no hang.
#
#   scripts/fuzz.sh [TARGET…]      (table, symbols, saved, names, heap, core, recorder and recorder_text without an argument)
#   scripts/fuzz.sh --build        (builds them and the tool, and runs none)
#
# MEMPROF_TEST_SECS: seconds for each target, default 20. MEMPROF_TEST_SEED: seed, default 1. Runs with the same
# seed try the same inputs, except that each run continues from target/fuzz/corpus/, which keeps inputs that
# reached new code. An input that fails is kept in target/fuzz/found/.
#
# The address sanitizer is an unstable option of stable compilers, so RUSTC_BOOTSTRAP enables it. A compiler
# without the sanitizer's runtime builds without it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

MAX_MEMORY=512 # MiB resident, or in one allocation
LONGEST=20      # seconds for one input, in a build that is ten times slower than memprof's

out=target/fuzz
tools=$PWD/target/tools
host=$(rustc -vV | sed -n 's/^host: //p')
seconds=${MEMPROF_TEST_SECS:-20} seed=${MEMPROF_TEST_SEED:-1}

sanitizer=none
if compgen -G "$(rustc --print target-libdir)/librustc-*_rt.asan.a" >/dev/null; then
    sanitizer=address
    export RUSTC_BOOTSTRAP=1
fi

build() {
    PATH=$PATH:$tools/bin cargo fuzz build --sanitizer "$sanitizer" --codegen-units 16 --target-dir "$out"
}

# The last value of a figure in libFuzzer's log, as in "cov: 12".
figure() { grep -o "$1:* *[0-9]*" "$2" | tail -1 | grep -o '[0-9]*$'; }

fuzz() {
    local target=$1 binary=$out/$host/release/$1 log=$out/$1.log input
    local corpus=$out/corpus/$1 seeds=tests/corpus
    [ "$target" != saved ] || seeds=tests/corpus-saved
    mkdir -p "$corpus" "$out/found"
    # Files say nothing to these: they make sound heaps, cores, connections and texts from nothing, and change them.
    [[ $target != heap && $target != core && $target != recorder* ]] || seeds=$corpus
    if ASAN_OPTIONS=detect_odr_violation=0:detect_stack_use_after_return=0:quarantine_size_mb=16 \
        "$binary" "$corpus" "$seeds" -seed="$seed" -max_total_time="$seconds" -timeout="$LONGEST" \
        -rss_limit_mb="$MAX_MEMORY" -detect_leaks=0 -print_final_stats=1 \
        -artifact_prefix="$out/found/$target-" 2>"$log"; then
        printf '%s: %s inputs, %s a second, %s branches reached, corpus of %s, peak of %s MiB\n' "$target" \
            "$(figure number_of_executed_units "$log")" "$(figure average_exec_per_sec "$log")" \
            "$(figure cov "$log")" "$(figure corp "$log")" "$(figure peak_rss_mb "$log")"
        return
    fi
    grep -v -e '^#[0-9]' -e NEW_FUNC "$log" | tail -n 60
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    printf 'FAILED: %s; the log is %s\n' "$target" "$log"
    [ -z "$input" ] || printf 'The input is %s; to run it again:\n  %s %s\n' "$input" "$binary" "$input"
    return 1
}

[ "${1-}" != --build ] || only_build=1
[ $# -gt 0 ] || set -- table symbols saved names heap core recorder recorder_text
command -v cargo-fuzz >/dev/null || [ -x "$tools/bin/cargo-fuzz" ] ||
    cargo install -q --debug --locked --root "$tools" cargo-fuzz
began=$SECONDS
build
printf 'built in %s s, sanitizer: %s\n' $((SECONDS - began)) "$sanitizer"
[ -z "${only_build-}" ] || exit 0
status=0
for target; do fuzz "$target" || status=1; done
exit "$status"
