#!/bin/busybox sh
# shellcheck shell=dash
# In a guest whose clock counts instructions: measures paths without memprof and with it. Prints for each path
# `row NAME PATH MEDIAN LOWEST HIGHEST`, the name of the paths without memprof being `base`, and at the end a line `result: …`.
# tests/vm/init.sh runs it.

wanted=$1

fail() {
    echo "result: $*"
    cat /tmp/log
    exit 1
}

# measure NAME COMMAND…
measure() {
    name=$1
    shift
    "$@" </dev/null >/tmp/counts 2>/tmp/log || fail "$name: $* ended with status $?"
    ! grep -q '^Losses:' /tmp/log || grep -q '^Losses: none' /tmp/log || fail "$name: memprof has lost something"
    sed -n "s/^count /row $name /p; s/^program /program $name /p" /tmp/counts
}

# A process that memprof follows from its first page: followed NAME OPTION… -- PATH….
followed() {
    name=$1 options=
    shift
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # several words
    measure "$name" memprof --no-server $options -- $workload "$@"
}

# Starts a memprof that follows a process which sleeps.
follow_other() {
    sleep 1000000 &
    memprof --no-server --pid $! >/dev/null 2>/tmp/log &
    profiler=$!
    until grep -q 'memprof: following' /tmp/log; do
        kill -0 "$profiler" 2>/dev/null || fail "memprof ended before it followed the process"
        sleep 1
    done
}

workload=instructions
if [ "$wanted" = programs ]; then
    echo 1 >/proc/sys/kernel/bpf_stats_enabled
    workload='instructions --programs'
fi
measure base instructions touch new-stack getppid
followed auto -- touch getppid
followed all --stacks all -- touch new-stack
follow_other
# shellcheck disable=SC2086 # several words
measure other $workload touch getppid
echo "result: measured"
