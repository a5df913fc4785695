# Sourced by check.sh: the network recorder. Two pseudo nodes talk in every way, also by io_uring, sendfile and splice, one of them in a
# control group that is recorded; the recorder must have as many messages as they have written down, each of them right by the
# grammar, and nothing lost. Sets `recorder_result`.
# shellcheck shell=dash disable=SC2154 # group, uname's release and what check.sh defines

recorder=http://127.0.0.1:17732

# Asks the recorder: PATH, to /tmp/reply.
ask() {
    timeout 120 wget -q -O /tmp/reply "$recorder$1" || fail "the recorder does not answer to $1"
}

# Records two nodes that talk: SOURCE, then the options of both.
record_by() {
    source=$1
    shift
    printf '%s\n' "source = \"$source\"" '[[nodes]]' 'name = "node"' 'http_v3 = 0' "db = \"/tmp/recorder-$source\"" \
        "cgroup = \"$group\"" 'pow = 8' 'p2p = { identity = "/tmp/listens.json", port = 9732 }' >/tmp/recorder.toml
    rm -f /tmp/listens.log /tmp/listens.out
    sh -c "echo \$\$ >$group/cgroup.procs && exec pseudo_node listen --identity /tmp/listens.json --port 9732 --connections 2 \
        --log /tmp/listens.log $*" >/tmp/listens.out &
    listens=$!
    tries=0
    until grep -q listening /tmp/listens.out; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || fail "the pseudo node does not listen"
        sleep 0.1
    done
    : >/tmp/log
    tezos-recorder run --config /tmp/recorder.toml 2>/tmp/log &
    profiler=$!
    wait_for 'capturing'
    pseudo_node connect 127.0.0.1:9732 --identity /tmp/connects.json --connections 2 "$@" >/tmp/connects.out ||
        fail "the pseudo node that connects ended with status $?"
    wait "$listens" || fail "the pseudo node that listens ended with status $?"
    talked=$(grep -c '"event":"message"' /tmp/listens.log)
    tries=0 recorded=
    until [ "$recorded" = "$talked" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { ask /v4/health && fail "by $source: $talked messages, $recorded recorded: $(cat /tmp/reply)"; }
        sleep 0.2
        ask /v4/nodes
        recorded=$(sed 's/.*"messages":\([0-9]*\).*/\1/' /tmp/reply)
    done
    ask '/v4/messages?error=true&limit=1'
    grep -q '"items":\[\]' /tmp/reply || fail "by $source: a message breaks the grammar: $(cat /tmp/reply)"
    tries=0
    until ask /v4/health && grep -q '"open_connections":0,' /tmp/reply; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "by $source: connections are open: $(cat /tmp/reply)"
        sleep 0.2
    done
    grep -q '"status":"ok"' /tmp/reply || fail "by $source: $(cat /tmp/reply)"
    kill -INT "$profiler"
    wait "$profiler" || fail "the recorder ended with status $?"
    ! grep -qi 'panicked' /tmp/log || fail "the recorder panicked"
    recorder_result="${recorder_result:+$recorder_result; }$recorded of $talked messages by $source"
}

recorder_result=''
began=$(date +%s)
group=/sys/fs/cgroup/node
mkdir "$group"
# A group without processes is a problem, and the nodes end before the recorder is asked.
sh -c "echo \$\$ >$group/cgroup.procs && exec sleep 1000" &
stays=$!
for role in listens connects; do
    pseudo_node identity --out "/tmp/$role.json" || fail "no identity"
done
# The nodes also move bytes past the usual calls. The kernel counts how often they do.
traced=/sys/kernel/tracing/instances/recorder
mkdir "$traced"
for event in io_uring/io_uring_complete syscalls/sys_enter_sendfile64 syscalls/sys_enter_splice; do
    echo 1 >"$traced/events/$event/enable" || fail "the kernel does not count $event"
done
record_by sockets --messages 150 --send any --receive any --chunks any --size 0..5000
counts=''
for way in io_uring_complete: 'sys_sendfile64(' 'sys_splice('; do
    times=$(grep -cF " $way" "$traced/trace")
    [ "$times" -gt 0 ] || fail "the nodes did not use ${way%[:(]}"
    counts="${counts:+$counts, }$times ${way%[:(]}"
done
recorder_result="$recorder_result ($counts)"
rmdir "$traced"
# From 7.0 on, the kernel preempts programs at system calls, and skips them meanwhile: the recorder has gaps, and says so.
case $(uname -r) in
[1-6].*) record_by calls --messages 150 --send writev --receive recvmsg --size 0..5000 ;;
esac
kill "$stays"
wait "$stays" 2>/tmp/ended || true
rmdir "$group"
echo "the recorder, in $(($(date +%s) - began)) s: $recorder_result"
