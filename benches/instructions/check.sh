#!/bin/busybox sh
# shellcheck shell=dash
# In a guest whose clock counts instructions: measures paths without memprof and with it (tests/vm/init.sh runs this).
#
#   check.sh 'counts|programs [NAME…]'     (of the measurements with memprof, those with these names; all of them without one)
#
# Prints for each path `base NAME PATH MEDIAN LOWEST HIGHEST MEMPROF`, without memprof, and `row NAME PATH …`, with it. A path's
# count depends on what its process did before (a fork copies what it has), so both do the same. With `programs` also `program NAME
# PATH PROGRAM RUNS INSTRUCTIONS`, and of what memprof has lost `lost NAME …`. At the end there is a line `result: …`.
what=${1%% *}
names=${1#"$what"}
workload=instructions

fail() {
    echo "result: $*"
    cat /tmp/log
    exit 1
}

is_wanted() {
    case "${names:- $1} " in *" $1 "*) ;; *) return 1 ;; esac
}

# measure base|row NAME COMMAND…
measure() {
    kind=$1 name=$2
    shift 2
    "$@" </dev/null >/tmp/counts 2>/tmp/log || fail "$name: $* ended with status $?"
    sed -n "s/^count /$kind $name /p; s/^program /program $name /p" /tmp/counts
}

# Where the kernel preempts its own code, it preempts a hook now and then, and does not report what comes meanwhile.
print_losses() {
    sed -n "/^Losses: none/d; /^Losses:/,/^\$/s/^  *[0-9]/lost $1 &/p" /tmp/log
}

# A process that memprof follows from its first page: followed NAME OPTION… -- PATH….
followed() {
    name=$1 options=
    shift
    is_wanted "$name" || return 0
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    measure base "$name" instructions "$@"
    # shellcheck disable=SC2086 # several words
    measure row "$name" memprof --no-server $options -- $workload "$@"
    print_losses "$name"
}

# A process beside one that sleeps, which memprof follows: beside NAME PATH….
beside() {
    name=$1
    shift
    is_wanted "$name" || return 0
    measure base "$name" instructions "$@"
    # At an address of its own: memprof's filter of processes depends on it.
    echo 2 >/proc/sys/kernel/randomize_va_space
    sleep 1000000 &
    memprof --no-server --pid $! >/dev/null 2>/tmp/memprof.log &
    profiler=$!
    until grep -q 'memprof: following' /tmp/memprof.log; do
        kill -0 "$profiler" 2>/dev/null || { cp /tmp/memprof.log /tmp/log && fail "$name: memprof ended early"; }
        sleep 1
    done
    echo 0 >/proc/sys/kernel/randomize_va_space
    # shellcheck disable=SC2086 # several words
    measure row "$name" $workload "$@"
    kill "$profiler"
    wait "$profiler"
}

# A thread of memprof that is woken would otherwise be charged with what the interrupted one still does in the kernel before it lets go
# of the processor: the scheduler does not read the clock again then.
echo NO_WAKEUP_PREEMPTION >/sys/kernel/debug/sched/features
# The cost of a walk depends on the addresses: how far the stack reaches beyond main's frame, for example. So they are the same in each run,
# and the environment is as large as a usual one.
echo 0 >/proc/sys/kernel/randomize_va_space
ENVIRONMENT=$(printf %3000s x)
export ENVIRONMENT
if [ "$what" = programs ]; then
    echo 1 >/proc/sys/kernel/bpf_stats_enabled
    workload='instructions --programs'
fi
followed auto -- start touch copy huge file mmap brk getppid read thread fork spawn
followed all --stacks all -- touch new-stack copy
followed all-fp --stacks all --unwind fp -- touch new-stack
followed all-off --stacks all --unwind off -- touch
followed off --stacks off -- touch
followed forks --follow-forks -- fork spawn
followed heap --heap --heap-interval 1GiB -- malloc
followed heap-sample --heap --heap-interval 0 -- malloc
followed exact --heap=exact --duration 3600 -- malloc
beside other touch file mmap getppid read thread fork spawn
echo "result: measured"
