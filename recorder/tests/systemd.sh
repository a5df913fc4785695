#!/usr/bin/env bash
# Tests recorder/tezos-recorder.service under a real systemd: with the privileges that the unit leaves, `doctor` finds nothing missing,
# for a node that is a unit of another user, with an identity that only this user may read. systemd is process 1 of new namespaces on
# this kernel, over this machine's root (tests/systemd/machine.sh).
#
#   recorder/tests/systemd.sh [BINARY]      (target/debug/tezos-recorder without an argument)
#
# Exit status 77 means skipped; the reason is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

skip() {
    report_skipped "systemd: $*"
    exit 77
}

binary=${1:-target/debug/tezos-recorder}
[ -x "$binary" ] || die "$binary is not there: cargo build -p tezos-recorder"
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in /lib/systemd/systemd systemctl unshare nsenter /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
[ -n "$groups" ] || skip "no control groups of version 2 are mounted"

group=$groups/recorder-test-$$
work=$(mktemp -d -p /var/tmp)
mkdir "$work/machine" "$group"
# The pid of the machine's process 1 in this namespace, and the process that waits for it.
machine='' waiting=''

inside() { nsenter -t "$machine" -a "$@"; }

clean_up() {
    local status=$?
    # The kernel ends all processes in its pid namespace, too.
    [ -z "$machine" ] || kill -KILL "$machine" 2>/dev/null || true
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

# Repeats a command for up to 15 s until it succeeds: until_so DESCRIPTION COMMAND…
until_so() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 150; tries++)); do
        ! "$@" >"$work/last" 2>&1 || return 0
        sleep 0.1
    done
    die "not within 15 s: $what; $(tail -n 20 "$work/last")"
}

/usr/bin/python3 -c 'import json, sys
print(json.dumps(json.load(open("recorder/tests/data/vectors.json"))["identities"]["initiator"]))' >"$work/identity.json"
cat >"$work/node.service" <<'END'
[Service]
User=nobody
StateDirectory=node
ExecStartPre=/bin/sh -c 'umask 077; cp /srv/memprof-test/identity.json /var/lib/node; mkdir -p /var/lib/node/daily-logs; : >/var/lib/node/daily-logs/daily-20260102.log'
ExecStart=/usr/bin/python3 -uc 'import socket, time; s = socket.create_server(("127.0.0.1", 9732)); print("a line"); time.sleep(600)'
END
cat >"$work/config.toml" <<'END'
[[nodes]]
name = "node"
p2p = { identity = "/var/lib/node/identity.json", port = 9732 }
log = { unit = "node.service", data_dir = "/var/lib/node", socket = "/run/tezos-recorder/log", port = 10000, keep = { bytes = "1MiB" } }
keep = { bytes = "1MiB" }
END
cat >"$work/doctor.conf" <<'END'
[Service]
Type=oneshot
ExecStart=
ExecStart=/usr/local/bin/tezos-recorder doctor --json --config /etc/tezos-recorder/config.toml
Restart=no
StandardOutput=file:/srv/memprof-test/report.json
END
cp "$binary" "$work/tezos-recorder"

# shellcheck disable=SC2016 # the inner shell fills it in
bash -c 'echo $$ >"$0/cgroup.procs" && exec setsid unshare --mount --pid --uts --ipc --net --cgroup --fork "$@"' "$group" \
    sh tests/systemd/machine.sh "$work/machine" "$work"/{tezos-recorder,identity.json,node.service,config.toml,doctor.conf} \
    recorder/tezos-recorder.service </dev/null >"$work/log" 2>&1 &
waiting=$!
for _ in {1..100}; do
    read -r machine _ <"/proc/$waiting/task/$waiting/children" || true
    ! grep -q 'are mounted' "$work/log" || break
    kill -0 "$waiting" 2>/dev/null || skip "such namespaces are not possible here: $(tail -n 1 "$work/log")"
    sleep 0.1
done
[ -n "$machine" ] || die "the machine did not start: $(cat "$work/log")"
until_so "systemd runs" inside systemctl is-active -q basic.target

# As the unit's first lines say.
inside sh -euc 'cd /srv/memprof-test && ip link set lo up
install -D -m 0755 tezos-recorder /usr/local/bin/tezos-recorder
install -D -m 0644 tezos-recorder.service node.service /etc/systemd/system
install -D -m 0644 config.toml /etc/tezos-recorder/config.toml
install -D -m 0644 doctor.conf /etc/systemd/system/tezos-recorder.service.d/doctor.conf
systemctl daemon-reload && systemctl start node'
until_so "the journal has the node's line" inside sh -c 'journalctl -q -o cat -u node | grep -x "a line"'
inside systemctl start tezos-recorder || die "doctor fails: $(inside cat /srv/memprof-test/report.json)"
inside cat /srv/memprof-test/report.json >"$work/report.json"
/usr/bin/python3 - "$work/report.json" <<'END'
import json, sys
checks = json.load(open(sys.argv[1]))["checks"]
for check in checks:
    print(check["status"], check["name"], check["found"])
names = [check["name"] for check in checks if check["node"]]
assert names == ["identity", "process", "database", "logs", "logs", "logs", "logs"], names
assert all(check["status"] == "ok" for check in checks)
END
echo "the unit's privileges suffice"
