#!/usr/bin/env bash
# What an exact window costs: CPU time of programs with `memprof --heap=exact` as ratio to the same without, medians of
# RUNS alternating pairs. Run it as root.
#
#   RUNS=5 scripts/bench-exact.sh [MEMPROF]
set -euo pipefail
cd "$(dirname "$0")/.."
memprof=${1:-target/release/memprof}
runs=${RUNS:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -fno-builtin -o "$work/malloc_loop" benches/workloads/malloc_loop.c

# A preloaded library writes the CPU time of its process in ms when that ends.
cat >"$work/timed.c" <<'TIMED'
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static __attribute__((destructor)) void tell(void)
{
	struct timespec t;
	FILE *out = fopen(getenv("RESULT"), "w");

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	if (out)
		fprintf(out, "%ld\n", t.tv_sec * 1000 + t.tv_nsec / 1000000);
}
TIMED
cc -O2 -shared -fPIC -o "$work/timed.so" "$work/timed.c"
export RESULT=$work/time

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

bench() {
    local name=$1
    shift
    rm -f "$work/with" "$work/without"
    for ((i = 0; i < runs; i++)); do
        LD_PRELOAD=$work/timed.so "$@" >/dev/null
        cat "$RESULT" >>"$work/without"
        "$memprof" --heap=exact --duration 3600 --no-server -- env LD_PRELOAD="$work/timed.so" "$@" >/dev/null 2>&1
        cat "$RESULT" >>"$work/with"
    done
    awk -v name="$name" -v with="$(median <"$work/with")" -v without="$(median <"$work/without")" \
        'BEGIN { printf "| %s | %.1f (%d ms, not %d) |\n", name, with / without, with, without }'
}

sql='WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200000) SELECT count(*), sum(length(hex(randomblob(20)))) FROM n;'
python='x = [str(i) * 3 for i in range(300000)]; del x[::2]; print(sum(len(s) for s in x))'
# shellcheck disable=SC2016 # backquotes of Markdown
bench '`free(malloc(64))`' "$work/malloc_loop" 64 1000000
bench 'sqlite3' sqlite3 :memory: "$sql"
bench 'CPython' /usr/bin/python3 -S -c "$python"
# shellcheck disable=SC2016
bench 'CPython, `PYTHONMALLOC=malloc`' env PYTHONMALLOC=malloc /usr/bin/python3 -S -c "$python"
