#!/usr/bin/env bash
# Builds the container image and profiles a process of the host from inside the container.
#
#   tests/container.sh [--build-only]
#
# Base images are made here (debootstrap, and this machine's Rust toolchain for the build stage),
# because a test must not depend on an image registry. Exit status 77: skipped, the reason printed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

build_only=false
[ "${1-}" != --build-only ] || build_only=true

skip() {
    printf 'SKIPPED container: %s\n' "$*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in podman buildah runc debootstrap curl; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
need_rust

suite=bookworm
base=localhost/memprof-test-base:$suite
rust_base=localhost/memprof-test-rust:$(rustc -V | cut -d' ' -f2)
image=localhost/memprof-test
container=memprof-test-$$
work=$(mktemp -d -p /var/tmp)
node=''

stop() {
    local status=$?
    if [ "$status" -ne 0 ] && podman container exists "$container"; then
        say "what memprof said in the container:"
        podman logs "$container" >&2 || true
    fi
    [ -z "$node" ] || { kill -CONT "$node" && kill -TERM "$node" && wait "$node"; } 2>/dev/null || true
    podman rm -f -t 0 "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

make_base() {
    podman image exists "$base" && return 0
    say "making $base with debootstrap"
    debootstrap --variant=minbase "$suite" "$work/base" >"$work/log" ||
        { tail -n 5 "$work/log" >&2 && skip "debootstrap failed (no Debian mirror?)"; }
    tar -C "$work/base" -c . | podman import -q - "$base" >/dev/null
    rm -rf "$work/base"
}

# The base with this machine's Rust toolchain in /usr/local.
make_rust_base() {
    podman image exists "$rust_base" && return 0
    say "making $rust_base from this machine's toolchain"
    local sysroot from
    sysroot=$(rustc --print sysroot)
    from=$(buildah from "$base")
    buildah copy -q "$from" "$sysroot/bin" /usr/local/bin >/dev/null
    buildah copy -q "$from" "$sysroot/lib" /usr/local/lib >/dev/null
    buildah commit -q --rm "$from" "$rust_base" >/dev/null
}

# Crates come from this machine's cache, fetched before: the build itself is offline.
build_image() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo}
    cargo fetch --locked -q
    say "building the image"
    buildah bud --isolation chroot --layers -q -t "$image" \
        --build-arg "BUILD_BASE=$rust_base" --build-arg "BASE=$base" \
        -v "$cargo_home/registry:/root/.cargo/registry:ro" --env CARGO_NET_OFFLINE=true . >/dev/null
    podman image exists "$image" || die "the image was not built"
}

run_podman() { podman --runtime runc --cgroup-manager=cgroupfs "$@"; }

options=(--privileged --network=host --pid=host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024
    -v /sys/kernel/debug:/sys/kernel/debug)

make_base
make_rust_base
build_image
say "starting the binary in the container"
version=$(run_podman run --rm "${options[@]}" "$image" --version)
printf 'memprof --version in the container: %s\n' "$version"
wanted=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$version" = "memprof $wanted" ] || die "expected: memprof $wanted"
! $build_only || exit 0

cargo build -q --release --example light-node
url=http://127.0.0.1:17832
! curl -s -o /dev/null "$url" || die "something listens on port 17832 already: stop it first"
say "profiling light-node of the host from the container"
run_podman run -d --name "$container" "${options[@]}" "$image" --comm light-node >/dev/null
# It waits before the program starts, whose first pages are looked for: a minute at most.
for ((tries = 0; tries < 120; tries++)); do
    ! curl -sf -o /dev/null "$url/v1/pid" || break
    sleep 0.5
done
target/release/examples/light-node --dir "$work" --cache-mib 32 &
node=$!

# Asks until the answer is there: 30 s at most.
ask() {
    local tries
    for ((tries = 0; tries < 60; tries++)); do
        curl -sf "$url$1" && return 0
        kill -0 "$node" 2>/dev/null || die "light-node ended early"
        sleep 0.5
    done
    die "no answer from $url$1 within 30 s"
}

# Before the target is followed the answer is 0.
for ((tries = 0; tries < 60; tries++)); do
    pid=$(ask /v1/pid)
    [ "$pid" = 0 ] || break
    sleep 0.5
done
case $pid in
*"$node"*) ;;
*) die "/v1/pid answers $pid, light-node's process id is $node" ;;
esac
for ((tries = 0; tries < 60; tries++)); do
    tree=$(ask '/v1/tree?threshold=0')
    unnamed=''
    for function in block_cache::grow peer::receive_buffer file_store::write_block; do
        case $tree in
        *"$function"*) ;;
        *) unnamed=$function ;;
        esac
    done
    [ -n "$unnamed" ] || break
    sleep 1
done
[ -z "$unnamed" ] || die "the call tree does not name $unnamed"
origin=$(curl -s -D - -o /dev/null -H 'Origin: http://elsewhere.example' "$url/v1/pid")
printf '%s' "$origin" | grep -qi '^access-control-allow-origin: \*' ||
    die "no Access-Control-Allow-Origin: * in the answer's headers: $origin"

# Stopped, the process has one true figure; a report that is taken then must equal it.
kill -STOP "$node"
kernel=$(awk '/^Anonymous:/ { print $2 }' "/proc/$node/smaps_rollup")
for ((tries = 0; tries < 30; tries++)); do
    short=$(ask '/v1/tree?short=true')
    ours=$(printf '%s' "$short" | grep -oE '"anon": *[0-9]+' | grep -oE '[0-9]+')
    [ "$ours" != "$kernel" ] || break
    sleep 0.5
done
printf 'resident anonymous memory: memprof %s KiB, kernel %s KiB\n' "$ours" "$kernel"
[ "$ours" = "$kernel" ] || die "the figures differ"
kill -CONT "$node"

say "stopping the container"
run_podman stop -t 15 "$container" >/dev/null
code=$(podman inspect -f '{{.State.ExitCode}}' "$container")
[ "$code" -eq 0 ] || die "memprof ended with status $code after podman stop"
printf 'container: passed\n'
