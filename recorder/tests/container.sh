#!/usr/bin/env bash
# Records pseudo nodes in podman's containers, and compares every message: first with the recorder of the host, which finds one node by
# its port and the other by its control group, then with the recorder's image, which finds the other by its process. A third container
# listens at the same port in a network of its own.
#
#   recorder/tests/container.sh [DIRECTORY]      (of the programs: target/debug without an argument)
#
# The image is built as tests/container.sh builds memprof's: with the recorder of DIRECTORY, or compiled inside with
# MEMPROF_TEST_FULL=1. Exit status 77: skipped, with the reason printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=tests/container/lib.sh
source tests/container/lib.sh

skip() {
    report_skipped "recorder's container: $*"
    exit 77
}

programs=$(realpath "${1:-target/debug}")
[[ -x $programs/tezos-recorder && -x $programs/examples/pseudo_node ]] ||
    die "$programs has not both programs: cargo build -p tezos-recorder --bin tezos-recorder --example pseudo_node"
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in podman buildah runc debootstrap curl /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
[ -n "$groups" ] || skip "no control groups of version 2 are mounted"
need_rust

image=localhost/tezos-recorder-test
url=http://127.0.0.1:17732
work=$(mktemp -d -p /var/tmp)
# The containers, by their roles.
declare -A container=([node]=recorder-test-node-$$ [peer]=recorder-test-peer-$$ [other]=recorder-test-other-$$ [recorder]=recorder-test-$$)
# The recorder's process on the host, while it runs.
recorder=''

remove_containers() {
    local name
    # The peer uses the node's network.
    for name in recorder peer node other; do
        ! podman container exists "${container[$name]}" || podman rm -f -t 1 "${container[$name]}" >/dev/null 2>&1 || true
    done
}

clean_up() {
    local status=$? name
    if [ "$status" -ne 0 ]; then
        for name in "${!container[@]}"; do
            podman container exists "${container[$name]}" || continue
            say "output of $name:"
            podman logs "${container[$name]}" >&2 || true
        done
        ! [ -s "$work/said" ] || { say "output of the recorder:" && cat "$work/said" >&2; }
    fi
    [ -z "$recorder" ] || kill -KILL "$recorder" 2>/dev/null || true
    remove_containers
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# ---- The image. ----

make_build_base() {
    if must_compile; then
        make_rust_base
    else
        build_base=localhost/tezos-recorder-test-prebuilt
        make_stubs "$programs/tezos-recorder" "build --release --locked -p tezos-recorder --bin tezos-recorder"
    fi
}

check_version() {
    local version
    version=$(run_podman run --rm "${limits[@]}" "$image" --version)
    [ "$version" = "$("$programs/tezos-recorder" --version)" ] || die "the image's version is $version"
}

# ---- The nodes. ----

# Starts a pseudo node in a container: ROLE NETWORK COMMAND…. Its directory there is /node.
start_node() {
    local role=$1 network=$2
    shift 2
    rm -rf "${work:?}/$role"
    mkdir "$work/$role"
    "$programs/examples/pseudo_node" identity --out "$work/$role/identity.json" >/dev/null
    run_podman run -d --name "${container[$role]}" --network="$network" "${limits[@]}" \
        -v "$programs/examples/pseudo_node:/opt/pseudo_node:ro" -v "$work/$role:/node" "$base" \
        "$@" --identity /node/identity.json --log /node/log --messages 100 --size 0..20000 >/dev/null
}

# The peer shares the node's network, and opens its connections when it is told to.
start_nodes() {
    start_node node none /opt/pseudo_node listen --port 9732 --connections 2
    # shellcheck disable=SC2016 # the inner shell fills it in
    start_node peer "container:${container[node]}" sh -c 'until [ -e /node/go ]; do sleep 0.05; done; exec "$@"' sh \
        /opt/pseudo_node connect 127.0.0.1:9732 --connections 2
}

pid_of() { podman inspect -f '{{.State.Pid}}' "${container[$1]}"; }

# The control group of a container, below the mount.
group_of() { sed -n 's/^0:://p' "/proc/$(pid_of "$1")/cgroup"; }

# Writes a configuration: DIRECTORY OF THE NODES' DIRECTORIES, DIRECTORY OF DATABASES, where the peer is
write_config() {
    cat >"$work/config.toml" <<END
[[nodes]]
name = "node"
http_v3 = 0
pow = 8
db = "$2/node"
p2p = { identity = "$1/node/identity.json", port = 9732 }

[[nodes]]
name = "peer"
http_v3 = 0
pow = 8
db = "$2/peer"
p2p = { identity = "$1/peer/identity.json", port = 1 }
$3
END
}

# Whether the recorder captures the control group of a container.
captures() {
    curl -sf "$url/v4/health" | /usr/bin/python3 -c 'import json, sys
groups = json.load(sys.stdin)["capture"]["cgroups"]
sys.exit(not any(group.endswith(sys.argv[1]) for group in groups))' "$(group_of "$1")"
}

# Has the nodes talk, and compares what they have written down with what is recorded.
expect_messages() {
    local role ended
    until_so 30 "the node's group is captured" captures node
    until_so 30 "the peer's group is captured" captures peer
    start_node other none /opt/pseudo_node listen --port 9732
    until_so 30 "the other's group is captured" captures other
    touch "$work/peer/go"
    for role in peer node; do
        ended=$(timeout 60 podman wait "${container[$role]}") || die "the $role does not end"
        [ "$ended" = 0 ] || die "the $role ended with status $ended"
        /usr/bin/python3 recorder/tests/compare.py "$url" "$role" "$work/$role/log" || die "other messages of the $role"
    done
}

# ---- The tests. ----

from_host() {
    local status=0
    say "recording two containers from the host"
    start_nodes
    write_config "$work" "$work/db" "cgroup = \"$groups$(group_of peer)\""
    "$programs/tezos-recorder" run --config "$work/config.toml" 2>"$work/said" &
    recorder=$!
    expect_messages
    kill -TERM "$recorder"
    wait "$recorder" || status=$?
    recorder=''
    [ "$status" -eq 0 ] || die "the recorder ended with status $status"
    remove_containers
}

# As the Dockerfile says.
from_container() {
    local code options=(--privileged --pid=host --network=host --cgroupns=host "${limits[@]}" -v /sys/fs/cgroup:/sys/fs/cgroup:ro
        -v "$work:/nodes:ro" -v "$work/data:/var/lib/tezos-recorder")
    say "recording two containers from a third"
    mkdir "$work/data"
    start_nodes
    write_config /nodes /var/lib/tezos-recorder "pid = $(pid_of peer)"
    run_podman run --rm "${options[@]}" "$image" doctor --config /nodes/config.toml
    run_podman run -d --name "${container[recorder]}" "${options[@]}" "$image" run --config /nodes/config.toml >/dev/null
    expect_messages
    run_podman stop -t 15 "${container[recorder]}" >/dev/null
    code=$(podman inspect -f '{{.State.ExitCode}}' "${container[recorder]}")
    [ "$code" -eq 0 ] || die "the recorder ended with status $code after podman stop"
    [ -z "$(find "$work/data" -mindepth 1 ! \( -type d -perm 0700 -o -type f -perm 0600 \))" ] ||
        die "others can read the database: $(find "$work/data" -ls)"
    remove_containers
}

! curl -s -o /dev/null "$url" || die "something listens on port 17732 already: stop it first"
make_base
check_runtime
from_host
make_build_base
build_image recorder/Dockerfile
check_version
from_container
printf 'container: passed in %s s\n' "$SECONDS"
