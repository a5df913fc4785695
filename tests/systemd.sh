#!/usr/bin/env bash
# Tests docs/deploy/memprof.service under a real systemd. systemd is process 1 of new namespaces on this kernel, over this
# machine's root (tests/systemd/machine.sh). The commands at the beginning of the unit install it.
#
# Exit status 77 means skipped; the reason is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

skip() {
    report_skipped "systemd: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in /lib/systemd/systemd systemctl unshare nsenter curl openssl /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
[ -n "$groups" ] || skip "no control groups of version 2 are mounted"
need_rust

group=$groups/memprof-test-$$
place=/srv/memprof-test
url=http://127.0.0.1:17832
work=$(mktemp -d -p /var/tmp)
mkdir "$work/machine"
# The pid of the machine's process 1 in this namespace, and the process that waits for it.
machine='' waiting=''

inside() { nsenter -t "$machine" -a "$@"; }

clean_up() {
    local status=$?
    if [ -n "$machine" ]; then
        if [ "$status" -ne 0 ]; then
            say "output of memprof and systemd:"
            inside journalctl --no-pager -o cat -n 60 >&2 || true
        fi
        # The kernel ends all processes in its pid namespace, too.
        kill -KILL "$machine" 2>/dev/null || true
    fi
    [ -z "$waiting" ] || wait "$waiting" 2>/dev/null || true
    for _ in {1..100}; do
        [ -d "$group" ] || break
        find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        sleep 0.1
    done
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

boot() {
    local log=$work/log
    mkdir "$group"
    # shellcheck disable=SC2016 # the inner shell fills it in
    bash -c 'echo $$ >"$0/cgroup.procs" && exec setsid unshare --mount --pid --uts --ipc --net --cgroup --fork "$@"' "$group" \
        sh tests/systemd/machine.sh "$work/machine" target/release/memprof target/release/examples/light-node \
        docs/deploy/memprof.service docs/deploy/record.conf </dev/null >"$log" 2>&1 &
    waiting=$!
    for _ in {1..100}; do
        read -r machine _ <"/proc/$waiting/task/$waiting/children" || true
        ! grep -q 'are mounted' "$log" || break
        kill -0 "$waiting" 2>/dev/null || skip "such namespaces are not possible here: $(tail -n 1 "$log")"
        sleep 0.1
    done
    [ -n "$machine" ] || die "the machine did not start: $(cat "$log")"
    until_so 15 "systemd runs: $(cat "$log")" inside systemctl is-active -q basic.target
}

# ---- memprof's answers and the kernel's figures. ----

# Requests a path with the token: ask METHOD PATH
ask() { inside curl -sf -X "$1" -H "Authorization: Bearer $token" "$url$2"; }

main_pid() { inside systemctl show -p MainPID --value "$1"; }

# A property of the unit, from `systemctl show`.
state() { inside systemctl show -p "$1" --value memprof; }

expect_state() {
    local is
    is=$(state "$1")
    [ "$is" = "$2" ] || die "$1 of the unit is $is, not $2"
}

# The target's anonymous memory in KiB, according to memprof.
anon_of_row() {
    ask GET /v2/processes | /usr/bin/python3 -c 'import json, sys
rows = json.load(sys.stdin)["rows"]
print(next((row["total"]["anon"] // 1024 for row in rows if row["pid"] == int(sys.argv[1])), "nothing"))' "$target"
}

has_kernel_figure() {
    local ours kernel
    ours=$(anon_of_row)
    # shellcheck disable=SC2016 # awk fills it in
    kernel=$(inside awk '/^Anonymous:/ { print $2 }' "/proc/$target/smaps_rollup")
    echo "memprof: $ours KiB, kernel: $kernel KiB"
    [ "$ours" = "$kernel" ]
}

# Stops the target, which belongs to another user, so that both figures are of one state.
expect_kernel_figure() {
    inside kill -STOP "$target"
    until_so 15 "the figures are equal" has_kernel_figure
    cat "$work/last"
    inside kill -CONT "$target"
}

names_functions() {
    ask GET '/v2/tree?threshold=0' >"$work/tree"
    grep -q block_cache::grow "$work/tree" && grep -q peer::receive_buffer "$work/tree"
}

# Installs a drop-in with these lines, as `systemctl edit` does.
drop_in() {
    inside mkdir -p /etc/systemd/system/memprof.service.d
    { echo '[Service]' && printf '%s\n' "$@"; } | inside tee /etc/systemd/system/memprof.service.d/override.conf >/dev/null
    inside systemctl daemon-reload
}

drop_nothing() {
    inside rm -r /etc/systemd/system/memprof.service.d
    inside systemctl daemon-reload
    inside systemctl reset-failed memprof
}

# Lists files of dynamic users, in the directories that such a user can write to. memprof runs as a dynamic user.
files() {
    inside find /dev/shm /run /tmp /var/tmp /var/lib/private /var/cache/private -uid +61183 -uid -65520 2>/dev/null || true
}

nothing_left() {
    [ -z "$(/usr/bin/python3 tests/systemd/bpf.py left <"$work/held" | tee "$work/left")" ] || { cat "$work/left" && return 1; }
}

# The pid in this namespace of a process in the machine's pid namespace.
outer_pid() {
    local pid
    while read -r pid; do
        ! grep -qE "^NSpid:.*\s$1$" "/proc/$pid/status" || echo "$pid"
    done < <(find "$group/system.slice/memprof.service" -name cgroup.procs -exec cat {} +)
}

# ---- The tests. ----

install_unit() {
    local commands
    commands=$(sed -n 's/^#   \(install\|(umask\|systemctl\) /\1 /p' docs/deploy/memprof.service)
    [ "$(grep -c '' <<<"$commands")" -eq 5 ] || die "the unit does not begin with five commands: $commands"
    say "installing the unit by its own commands"
    inside sh -euc "cd $place; $(sed '$d' <<<"$commands")"
    # memprof must be ready when this command returns.
    inside sh -euc "$(sed -n '$p' <<<"$commands")"
    token=$(inside cat /etc/memprof/token)
    ask GET /v2/summary >/dev/null || die "the unit is started, and memprof does not answer"
    expect_state ActiveState active
    expect_state StatusText "following every process"
}

# Starts a process of another user. Its files are in memory.
start_target() {
    inside systemd-run -q --unit light-node -p User=nobody -p RuntimeDirectory=light-node \
        "$place/light-node" --dir /run/light-node --cache-mib 32
    target=$(main_pid light-node)
}

expect_rights() {
    local status wanted pid
    pid=$(main_pid memprof)
    status=$(inside cat "/proc/$pid/status")
    # CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE.
    for wanted in 'NoNewPrivs:	1' 'Seccomp:	2' 'CapBnd:	000001c000080004'; do
        grep -qx "$wanted" <<<"$status" || die "memprof's process has no '$wanted': $status"
    done
    [ "$(awk '/^Uid:/ { print ($2 >= 61184 && $2 <= 65519) }' <<<"$status")" = 1 ] || die "not a dynamic user: $status"
    [ "$(inside curl -s -o /dev/null -w '%{http_code}' "$url/v2/summary")" = 401 ] || die "memprof asks for no token"
    [ "$(inside curl -s -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer wrong' "$url/v2/summary")" = 401 ] ||
        die "memprof takes a wrong token"
}

expect_whole() {
    local missing
    until_so 15 "functions have names" names_functions
    expect_kernel_figure
    missing=$(ask GET /v2/health | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["missing_programs"])')
    [ "$missing" = '[]' ] || die "the probe has no $missing"
    # With the unit's privileges, `memprof doctor` must find the same as with all privileges, except for page frames.
    drop_in 'ExecStartPre=/usr/local/bin/memprof doctor'
    inside systemctl restart memprof
    inside journalctl --no-pager -o cat "_SYSTEMD_INVOCATION_ID=$(state InvocationID)" >"$work/doctor"
    grep -q 'memprof works here' "$work/doctor" || die "memprof doctor: $(cat "$work/doctor")"
    sed -nE 's/^(ok|degraded|missing) +([^ ].*[^ ])  +.*/\1 \2/p' "$work/doctor" | grep -v ' page frames' | sort >"$work/doctor.unit"
    inside /usr/local/bin/memprof doctor >"$work/doctor.all" || true
    sed -nE 's/^(ok|degraded|missing) +([^ ].*[^ ])  +.*/\1 \2/p' "$work/doctor.all" | grep -v ' page frames' | sort |
        diff - "$work/doctor.unit" || die "memprof doctor finds other things with the unit's rights"
    drop_nothing
    inside systemctl restart memprof
}

expect_ends() {
    local pid before what
    say "restart, kill and stop"
    pid=$(main_pid memprof)
    /usr/bin/python3 tests/systemd/bpf.py held "$(outer_pid "$pid")" >"$work/held"
    for what in prog map; do
        grep -q "$what" "$work/held" || die "memprof (pid $pid) holds no BPF $what"
    done
    inside systemctl restart memprof
    until_so 15 "the BPF objects of the previous memprof are gone" nothing_left
    before=$(main_pid memprof)
    inside kill -KILL "$before"
    until_so 15 "systemd has started it again" inside bash -c "[ \"\$(systemctl show -p MainPID --value memprof)\" != $before ] &&
        systemctl is-active -q memprof"
    ask GET /v2/summary >/dev/null || die "memprof does not answer after it was started again"
    expect_state NRestarts 1
    /usr/bin/python3 tests/systemd/bpf.py held "$(outer_pid "$(main_pid memprof)")" >"$work/held"
    inside systemctl stop memprof
    expect_state Result success
    expect_state ExecMainStatus 0
    until_so 15 "no BPF program and no map is left" nothing_left
    [ -z "$(files)" ] || die "memprof has left files: $(files)"
}

expect_options() {
    local group
    say "other options, right and wrong"
    group=$(inside cat "/proc/$target/cgroup" | sed -n 's/^0:://p')
    drop_in "Environment=\"MEMPROF_OPTIONS=--cgroup /sys/fs/cgroup$group\""
    inside systemctl start memprof
    [[ "$(state StatusText)" = "following /sys/fs/cgroup$group" ]] || until_so 15 "it follows the group" \
        bash -c "nsenter -t $machine -a systemctl show -p StatusText memprof | grep -qF '$group'"
    expect_kernel_figure
    drop_in 'Environment="MEMPROF_OPTIONS=--al"'
    ! inside systemctl restart memprof 2>/dev/null || die "systemctl does not fail with a wrong option"
    until_so 15 "the unit has failed for good" inside systemctl is-failed -q memprof
    expect_state NRestarts 0
    inside systemctl status --no-pager memprof >"$work/status" || true
    grep -q "tip: a similar argument exists: '--all'" "$work/status" ||
        die "systemctl status does not say what is wrong: $(cat "$work/status")"
    # systemd retries other failures a few times.
    drop_in 'Environment="MEMPROF_OPTIONS=--pid 4194303"'
    inside systemctl reset-failed memprof
    ! inside systemctl restart memprof 2>/dev/null || die "systemctl does not fail when memprof does"
    until_so 15 "systemd gives up" inside systemctl is-failed -q memprof
    expect_state NRestarts 5
    drop_nothing
    inside systemctl start memprof
    inside systemctl stop memprof
}

# With the drop-in of the guide, memprof records to its only directory, goes on after a kill, and leaves a file that root opens.
expect_recording() {
    local file=/var/lib/memprof/machine.memprof.db
    say "recording"
    inside install -D -m 0644 "$place/record.conf" /etc/systemd/system/memprof.service.d/record.conf
    inside systemctl daemon-reload
    inside systemctl start memprof
    until_so 15 "a moment is recorded" inside memprof open "$file@end" -o "$place/moment.memprof.json"
    inside systemctl kill -s KILL memprof
    until_so 15 "systemd has started it again" inside systemctl is-active -q memprof
    inside systemctl stop memprof
    inside memprof growth "$file" >"$work/growth" 2>&1 || grep -q 'too short' "$work/growth" || die "growth: $(cat "$work/growth")"
    inside memprof open "$file@peak" -o "$place/moment.memprof.json" || die "the recording cannot be opened after a kill"
    [ "$(inside find /var/lib/memprof/ -name '*.db' -perm 0600 | grep -c '')" -eq 1 ] || die "others can read the recording"
    drop_nothing
    inside sh -c 'rm -r /var/lib/memprof/* /var/lib/private/memprof'
}

cargo build -q --release --bin memprof --example light-node
boot
install_unit
expect_rights
start_target
expect_whole
expect_ends
expect_options
expect_recording
inside systemd-analyze security --no-pager memprof | tail -n 1
printf 'systemd: passed in %s s\n' "$SECONDS"
