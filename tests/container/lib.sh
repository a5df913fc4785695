# Shared by tests/container.sh and recorder/tests/container.sh: base images, and images that are built on them. Who sources this has
# `image`, the name of the image to build, `work`, a directory, and the function `skip`.
# shellcheck shell=bash disable=SC2154

suite=bookworm
base=localhost/memprof-test-base:$suite
# The base of the build stage, and whether it compiles.
build_base='' compiles=false

limits=(--ulimit nofile=1024:1024 --ulimit nproc=1024:1024)
run_podman() { podman --runtime runc --cgroup-manager=cgroupfs "$@"; }

make_base() {
    local mirror
    podman image exists "$base" && return 0
    say "making $base with debootstrap"
    mirror=$(archive_address '' || true)
    debootstrap --variant=minbase "$suite" "$work/base" ${mirror:+"$mirror"} >"$work/log" ||
        { tail -n 5 "$work/log" >&2 && skip "debootstrap failed (no Debian mirror?)"; }
    tar -C "$work/base" -c . | podman import -q - "$base" >/dev/null
    rm -rf "$work/base"
}

# Some sandboxes do not permit containers, which is no error of memprof.
check_runtime() {
    run_podman run --rm --privileged --network=host --pid=host "${limits[@]}" "$base" true 2>"$work/log" ||
        skip "podman cannot run a container here: $(tail -n 1 "$work/log")"
}

# Copies directories into the base, and names the resulting image: NAME FROM TO [FROM TO]…
derive_base() {
    local name=$1 from
    shift
    from=$(buildah from "$base")
    while [ $# -gt 0 ]; do
        buildah copy -q "$from" "$1" "$2" >/dev/null
        shift 2
    done
    buildah commit -q --rm "$from" "$name" >/dev/null
}

# The base with this machine's Rust toolchain in /usr/local.
make_rust_base() {
    local sysroot
    build_base=localhost/memprof-test-rust:$(rustc -V | cut -d' ' -f2)
    compiles=true
    podman image exists "$build_base" && return 0
    say "making $build_base from this machine's toolchain"
    sysroot=$(rustc --print sysroot)
    derive_base "$build_base" "$sysroot/bin" /usr/local/bin "$sysroot/lib" /usr/local/lib
}

# Whether programs of this machine are of no use in the image, or are not to be used.
must_compile() {
    local release
    # shellcheck source=/dev/null
    release=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    [ "${MEMPROF_TEST_FULL-}" = 1 ] || [ "$release" != "$suite" ]
}

# Stubs for the build stage, in $work/bin: `cargo`, which takes only this command and copies a program that was built on this machine,
# and `apt-get`, which only simulates an installation. make_stubs PROGRAM CARGO'S ARGUMENTS
make_stubs() {
    local name=${1##*/}
    mkdir -p "$work/bin" "$work/share"
    cp "$1" "$work/share/$name"
    cat >"$work/bin/cargo" <<-END
	#!/bin/sh -e
	[ "\$*" = "$2" ]
	mkdir -p target/release
	cp /usr/local/share/$name target/release/$name
	END
    cat >"$work/bin/apt-get" <<-'END'
	#!/bin/sh -e
	[ "$1" != install ] || set -- --simulate "$@"
	exec /usr/bin/apt-get "$@"
	END
    chmod +x "$work/bin"/*
    # Without a cache, which the next build would not use.
    compiles=false
    ! podman image exists "$build_base" || podman image rm -f "$build_base" >/dev/null
    derive_base "$build_base" "$work/bin" /usr/local/bin "$work/share" /usr/local/share
}

# Builds the image of a Dockerfile. Crates come from this machine's cache, which is filled before: the build itself is offline.
build_image() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo}
    cargo fetch --locked -q
    say "building the image"
    # The previous image would lose its name and stay.
    ! podman image exists "$image" || podman image rm -f "$image" >/dev/null
    buildah bud --isolation chroot --layers="$compiles" -q -t "$image" -f "$1" \
        --build-arg "BUILD_BASE=$build_base" --build-arg "BASE=$base" \
        -v "$cargo_home/registry:/root/.cargo/registry:ro" --env CARGO_NET_OFFLINE=true . >/dev/null
    podman image exists "$image" || die "the image was not built"
}
