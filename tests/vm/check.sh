#!/bin/busybox sh
# shellcheck shell=dash
# The end-to-end check inside a guest.
#
#   check.sh full|both|some|told|recorder
#
# `full`: memprof must work. `both`: also with the other hooks of system calls that work here. `some`: without
# most of the scenarios, which take most of the time. `told`: it must work, or `memprof doctor` and memprof's start must
# report what is missing. `recorder`: nothing but the network recorder. On success, the exit status is 0, and there is a line
# `result: …`.
wanted=$1
url=http://127.0.0.1:17832

fail() {
    echo "result: $*"
    [ ! -s /tmp/log ] || { echo '--- what the program said' && cat /tmp/log; }
    exit 1
}

# Waits until memprof, or the recorder, says something. Whoever starts one in the background empties the log before: the shell opens it
# for the new process later, and what the last one has said would be taken for what the new one says.
wait_for() {
    tries=0
    until grep -q "$1" /tmp/log; do
        tries=$((tries + 1))
        kill -0 "$profiler" 2>/dev/null || fail "the program ended early, before it said: $1"
        [ "$tries" -lt 1200 ] || fail "the program did not attach within two minutes, and say: $1"
        sleep 0.1
    done
}

if [ "$wanted" = recorder ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # shellcheck source=tests/vm/recorder.sh
    . /recorder.sh
    echo "result: the recorder: $recorder_result"
    exit 0
fi

echo '--- memprof doctor'
memprof doctor
fit=$?

if [ "$fit" -ne 0 ]; then
    if [ "$wanted" != told ]; then
        # What the verifier says comes last.
        MEMPROF_LIBBPF_LOG=1 memprof doctor 2>&1 >/dev/null | grep -v '^processed' | tail -n 60 >/tmp/log
        fail "doctor says that memprof does not work here"
    fi
    memprof --no-server -- /bin/true >/tmp/log 2>&1
    status=$?
    [ "$status" -eq 1 ] || fail "memprof's start ended with status $status, not 1"
    grep -q 'cannot profile anything here' /tmp/log || fail "the start does not say that it cannot work"
    memprof doctor | sed -n 's/^missing *\([^ ].*[^ ]\)   *.*/\1/p' | sed 's/   *.*//' >/tmp/missing
    [ -s /tmp/missing ] || fail "doctor names nothing missing"
    while read -r what; do
        grep -qF "$what" /tmp/log || fail "the start does not name what doctor does: $what"
    done </tmp/missing
    grep -q 'what to do:' /tmp/log || fail "the start does not say what to do"
    ! grep -qi 'panicked' /tmp/log || fail "memprof panicked"
    echo '--- memprof at its start'
    cat /tmp/log
    echo "result: not supported, and memprof says so: $(tr '\n' ';' </tmp/missing)"
    exit 0
fi

# A command under memprof, from its first page to its end: checks the exit status and the output file.
printf 'mmap 4194304\nexit 7\n' |
    MEMPROF_LIBBPF_LOG=1 memprof --no-server -o /tmp/out.json -- scenarios >/tmp/answers 2>/tmp/log
status=$?
[ "$status" -eq 7 ] || fail "the command ended with 7, memprof with $status"
[ -s /tmp/out.json ] || fail "no profile was written"

# KiB under a function, from a tree in a file.
under() {
    grep -o "\"functionName\":\"$1\"[^}]*},\"value\":[0-9]*" "$2" | sed 's/.*://' | sort -n | tail -n 1
}

# Whether a tree has a function with this many KiB. It may have more if it is the first to run a part of the C
# library: the guest's files are on tmpfs, so their pages are shared memory, of which the kernel maps 64 KiB at once.
holds() {
    local kib
    kib=$(under "$1" "$3")
    if [ "${kib:-0}" -lt "$2" ] || [ "$kib" -gt $(($2 + 64)) ]; then
        fail "$1 holds $2 KiB, the tree says ${kib:-nothing}"
    fi
}

holds cmd_mmap 4096 /tmp/out.json

# The peak of a command that has dropped it, which the file shows by default.
if [ "$wanted" = some ]; then peaks='ramp spikes'; else peaks='ramp teeth spikes dense emptied'; fi
for how in $peaks; do
    memprof --stacks all --no-server -o /tmp/peak.json -- peaks "$how" >/tmp/answers 2>/tmp/log ||
        fail "memprof ended with status $? after a peak: $how"
    holds hold_highest 49152 /tmp/peak.json
    case $how in spikes | dense) holds hold_base 8192 /tmp/peak.json ;; esac
    grep -q 'at its peak (.* KiB VmHWM, after ' /tmp/log || fail "the summary does not name the peak: $how"
    echo "the peak: $how: $(grep 'at its peak' /tmp/log)"
done
# Of several processes, also of those that have ended.
memprof --stacks all --follow-forks --no-server -o /tmp/peak.json --at largest-process -- peaks family \
    </dev/null >/tmp/answers 2>/tmp/log || fail "memprof ended with status $? after the peaks of several processes"
holds hold_highest 49152 /tmp/peak.json
# The kernel's counters lack a few pages.
kib=$(under hold_base /tmp/peak.json)
[ "${kib:-0}" -ge $((8192 - 81)) ] || fail "the child inherited 8192 KiB, the tree says ${kib:-nothing}"
sed -n '/^The highest resident memory of each process/,/^$/p' /tmp/log
[ "$(grep -c '(pid .*, ended), after ' /tmp/log)" -eq 4 ] || fail "the summary does not list four processes"

# How often the programs of a memprof have run.
runs_of() {
    cat "/proc/$1"/fdinfo/* 2>/dev/null | awk '$1 == "run_cnt:" { sum += $2 } END { print sum + 0 }'
}

# Sets `runs` to how often memprof's programs run while a process that it does not follow makes 100,000 system calls. The
# argument is a setting for memprof.
count_for_bystander() {
    sleep 1000 &
    followed=$!
    : >/tmp/log
    env "$@" memprof --no-server --pid "$followed" >/dev/null 2>/tmp/log &
    profiler=$!
    wait_for "following sleep"
    runs=$(runs_of "$profiler")
    printf 'getppid 100000\n' | scenarios >/tmp/answers
    runs=$(($(runs_of "$profiler") - runs))
    kill -INT "$profiler"
    wait "$profiler" || fail "memprof ended with status $?"
    kill "$followed"
    [ "$(cat /tmp/answers)" = ok ] || fail "the workload's command getppid: $(cat /tmp/answers)"
}

# Other processes pay for hooks of all system calls, and not for those of some functions. `hooks` is the kind that memprof
# chooses here, `others` are the other kinds that work here.
case $(memprof doctor | grep '^ok  *system calls') in
*kprobe.multi*) hooks=functions ;;
*'fentry and fexit'*) hooks=trampolines ;;
*) hooks=tracepoints ;;
esac
case "$(uname -m) $(uname -r)" in
"x86_64 6."[1-6].*) expected=trampolines ;;
*" 6."[1-6].*) expected=tracepoints ;;
*) expected=functions ;;
esac
[ "$hooks" = "$expected" ] || fail "the hooks of system calls are $hooks, not $expected: $(memprof doctor | grep 'system calls')"
others=tracepoints
case "$(uname -m) $(cat /sys/kernel/debug/sched/preempt)" in
"x86_64 "*"(none)"* | "x86_64 "*"(voluntary)"*) [ "$hooks" = trampolines ] || others='trampolines tracepoints' ;;
esac
echo 1 >/proc/sys/kernel/bpf_stats_enabled
for kind in $hooks $others; do
    count_for_bystander MEMPROF_SYSCALL_HOOKS="$kind"
    echo "100,000 system calls of another process, $kind: $runs runs of programs"
    case $kind in
    tracepoints) [ "$runs" -ge 200000 ] || fail "the tracepoints missed system calls of another process" ;;
    *) [ "$runs" -lt 20000 ] || fail "system calls that do not change memory have hooks" ;;
    esac
done
echo 0 >/proc/sys/kernel/bpf_stats_enabled

# Sampled allocations: those that are much larger than the interval are exact.
printf 'hold 10 1000000\nchurn 1000 5000\n' |
    MEMPROF_LIBBPF_LOG=1 memprof --heap --heap-interval 4096 --no-server -o /tmp/heap.folded --kind inuse_space \
        -- allocations >/tmp/answers 2>/tmp/log || fail "memprof --heap ended with status $?"
grep -q '^_start;.*;main;hold 10000000$' /tmp/heap.folded ||
    fail "hold has 10,000,000 bytes; memprof says: $(cat /tmp/heap.folded)"

# Smaller ones, of several threads, and some of them freed: 1,680,000 bytes and 1,200,000 are live, in KiB within twice the error
# that memprof states (that of 95 % of all runs). The C library's buffers are below a percent of that.
printf 'threads 100 3000\nhold 3000 700\nchurn 1000 5000\nhold 400 700\nrelease 1000\n' |
    memprof --heap --heap-interval 4096 --no-server -o /tmp/heap.folded --kind inuse_space -- allocations \
        >/tmp/answers 2>/tmp/log || fail "memprof --heap ended with status $?"
truth=$(((400 * 3000 + 2400 * 700) / 1024))
live=$(sed -n 's/^live heap *\([0-9]*\) KiB .*/\1/p' /tmp/log)
error=$(sed -n 's/^live heap .*±\([0-9]*\),.*/\1/p' /tmp/log)
off=$((${live:-0} - truth))
[ "${off#-}" -le $((2 * ${error:-0})) ] || fail "$truth KiB are live, memprof says ${live:-nothing} ±${error:-none}"
cut=$(awk '!/^_start;.*;main;|start_thread;thread_holds |;thread_holds [0-9]*$/ { sum += $NF } END { print sum + 0 }' /tmp/heap.folded)
[ "$cut" -eq 0 ] || fail "stacks of $cut bytes are not complete: $(cat /tmp/heap.folded)"
for function in hold thread_holds; do
    grep -q ";$function [0-9]*\$" /tmp/heap.folded || fail "$function has live allocations; memprof says: $(cat /tmp/heap.folded)"
done
echo "sampled allocations: $truth KiB are live, memprof says $live ±$error KiB"

# Every call of the allocation functions.
printf 'hold 10 1000000\nthreads 100 3000\nrelease 150\nchurn 1000 5000\n' |
    MEMPROF_LIBBPF_LOG=1 memprof --heap=exact --duration 100 --no-server -o /tmp/exact.folded --kind inuse_space \
        -- allocations >/tmp/answers 2>/tmp/log || fail "memprof --heap=exact ended with status $?"
for row in '_start;.*;main;hold;[^;]*malloc 10000000' '.*;thread_holds;[^;]*malloc 750000'; do
    grep -q "^$row\$" /tmp/exact.folded ||
        fail "memprof --heap=exact has no row $row: $(cat /tmp/exact.folded /tmp/log)"
done

# (Guests of 64-bit ARM have no kernel with private stacks.)
# shellcheck source=tests/vm/preempted.sh
[ "$(uname -m)" != x86_64 ] || . /preempted.sh

# What is charged to a control group of version 2, with 8 MiB of anonymous memory, and 4 MiB on a tmpfs that nobody maps.
group=/sys/fs/cgroup/ledger
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir "$group"
mkfifo /tmp/group-in /tmp/group-out
sh -c "echo \$\$ >$group/cgroup.procs && exec scenarios" </tmp/group-in >/tmp/group-out &
pid=$!
exec 3>/tmp/group-in 4</tmp/group-out
for told in 'mmap 8388608' 'write /tmp/unmapped 4194304'; do
    echo "$told" >&3
    read -r answer <&4
    [ "$answer" = ok ] || fail "the workload's command $told: $answer"
done
: >/tmp/log
memprof --cgroup "$group" >/tmp/summary 2>/tmp/log &
profiler=$!
wait_for "serving "
timeout 120 wget -q -O /tmp/group "$url/v2/cgroup" || fail "no answer to /v2/cgroup"
kill -INT "$profiler"
wait "$profiler" || fail "memprof --cgroup ended with status $?"
exec 3>&-
wait "$pid" || fail "the workload ended with status $?"
sed 's/},{"name"/}\n{"name"/g; s/"rows":\[/&\n/' /tmp/group >/tmp/rows
of_row() { sed -n "/^{\"name\":\"$1\"/s/.*\"$2\":\(-\{0,1\}[0-9]*\),.*/\1/p" /tmp/rows; }
usage=$(sed -n 's/.*"usage":\([0-9]*\),.*/\1/p' /tmp/rows)
tolerance=$(sed -n 's/.*"tolerance":\([0-9]*\),.*/\1/p' /tmp/rows)
sum=0
for row in anon shmem file kernel sock hugetlb unexplained; do
    sum=$((sum + $(of_row "$row" charged || echo 0) + 0))
done
[ "$usage" = "$sum" ] || fail "the rows add up to $sum, the usage is $usage"
# A row that is to be WANTED bytes, within the tolerance.
near() {
    off=$(($(of_row "$1" "$2") - $3))
    [ "${off#-}" -le "$tolerance" ] || fail "$1, $2: off by $off, tolerance $tolerance"
}
near unexplained charged 0
near anon difference 0
near shmem charged 4194304
echo "control group: $usage bytes, unexplained $(of_row unexplained charged), tolerance $tolerance"
rm /tmp/unmapped

# A process of a group of version 2 that runs out of memory: seen by the tracepoint, whose argument is another one on older
# kernels, and written with what it held.
group=/sys/fs/cgroup/small
mkdir "$group"
echo 33554432 >"$group/memory.max"
echo 0 >"$group/memory.swap.max" 2>/tmp/no-swap || true
mkfifo /tmp/oom-in /tmp/oom-out
sh -c "echo \$\$ >$group/cgroup.procs && exec scenarios" </tmp/oom-in >/tmp/oom-out &
pid=$!
exec 3>/tmp/oom-in 4</tmp/oom-out
: >/tmp/log
memprof --cgroup "$group" --no-server --on-oom /tmp/oom.memprof.json >/tmp/summary 2>/tmp/log &
profiler=$!
wait_for "following scenarios (pid $pid)"
echo 'mmap 8388608' >&3
read -r answer <&4
[ "$answer" = ok ] || fail "the workload's command mmap 8388608: $answer"
# A scan, of which there is one every 100 ms; a guest is slow.
sleep 5
echo 'mmap 134217728' >&3
! wait "$pid" || fail "the workload was not killed"
exec 3>&- 4<&-
wait "$profiler" || fail "memprof --on-oom ended with status $?"
grep -q 'was killed because memory had run out (OOM): [0-9]* KiB resident' /tmp/log || fail "nobody saw the kill"
memprof open /tmp/oom.memprof.json -o /tmp/oom.json >>/tmp/log 2>&1 || fail "the profile cannot be opened"
held=$(under cmd_mmap /tmp/oom.json)
if [ "${held:-0}" -lt 8192 ] || [ "$held" -gt 32768 ]; then
    fail "cmd_mmap held 8192 to 32768 KiB, the profile says ${held:-nothing}"
fi
echo "OOM kill: $(sed -n 's/.*(OOM): //p' /tmp/log), of which cmd_mmap $held KiB"
rmdir "$group"

# shellcheck source=tests/vm/recorder.sh
. /recorder.sh

# A process that already runs, over HTTP.
[ "$(stat -f -c %T /bin/scenarios)" = tmpfs ] || fail "the guest's root is not a tmpfs"
mkfifo /tmp/in /tmp/out
scenarios </tmp/in >/tmp/out &
pid=$!
exec 3>/tmp/in 4</tmp/out

do_command() {
    echo "$*" >&3
    read -r answer <&4
    [ "$answer" = ok ] || fail "the workload's command $*: $answer"
}

do_command malloc_large 3145728
# The guest's root is a tmpfs: code pages count as shared memory, under the function that runs them first.
# Therefore each function runs once before memprof attaches.
for warm in 'mmap 4096' mremap_grow munmap 'populate 4096' munmap 'brk_grow 4096' brk_trim; do
    do_command "$warm"
done
: >/tmp/log
memprof --pid "$pid" >/tmp/summary 2>/tmp/log &
profiler=$!
wait_for "following scenarios (pid $pid)"
do_command mmap 8388608
do_command mremap_grow
do_command malloc_small 3000
do_command brk_grow 2097152
do_command threads 4
do_command populate 1048576
do_command shared_anon 2097152
do_command mmap 1048576
do_command dontneed
do_command write /ramfs/file 1048576
kill -STOP "$pid"
tries=0
while cat /proc/"$pid"/task/*/stat | grep -qv ') T '; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || fail "the workload does not stop"
    sleep 0.1
done
sleep 0.3
# On some kernels, RssAnon and RssShmem in status lag behind. All files of the guest are on tmpfs, so all
# resident pages are one or the other, except for the kernel's own ([vdso], inode 0).
kernels_sum() {
    awk '/^[0-9a-f]+-/ { file = $5 != 0 }
        $1 == "Rss:" { rss = $2 }
        $1 == "Anonymous:" { sum += file ? rss : $2 }
        END { print sum }' "/proc/$pid/smaps"
}
# khugepaged makes huge pages of a stopped process's memory, too, with the pages that were missing.
tries=0 kernel=
while [ "$kernel" != "$(kernels_sum)" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 10 ] || fail "the memory of the stopped workload changes all the time"
    kernel=$(kernels_sum)
    # Debian's static busybox crashes on wget -T.
    timeout 120 wget -q -O /tmp/tree "$url/v1/tree?threshold=0" || fail "no answer to /v1/tree"
done
# Where there are no tracepoints of page faults, only the followed process pays for its events.
if [ "$(uname -m)" = x86_64 ]; then faults=tracepoints; else faults=thread_events; fi
timeout 120 wget -q -O /tmp/health "$url/v2/health" || fail "no answer to /v2/health"
grep -q "\"fault_hooks\":{\"at\":\"$faults\",\"why\":null}" /tmp/health || fail "faults are not seen at $faults: $(cat /tmp/health)"
value=$(sed 's/^{"value":\([0-9]*\),.*/\1/' /tmp/tree)
cache=$(sed 's/^{"value":[0-9]*,"cacheValue":\([0-9]*\),.*/\1/' /tmp/tree)
resident=$((value - cache))
kill -CONT "$pid"
kill -INT "$profiler"
wait "$profiler"
status=$?
echo "resident: memprof $resident KiB, kernel $kernel KiB; page cache $cache KiB"
sed -n '/^Losses/,/^$/p; /^Stacks/,/^$/p' /tmp/summary
exec 3>&-
wait "$pid" || fail "the workload ended with status $?"
[ "$status" -eq 0 ] || fail "memprof ended with status $status"
[ "$resident" -eq "$kernel" ] || fail "resident: memprof $resident KiB, kernel $kernel KiB"
[ "$cache" -eq 1024 ] || fail "1024 KiB of a file are cached, memprof says $cache KiB"
for row in cmd_mmap:8704 cmd_mremap_grow:8192 cmd_populate:1024 cmd_brk_grow:2048; do
    holds "${row%:*}" "${row#*:}" /tmp/tree
done
! grep -qi 'panicked' /tmp/log || fail "memprof panicked"
grep -q '^Losses:' /tmp/summary || fail "the summary does not say what was lost"
# From 7.0 on, the kernel preempts programs, and skips them meanwhile (docs/limits.md).
case $(uname -r) in
[1-6].*) allowed='none$' ;;
*) allowed='none$\|it preempted the probe$\|system calls, of any process, that the kernel did not report$' ;;
esac
! sed -n '/^Losses:/,/^$/p' /tmp/summary | grep -v "^Losses:\$\|^\$\|$allowed" || fail "memprof reports losses"

# Every way a page can move (of `some`, one for each kind of page), on a disk: files on a tmpfs would be shared memory.
[ "$(stat -f -c %T /disk)" = ext2/ext3 ] || fail "the guest has no disk with ext4"
[ -e /sys/class/zram-control ] || fail "the guest has no zram"
names=
[ "$wanted" != some ] || names='private_memory shared_memory copy_on_write huge_page swap_o ksm file_read fork_both'
run_scenarios() {
    # shellcheck disable=SC2086 # names
    env MEMPROF_TEST_MOVES=/bin/moves MEMPROF_TEST_DIR=/disk MEMPROF_TEST_RESULTS=/tmp/results "$@" \
        test-scenarios $names >/tmp/scenarios.out 2>&1
    status=$?
    [ ! -s /tmp/results ] || sed 's/^/table: /' /tmp/results
    if [ "$status" -ne 0 ]; then
        grep -v '^random: seed' /tmp/scenarios.out
        fail "scenarios: $(tail -n 1 /tmp/scenarios.out)"
    fi
}

if [ "$wanted" = both ]; then
    for kind in $others; do
        run_scenarios MEMPROF_TEST_SECS=2 MEMPROF_SYSCALL_HOOKS="$kind"
        echo "with hooks at $kind: $(tail -n 1 /tmp/scenarios.out)"
        rm -f /tmp/results
    done
fi
run_scenarios MEMPROF_TEST_SECS=6
grep ' s)$' /tmp/scenarios.out
grep '^random: [0-9]' /tmp/scenarios.out
scenarios=$(tail -n 1 /tmp/scenarios.out)
echo "result: resident $resident KiB and page cache $cache KiB equal the kernel's; hooks of system calls: $hooks; $scenarios; the recorder: $recorder_result"
