#!/bin/busybox sh
# shellcheck shell=dash
# Sourced by check.sh: many threads hit memprof's programs at once, in a kernel that preempts its own code. It must survive
# that, and each stack must be a whole one: a program that another thread's run disturbs finds other callers. Kernels that
# preempt only if they are told to are told so meanwhile.
modes=/sys/kernel/debug/sched/preempt
preempts=$(sed -n 's/.*(\(.*\)).*/\1/p' $modes)
case $preempts:${wanted-} in
full:both | lazy:both) seconds=20 ;;
full:* | lazy:*) seconds=8 ;;
*) seconds=5 && echo full >$modes ;;
esac

# whole WHAT FUNCTION OTHERS [CUT]: the profile has stacks of the function, of several depths, and each of its rows is a whole
# stack of the threads that preempt each other, or one that the pattern OTHERS describes. With the pattern CUT, at most a hundredth of
# it are stacks like this instead.
whole() {
    stack="^[^;]*;\([^;]*;\)\?work;\(deep;\)\{0,20\}$2\(;[^;]*\)* [0-9]*\$"
    [ "$(grep -c "$stack" /tmp/preempted.folded)" -ge 3 ] ||
        fail "$1 of threads that preempt each other: stacks are missing: $(cat /tmp/preempted.folded)"
    grep -v "$stack\|$3" /tmp/preempted.folded >/tmp/others
    ! grep -v "${4-^\$}" /tmp/others >/tmp/torn ||
        fail "$1 of threads that preempt each other: stacks are torn: $(cat /tmp/torn)"
    awk '{ sum[FILENAME] += $NF } END { exit 100 * sum["/tmp/others"] > sum["/tmp/preempted.folded"] }' \
        /tmp/others /tmp/preempted.folded ||
        fail "$1 of threads that preempt each other: too many stacks are cut off: $(cat /tmp/others)"
    ! grep 'hash collision' /tmp/log || fail "$1 of threads that preempt each other: stacks are torn"
}

# stress WHAT OPTION…: a profile of the workload.
stress() {
    what=$1
    shift
    memprof "$@" --no-server -o /tmp/preempted.folded -- preempted "$what" 8 "$seconds" >/tmp/answers 2>/tmp/log ||
        fail "memprof $*, of threads that preempt each other, ended with status $?"
    grep -q "done" /tmp/answers || fail "memprof $*: the threads that preempt each other did not end"
}

stress faults --stacks all
# (The loader's pages, those of the C library's code for a new thread, and those of the threads' own stacks are there, too.)
whole faults fault "^_start;\|^ld-linux\|^[^;]*\(;[^;]*\)\? [0-9]*\$\|^[^;]*;[^;]*;[^w]\|;work\(;deep\)* [0-9]*\$"
stress heap --heap=exact --duration 600 --kind alloc_space
whole --heap=exact allocate "^_start;"
stress heap --heap --heap-interval 2048 --kind alloc_space
whole --heap allocate "^_start;"
stress marks --heap
grep -q 'mark 2 "' /tmp/log || fail "marks of threads that preempt each other are missing: $(tail -n 20 /tmp/log)"

preempted heap 8 600 >/tmp/answers &
pid=$!
memprof attach-heap --yes --wait 60 --heap-interval 2048 --pid "$pid" >/tmp/log 2>&1 ||
    fail "memprof attach-heap, of threads that preempt each other, ended with status $?"
: >/tmp/log
memprof --heap --no-server -o /tmp/preempted.folded --kind alloc_space --pid "$pid" >/tmp/summary 2>/tmp/log &
profiler=$!
wait_for "following preempted"
sleep "$seconds"
kill -INT "$profiler"
wait "$profiler" || fail "memprof --heap after attach-heap ended with status $?"
# (The library has just been loaded, and memprof attached: the first samples may come before the code is known, or while it is noted.)
cut="^\[cut off: code in no known file\];"
whole attach-heap allocate "^_start;" "$cut\(report_alloc\|\(deep;\)\{0,20\}allocate\(;[^;]*\)*\) [0-9]*\$"
kill "$pid"

echo "threads that preempt each other, preemption $(cat $modes): no stack is torn"
echo "$preempts" >$modes
