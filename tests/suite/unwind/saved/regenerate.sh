#!/usr/bin/env bash
# Regenerates the programs and the saved stacks in this directory from cases.c.
#
#   tests/suite/unwind/saved/regenerate.sh
#
# The tests need only the generated files. On x86-64 the script needs gcc, aarch64-linux-gnu-gcc and
# qemu-aarch64 (Debian: gcc-aarch64-linux-gnu, qemu-user).
set -euo pipefail
cd "$(dirname "$0")"

cases=(leaf late huge alloca realigned saved_fp recursion deep tail assisted framed signal trapped altstack
    trapped_alloca syscall)

# make NAME COMPILER FLAGS… -- RUNNER…
make() {
    local name=$1 compiler=$2 case flags=()
    shift 2
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    shift
    "$compiler" -std=gnu11 -Wall -Wextra -Werror -O2 -fomit-frame-pointer -ffreestanding -nostdlib \
        -static-pie -fPIE -fno-stack-protector -fasynchronous-unwind-tables \
        -Wl,-z,max-page-size=4096 -Wl,-z,noseparate-code -Wl,--build-id=none \
        "${flags[@]}" -o "$name" cases.c
    "${compiler%gcc}strip" -g -R .comment "$name"
    : >"$name.stacks"
    for case in "${cases[@]}"; do
        # Fixed addresses, and no environment of this machine on the stack.
        env -i setarch -R "$@" "./$name" "$case" >>"$name.stacks"
    done
    printf '%s: %s bytes, %s stacks\n' "$name" "$(stat -c %s "$name")" "$(grep -c ^case "$name.stacks")"
}

make x86_64 gcc -fcf-protection=none --
make aarch64 aarch64-linux-gnu-gcc -- "$(command -v qemu-aarch64)"
# Return addresses are signed, both in the register and on the stack.
make aarch64-signed aarch64-linux-gnu-gcc -march=armv8.3-a -mbranch-protection=pac-ret+leaf -- \
    "$(command -v qemu-aarch64)" -cpu max
