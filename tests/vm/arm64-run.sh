# Sourced by tests/vm.sh: memprof and the network recorder themselves for a 64-bit ARM guest.
# shellcheck shell=bash disable=SC2154 # work, cache, apt_there, thorough, boot_limit and what scripts/arm64.sh sets are set there

# A static busybox for 64-bit ARM, to the given path.
arm64_busybox() {
    local part=$work/busybox
    mkdir -p "$part" && (cd "$part" && apt-get download -qq busybox-static) >>"$work/apt.log" 2>&1 || return 1
    dpkg-deb --fsys-tarfile "$part"/*.deb | tar -x -C "$part" --wildcards '*bin/busybox' || return 1
    mv "$(find "$part" -name busybox -type f)" "$1"
}

# memprof, and what its checks run, into a directory.
add_memprof_arm64() {
    local bin=$1 workload test
    env "${arm64_env[@]}" cargo build -q "${arm64_cargo[@]}" --bin memprof >&2 ||
        { echo "memprof does not build"; return 2; }
    test=$(env "${arm64_env[@]}" cargo test -q --no-run "${arm64_cargo[@]}" --test scenarios --message-format json |
        sed -n 's/.*"executable":"\([^"]*scenarios-[^"]*\)".*/\1/p' | tail -n 1)
    [ -n "$test" ] || { echo "the scenarios do not build"; return 2; }
    aarch64-linux-gnu-strip -o "$bin/memprof" "target/arm64/$arm64_target/release/memprof" &&
        aarch64-linux-gnu-strip -o "$bin/test-scenarios" "$test" || return 2
    for workload in scenarios moves allocations; do
        aarch64-linux-gnu-gcc -std=gnu11 -O1 -g -pthread -fno-omit-frame-pointer -fno-inline \
            -fno-optimize-sibling-calls -o "$bin/$workload" "tests/workloads/$workload.c" ||
            { echo "tests/workloads/$workload.c does not compile"; return 2; }
    done
}

# The network recorder and its pseudo nodes, into a directory.
add_recorder_arm64() {
    local built=target/arm64/$arm64_target/release
    env "${arm64_env[@]}" cargo build -q "${arm64_cargo[@]}" -p tezos-recorder --bin tezos-recorder --example pseudo_node >&2 ||
        { echo "the network recorder does not build"; return 2; }
    aarch64-linux-gnu-strip -o "$1/tezos-recorder" "$built/tezos-recorder" &&
        aarch64-linux-gnu-strip -o "$1/pseudo_node" "$built/examples/pseudo_node" || return 2
}

# The guest's files, as for x86-64. Fails with 1 and a reason if something is not available, with 2 if something does not build.
build_arm64_run() {
    local libraries=$cache/arm64-libraries busybox=$cache/busybox-arm64 root=$work/arm64-run lib
    local cross=/usr/aarch64-linux-gnu/lib
    has_arm64_std || { echo "rustc has no standard library for it: rustup target add $arm64_target"; return 1; }
    [ -e "$libraries/usr/lib/aarch64-linux-gnu/libelf.a" ] || { $apt_there && arm64_libraries "$libraries"; } ||
        { echo "libelf for arm64 is not available"; return 1; }
    [ -x "$busybox" ] || { $apt_there && arm64_busybox "$busybox"; } ||
        { echo "busybox for arm64 is not available"; return 1; }
    set_arm64_env "$libraries" target/arm64
    # Shorter builds: what is tested runs under emulation anyway.
    arm64_env+=(CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_OPT_LEVEL=1)
    mkdir -p "$root/bin" "$root/lib"
    add_recorder_arm64 "$root/bin" || return 2
    [ "$thorough" = recorder ] || add_memprof_arm64 "$root/bin" || return 2
    cp "$busybox" "$root/bin/busybox" && cp tests/vm/init.sh "$root/init" &&
        cp tests/vm/check.sh tests/vm/recorder.sh "$root/" && chmod +x "$root/init" || return 2
    for lib in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libgcc_s.so.1; do
        cp -L "$cross/$lib" "$root/lib/$lib" || return 2
    done
    archive "$root" "$work/arm64-run.cpio"
}

# Like `boot`. There is only one serial port, which also has the kernel's messages. The processor notes accesses to pages
# itself: where it does not (-cpu cortex-a57), copies_after_fork fails, see docs/limits.md.
boot_arm64_run() {
    local image=$1 nonce=$2 wanted=$3 out=$4
    prepare_boot "$image" "$nonce" "$wanted" "$work/arm64-run.cpio" || return 1
    timeout --kill-after=5 "$boot_limit" qemu-system-aarch64 -machine virt,accel=tcg \
        -cpu max,pauth-impdef=on -m 1024 -smp 2 -nodefaults -no-user-config -display none -no-reboot \
        -serial "file:$out" -kernel "$image" -initrd "$work/initrd" \
        -drive "file=$work/disk,format=raw,if=none,id=disk,cache=unsafe" -device virtio-blk-pci,drive=disk \
        -append 'console=ttyAMA0 quiet panic=-1 oops=panic' </dev/null >"$work/qemu" 2>&1
}
