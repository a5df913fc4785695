#!/usr/bin/env bash
# Builds the container image, and profiles from inside a container: a process of the host, a process in another
# container, and the same with the rights that docs/deploy/daemonset.yaml gives memprof.
#
#   tests/container.sh [--build-only]
#
# Base images are made with debootstrap, because a test must not depend on an image registry. Every step of the
# Dockerfile is run. To save minutes, `cargo` in the build stage copies the binary that was built on this
# machine, and `apt-get` there only simulates an installation. With MEMPROF_TEST_FULL=1, or if this machine
# has another Debian release than the image, the build stage gets this machine's Rust toolchain and compiles.
# Exit status 77: skipped, with the reason printed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=tests/container/lib.sh
source tests/container/lib.sh

build_only=false
[ "${1-}" != --build-only ] || build_only=true

skip() {
    report_skipped "container: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in podman buildah runc debootstrap curl; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
need_rust

image=localhost/memprof-test
container=memprof-test-$$
other=memprof-test-target-$$
url=http://127.0.0.1:17832
work=$(mktemp -d -p /var/tmp)
# Sends a request. The pod asks for a token, and has a network of its own.
client=(curl)
# The process id of light-node on the host, while it runs.
target=''

clean_up() {
    local status=$? name
    [ -z "$target" ] || { kill -CONT "$target" && kill -TERM "$target"; } 2>/dev/null || true
    for name in "$container" "$other"; do
        podman container exists "$name" || continue
        if [ "$status" -ne 0 ]; then
            say "output of $name:"
            podman logs "$name" >&2 || true
        fi
        podman rm -f -t 1 "$name" >/dev/null 2>&1 || true
    done
    wait
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# ---- The image. ----

# The base with this machine's memprof.
make_prebuilt_base() {
    build_base=localhost/memprof-test-prebuilt
    # Together, so that both use the same build of the library, which the benchmarks have already made.
    cargo build -q --release --bin memprof --example light-node
    make_stubs target/release/memprof "build --release --locked --bin memprof"
}

make_build_base() {
    if must_compile; then
        make_rust_base
    else
        make_prebuilt_base
    fi
}

check_version() {
    local version wanted
    say "starting the binary in the container"
    version=$(run_podman run --rm "${options[@]}" "$image" --version)
    printf 'memprof --version in the container: %s\n' "$version"
    wanted=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    [ "$version" = "memprof $wanted" ] || die "expected: memprof $wanted"
}

# ---- memprof in a container, and its reports. ----

options=(--privileged --network=host --pid=host "${limits[@]}" -v /sys/kernel/debug:/sys/kernel/debug)

# Starts memprof, which waits for a light-node to start, so that its first pages are also checked.
start_memprof() {
    ! curl -s -o /dev/null "$url" || die "something listens on port 17832 already: stop it first"
    run_podman run -d --name "$container" "${options[@]}" "$image" --comm light-node >/dev/null
    wait_served
}

# For a minute at most.
wait_served() {
    local tries
    for ((tries = 0; tries < 120; tries++)); do
        ! "${client[@]}" -sf -o /dev/null "$url/v1/pid" || return 0
        [ "$(podman inspect -f '{{.State.Running}}' "$container")" = true ] || die "memprof ended early"
        sleep 0.5
    done
    die "memprof does not serve"
}

# Starts memprof as the DaemonSet does: tests/container/pod.py makes options of its YAML.
start_pod() {
    local pid pod
    mkdir -m 700 "$work/secret"
    (umask 077 && od -An -N 16 -tx1 /dev/urandom | tr -d ' \n' >"$work/secret/token" && chmod 400 "$work/secret/token")
    pod=$(/usr/bin/python3 tests/container/pod.py docs/deploy/daemonset.yaml "$work/secret" "$work/seccomp.json" "$image") ||
        die "tests/container/pod.py knows no option for what docs/deploy/daemonset.yaml asks for"
    mapfile -t pod <<<"$pod"
    printf 'podman run %s\n' "${pod[*]}"
    run_podman run -d --name "$container" --network=none "${limits[@]}" "${pod[@]}" >/dev/null
    pid=$(podman inspect -f '{{.State.Pid}}' "$container")
    client=(nsenter -t "$pid" -n curl -H "Authorization: Bearer $(cat "$work/secret/token")")
    wait_served
    expect_rights "$pid"
}

# That the options did what they say: none of these would be noticed otherwise, as more rights suffice, too.
expect_rights() {
    local status wanted
    status=$(cat "/proc/$1/status")
    for wanted in 'NoNewPrivs:	1' 'Seccomp:	2'; do
        grep -qx "$wanted" <<<"$status" || die "memprof's process has no '$wanted': $status"
    done
    ! nsenter -t "$1" -m touch /etc/memprof-test 2>/dev/null || die "the pod's root can be written"
    [ "$(nsenter -t "$1" -n curl -s -o /dev/null -w '%{http_code}' "$url/v2/summary")" = 401 ] ||
        die "memprof asks for no token"
}

stop_memprof() {
    local code
    run_podman stop -t 15 "$container" >/dev/null
    code=$(podman inspect -f '{{.State.ExitCode}}' "$container")
    [ "$code" -eq 0 ] || die "memprof ended with status $code after podman stop"
    podman rm "$container" >/dev/null
}

# Requests until there is a reply, for at most 30 s.
ask() {
    local tries
    for ((tries = 0; tries < 60; tries++)); do
        "${client[@]}" -sf "$url$1" && return 0
        kill -0 "$target" 2>/dev/null || die "light-node ended early"
        sleep 0.5
    done
    die "no answer from $url$1 within 30 s"
}

expect_target() {
    local tries pid
    # The reply is 0 until memprof follows the target.
    for ((tries = 0; tries < 60; tries++)); do
        pid=$(ask /v1/pid)
        [ "$pid" = 0 ] || break
        sleep 0.5
    done
    case $pid in
    *"$target"*) ;;
    *) die "/v1/pid answers $pid, light-node's process id is $target" ;;
    esac
}

expect_functions() {
    local tries tree function unnamed
    for ((tries = 0; tries < 60; tries++)); do
        tree=$(ask '/v1/tree?threshold=0')
        unnamed=''
        for function in block_cache::grow peer::receive_buffer file_store::write_block; do
            case $tree in
            *"$function"*) ;;
            *) unnamed=$function ;;
            esac
        done
        [ -n "$unnamed" ] || return 0
        sleep 1
    done
    die "the call tree does not name $unnamed"
}

# Anonymous memory in KiB of the only process, by the reply.
anon_of_tree() {
    ask '/v1/tree?short=true' | grep -oE '"anon": *[0-9]+' | grep -oE '[0-9]+'
}

# The figure of a stopped process does not change; a report of it must equal that figure.
expect_kernel_figure() {
    local tries kernel ours anon=${1-anon_of_tree}
    kill -STOP "$target"
    kernel=$(awk '/^Anonymous:/ { print $2 }' "/proc/$target/smaps_rollup")
    for ((tries = 0; tries < 30; tries++)); do
        ours=$("$anon")
        [ "$ours" != "$kernel" ] || break
        sleep 0.5
    done
    kill -CONT "$target"
    printf 'resident anonymous memory: memprof %s KiB, kernel %s KiB\n' "$ours" "$kernel"
    [ "$ours" = "$kernel" ] || die "the figures differ"
}

expect_cross_origin_header() {
    local headers
    headers=$(curl -s -D - -o /dev/null -H 'Origin: http://elsewhere.example' "$url/v1/pid")
    printf '%s' "$headers" | grep -qi '^access-control-allow-origin: \*' ||
        die "no Access-Control-Allow-Origin: * in the answer's headers: $headers"
}

profile_host() {
    say "profiling light-node of the host from the container"
    start_memprof
    target/release/examples/light-node --dir "$work" --cache-mib 32 &
    target=$!
    expect_target
    expect_functions
    expect_cross_origin_header
    expect_kernel_figure
    stop_memprof
    kill -TERM "$target"
    wait "$target"
    target=''
}

# An ordinary container: its own namespaces, no privileges, an executable without a path in memprof's container.
start_other_container() {
    run_podman run -d --name "$other" --network=none "${limits[@]}" \
        -v "$PWD/target/release/examples/light-node:/opt/light-node:ro" \
        "$base" /opt/light-node --cache-mib 32 >/dev/null
    target=$(podman inspect -f '{{.State.Pid}}' "$other")
    [ "$(readlink "/proc/$target/ns/pid")" != "$(readlink /proc/self/ns/pid)" ] ||
        die "the target has no process ids of its own"
}

profile_other_container() {
    say "profiling light-node in another container"
    start_memprof
    start_other_container
    expect_target
    expect_functions
    expect_kernel_figure
    stop_memprof
    run_podman stop -t 15 "$other" >/dev/null
    podman rm "$other" >/dev/null
    target=''
}

# Anonymous memory in KiB of one of several processes, by the reply.
anon_of_row() {
    ask /v2/processes | /usr/bin/python3 -c 'import json, sys
rows = json.load(sys.stdin)["rows"]
print(next((row["total"]["anon"] // 1024 for row in rows if row["pid"] == int(sys.argv[1])), "nothing"))' "$target"
}

# With exactly the rights that the DaemonSet gives.
profile_from_pod() {
    say "profiling light-node in another container with the rights of the DaemonSet"
    /usr/bin/python3 -c 'import yaml' 2>/dev/null ||
        { report_skipped "container: the DaemonSet's pod: python3-yaml is not installed" && return; }
    start_pod
    start_other_container
    expect_functions
    expect_kernel_figure anon_of_row
    stop_memprof
    run_podman stop -t 15 "$other" >/dev/null
    podman rm "$other" >/dev/null
    client=(curl)
    target=''
}

make_base
check_runtime
make_build_base
build_image Dockerfile
check_version
! $build_only || exit 0
cargo build -q --release --example light-node
profile_host
profile_other_container
profile_from_pod
printf 'container: passed\n'
