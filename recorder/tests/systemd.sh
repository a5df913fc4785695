#!/usr/bin/env bash
# Tests recorder/tezos-recorder.service under a real systemd. Two pseudo nodes are units of another user, with identities that only
# this user may read. With the privileges that the unit leaves, `doctor` finds nothing missing, and the recorder has every message of
# both nodes, also after they were restarted, which gives them new control groups, and after the recorder was killed. Stopped, it
# leaves its database, and nothing else. systemd is process 1 of new namespaces on this kernel, over this machine's root
# (tests/systemd/machine.sh).
#
#   recorder/tests/systemd.sh [DIRECTORY]      (of the programs: target/debug without an argument)
#
# Exit status 77 means skipped; the reason is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

skip() {
    report_skipped "recorder's systemd: $*"
    exit 77
}

programs=${1:-target/debug}
[[ -x $programs/tezos-recorder && -x $programs/examples/pseudo_node ]] ||
    die "$programs has not both programs: cargo build -p tezos-recorder --bin tezos-recorder --example pseudo_node"
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in /lib/systemd/systemd systemctl unshare nsenter setpriv /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
[ -n "$groups" ] || skip "no control groups of version 2 are mounted"

group=$groups/recorder-test-$$
place=/srv/memprof-test
url=http://127.0.0.1:17732
work=$(mktemp -d -p /var/tmp)
mkdir "$work/machine" "$group"
# The pid of the machine's process 1 in this namespace, and the process that waits for it.
machine='' waiting=''

inside() { nsenter -t "$machine" -a "$@"; }

clean_up() {
    local status=$?
    if [ -n "$machine" ]; then
        if [ "$status" -ne 0 ]; then
            say "output of the recorder, the nodes and systemd:"
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

# ---- The machine. ----

# Writes a pseudo node's unit: NAME COMMAND…. Each run of it has a log of its own of what it sends and receives.
make_unit() {
    local name=$1
    shift
    cat >"$work/$name.service" <<END
[Service]
Type=exec
User=nobody
StateDirectory=$name
ExecStartPre=/bin/sh -c 'umask 077; cp $place/$name.json /var/lib/$name/identity.json; mkdir -p /var/lib/$name/daily-logs; : >>/var/lib/$name/daily-logs/daily-20260102.log'
ExecStart=$* --identity /var/lib/$name/identity.json --log /var/lib/$name/\${INVOCATION_ID}.log --messages 100 --size 0..20000
END
}

make_files() {
    local name
    for name in node peer; do
        "$programs/examples/pseudo_node" identity --out "$work/$name.json" >/dev/null
        # User nobody copies it.
        chmod 644 "$work/$name.json"
    done
    make_unit node "$place/pseudo_node" listen --port 9732 --connections 100
    make_unit peer /bin/sh -c "'until [ -e /run/go ]; do sleep 0.05; done; exec \"\$\$@\"' sh" \
        "$place/pseudo_node" connect 127.0.0.1:9732 --connections 2
    cat >"$work/config.toml" <<END
[[nodes]]
name = "node"
http_v3 = 17742
pow = 8
p2p = { identity = "/var/lib/node/identity.json", port = 9732 }
log = { unit = "node.service", data_dir = "/var/lib/node", socket = "/run/tezos-recorder/log", mode = "0622", port = 10000, keep = { bytes = "1MiB" } }
keep = { bytes = "64MiB" }

[[nodes]]
name = "peer"
http_v3 = 17743
pow = 8
p2p = { identity = "/var/lib/peer/identity.json", port = 1 }
unit = "peer.service"
keep = { bytes = "64MiB" }
END
    cat >"$work/doctor.conf" <<END
[Service]
Type=oneshot
ExecStart=
ExecStart=/usr/local/bin/tezos-recorder doctor --json --config /etc/tezos-recorder/config.toml
Restart=no
StandardOutput=file:$place/report.json
END
}

boot() {
    # shellcheck disable=SC2016 # the inner shell fills it in
    bash -c 'echo $$ >"$0/cgroup.procs" && exec setsid unshare --mount --pid --uts --ipc --net --cgroup --fork "$@"' "$group" \
        sh tests/systemd/machine.sh "$work/machine" "$programs"/{tezos-recorder,examples/pseudo_node} \
        "$work"/{{node,peer}.{json,service},config.toml,doctor.conf} recorder/{tezos-recorder.service,tests/compare.py} \
        </dev/null >"$work/log" 2>&1 &
    waiting=$!
    for _ in {1..100}; do
        read -r machine _ <"/proc/$waiting/task/$waiting/children" || true
        ! grep -q 'are mounted' "$work/log" || break
        kill -0 "$waiting" 2>/dev/null || skip "such namespaces are not possible here: $(tail -n 1 "$work/log")"
        sleep 0.1
    done
    [ -n "$machine" ] || die "the machine did not start: $(cat "$work/log")"
    until_so 15 "systemd runs" inside systemctl is-active -q basic.target
    # As the unit's first lines say.
    inside sh -euc "cd $place && ip link set lo up
install -D -m 0755 tezos-recorder /usr/local/bin/tezos-recorder
install -D -m 0644 tezos-recorder.service node.service peer.service /etc/systemd/system
install -D -m 0644 config.toml /etc/tezos-recorder/config.toml
systemctl daemon-reload && systemctl start node peer"
}

# ---- What the recorder says, and what is true. ----

# A property of a unit, from `systemctl show`.
state() { inside systemctl show -p "$2" --value "$1"; }

expect_state() {
    local is
    is=$(state "$1" "$2")
    [ "$is" = "$3" ] || die "$2 of $1 is $is, not $3"
}

# Requests a path, and prints the value of a Python expression of `reply`: ask PATH EXPRESSION
ask() {
    inside /usr/bin/python3 -c 'import json, sys, urllib.request
reply = json.load(urllib.request.urlopen(sys.argv[1], timeout=10))
print(eval(sys.argv[2]))' "$url$1" "$2"
}

# Whether the recorder captures the control group of a unit.
captures() { [ "$(ask /v4/health "any(group.endswith('/$1.service') for group in reply['capture']['cgroups'])")" = True ]; }

has_ended() { [ "$(state "$1" ActiveState)" = inactive ]; }

# The peer opens its connections once the recorder is attached to its new control group.
talk() {
    until_so 15 "the node's control group is captured" captures node
    until_so 15 "the peer's control group is captured" captures peer
    inside touch /run/go
    until_so 15 "the peer has ended" has_ended peer
    inside rm /run/go
    expect_state peer Result success
}

# Compares all that both nodes have written down with what is recorded: expect_messages WHEN RUNS
expect_messages() {
    local name logs
    for name in node peer; do
        # In the order of their last lines.
        mapfile -t logs < <(inside sh -c "ls -tr /var/lib/$name/*.log")
        [ "${#logs[@]}" -eq "$2" ] || [ "$name" = node ] || die "the peer has ${#logs[@]} logs, not $2"
        inside /usr/bin/python3 "$place/compare.py" "$url" "$name" "${logs[@]}" || die "$name, $1: other messages"
    done
}

# A line by each way but the journal, from another user.
send_lines() {
    inside setpriv --reuid=nobody --clear-groups /usr/bin/python3 -c 'import socket
line = b"<29>1 2026-01-02T03:04:05Z - octez - - - by %s"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(line % b"UDP", ("127.0.0.1", 10000))
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(line % b"socket", "/run/tezos-recorder/log")'
    inside sh -c 'echo "by file" >>/var/lib/node/daily-logs/daily-20260102.log'
}

# Those of the journal from the last two seconds before the kill may be there twice.
has_lines() {
    ask "/v4/logs?node=node&limit=1000" "'\\n'.join({item['message'] for item in reply['items']})" |
        grep -v '^listening ' | LC_ALL=C sort >"$work/lines"
    { printf 'by %s\n' UDP socket file && inside journalctl -q -o cat -u node -g '^(opened|closed) '; } | LC_ALL=C sort |
        diff - "$work/lines"
}

# Lists the BPF objects of the recorder, which also runs journalctl.
list_held() {
    local pid what
    while read -r pid; do
        /usr/bin/python3 tests/systemd/bpf.py held "$pid"
    done <"$group/system.slice/tezos-recorder.service/cgroup.procs" >"$work/held"
    for what in prog map link; do
        grep -q "$what" "$work/held" || die "the recorder holds no BPF $what"
    done
}

nothing_left() { [ -z "$(/usr/bin/python3 tests/systemd/bpf.py left <"$work/held")" ]; }

# ---- The tests. ----

expect_doctor() {
    inside install -D -m 0644 "$place/doctor.conf" /etc/systemd/system/tezos-recorder.service.d/doctor.conf
    inside systemctl daemon-reload
    until_so 15 "the journal has the node's line" inside sh -c 'journalctl -q -o cat -u node | grep "^listening"'
    inside systemctl start tezos-recorder || die "doctor fails: $(inside cat "$place/report.json")"
    inside cat "$place/report.json" | /usr/bin/python3 -c 'import json, sys
checks = json.load(sys.stdin)["checks"]
for check in checks:
    print(check["status"], check["name"], check["found"])
names = [check["name"] for check in checks if check["node"]]
assert names == ["identity", "process", "database", "logs", "logs", "logs", "logs", "identity", "process", "database"], names
# The machine is a container.
wrong = [check["name"] for check in checks if check["status"] != "ok"]
assert wrong == ["pid namespace"], wrong'
    inside rm -r /etc/systemd/system/tezos-recorder.service.d
    inside systemctl daemon-reload
}

# Its own user, and no more rights than the unit says.
expect_rights() {
    local status wanted
    status=$(inside cat "/proc/$(state tezos-recorder MainPID)/status")
    for wanted in 'NoNewPrivs:	1' 'Seccomp:	2' 'CapBnd:	000000c000081004' 'Umask:	0077'; do
        grep -qx "$wanted" <<<"$status" || die "the recorder's process has no '$wanted': $status"
    done
    [ "$(awk '/^Uid:/ { print ($2 >= 61184 && $2 <= 65519) }' <<<"$status")" = 1 ] || die "not a dynamic user: $status"
}

# Its database is its own, and the only thing of its user.
expect_files() {
    local wrong
    # shellcheck disable=SC2016 # the inner shell fills it in
    wrong=$(inside sh -euc 'cd /var/lib/private/tezos-recorder
for node in node peer; do
    [ "$(find "$node" -type f -size +0 | wc -l)" -ge 3 ] || echo "$node has no database"
done
find . ! \( -type d -perm 0700 -o -type f -perm 0600 \) -ls
find /dev/shm /run /tmp /var/tmp /var/cache/private -uid +61183 -uid -65520 -ls 2>/dev/null || true')
    [ -z "$wrong" ] || die "wrong files: $wrong"
}

make_files
boot
expect_doctor
echo "the unit's privileges suffice"
inside systemctl start tezos-recorder
expect_rights
talk
expect_messages "at first" 1
say "restarting the nodes"
inside systemctl restart node peer
talk
expect_messages "after they were restarted" 2
say "killing the recorder"
list_held
inside systemctl kill -s KILL tezos-recorder
until_so 15 "the BPF objects of the killed recorder are gone" nothing_left
until_so 15 "systemd has started it again" inside systemctl is-active -q tezos-recorder
expect_state tezos-recorder NRestarts 1
inside systemctl start peer
talk
expect_messages "after the recorder was killed" 3
send_lines
until_so 15 "all lines of logs are recorded" has_lines
expect_state tezos-recorder NRestarts 1
say "stopping the recorder"
list_held
inside systemctl stop tezos-recorder
expect_state tezos-recorder Result success
expect_state tezos-recorder ExecMainStatus 0
until_so 15 "no BPF object is left" nothing_left
expect_files
printf 'systemd: passed in %s s\n' "$SECONDS"
