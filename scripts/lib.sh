# Shared by run-demo, run-tests, scripts/ and tests/: messages, root, and missing system packages.
# shellcheck shell=bash

say() { printf '==> %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Says that a step, or a part of it, is skipped and why: "NAME: WHY". ./run-tests names a file in
# MEMPROF_TEST_SKIPPED and prints at its end what is in it; tests/common/skip.rs does the same.
report_skipped() {
    printf 'SKIPPED %s\n' "$*"
    [ -z "${MEMPROF_TEST_SKIPPED-}" ] || printf '%s\n' "$*" >>"$MEMPROF_TEST_SKIPPED"
}

# Where this machine's apt gets Debian from: the address, for '' of the archive, for -security of its updates.
archive_address() {
    # shellcheck disable=SC2016 # apt fills it in
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        grep -E "/debian$1/?\$" | head -n 1
}

# Runs a command as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root: run it as root, or install sudo. The command is: $*"
    fi
}

# What building memprof needs: "package:test", where the test is a command, a header or a file.
# shellcheck disable=SC2034 # used by the scripts that source this
BUILD_NEEDS=(
    clang:clang llvm:llvm-strip gcc:gcc make:make binutils:objdump pkg-config:pkg-config
    libc6-dev:stdio.h linux-libc-dev:linux/bpf.h libelf-dev:libelf.h zlib1g-dev:zlib.h
)

# What a release for 64-bit ARM needs besides: the compiler and linkers, and an emulator that runs the binary once.
# shellcheck disable=SC2034 # used by the scripts that source this
ARM64_NEEDS=(
    gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc libc6-dev-arm64-cross:/usr/aarch64-linux-gnu/lib/libc.a lld:ld.lld
    qemu-user:qemu-aarch64
)

# What the tests of the page need.
# shellcheck disable=SC2034 # used by the scripts that source this
BROWSER_NEEDS=(chromium:chromium chromium-driver:chromedriver)

# Whether a "command", "header.h", "library.so.1", "library.a" or "/a/file" is present.
is_there() {
    local dir
    case $1 in
    /*) [ -e "$1" ] ;;
    *.h)
        for dir in /usr/include /usr/local/include /usr/include/*-linux-gnu; do
            [ -e "$dir/$1" ] && return 0
        done
        return 1
        ;;
    *.so.* | *.a)
        for dir in /usr/lib /usr/lib64 /usr/lib/*-linux-gnu; do
            [ -e "$dir/$1" ] && return 0
        done
        return 1
        ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# Prints those of the given "package:test" pairs that this release has: allocators have another name in each.
packaged() {
    local need
    for need; do
        apt-cache show "${need%%:*}" >/dev/null 2>&1 && printf '%s ' "$need"
    done
    return 0
}

# Installs the packages of the given "package:test" pairs whose test fails.
install_missing() {
    local need missing=()
    for need; do
        is_there "${need#*:}" || missing+=("${need%%:*}")
    done
    [ "${#missing[@]}" -eq 0 ] && return 0
    if ! command -v apt-get >/dev/null; then
        die "missing, by their Debian names: ${missing[*]}.
This script installs packages on Debian and Ubuntu only. Install them with this system's package
manager (on Fedora: dnf install clang llvm gcc make binutils pkgconf glibc-devel kernel-headers
elfutils-libelf-devel zlib-devel) and run this again."
    fi
    say "installing: ${missing[*]}"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# Prints the directory of libbpf's headers, which the build unpacks.
libbpf_headers() {
    local header
    cargo build -q -p libbpf-sys || return 1
    header=$(find target -path '*/build/libbpf-sys-*/out/include/bpf/bpf_helpers.h' -print -quit)
    [ -n "$header" ] || { echo "cannot find libbpf's headers below target/; run cargo build first" >&2 && return 1; }
    echo "${header%/bpf/bpf_helpers.h}"
}

# Compiles a BPF program for 64-bit ARM, to OBJECT from SOURCE; the build compiles it for this machine.
build_bpf_aarch64() {
    local headers
    headers=$(libbpf_headers) || return 1
    "${CLANG:-clang}" -target bpf -D__TARGET_ARCH_arm64 -mcpu=v3 -O2 -g -Wall -Wextra -Werror \
        -Wno-unused-parameter -I vmlinux -I vmlinux/aarch64 -I "$headers" -c "$2" -o "$1"
}

# Each header of the BPF programs includes what it uses: the compiler reads each one by itself.
check_bpf_headers() {
    local headers header failed=0
    headers=$(libbpf_headers) || return 1
    for header in {,recorder/}src/bpf/*.bpf.h; do
        "${CLANG:-clang}" -target bpf -D__TARGET_ARCH_arm64 -mcpu=v3 -O2 -Wall -Wextra -Werror \
            -Wno-unused-parameter -Wno-unused-function -Wno-undefined-internal \
            -I vmlinux -I vmlinux/aarch64 -I "$headers" -fsyntax-only -x c "$header" || failed=1
    done
    return "$failed"
}

need_rust() {
    command -v cargo >/dev/null ||
        die "cargo was not found: install Rust (see rust-lang.org/tools/install) and run this again"
}

# Repeats a command until it succeeds: until_so SECONDS DESCRIPTION COMMAND…. Its last output is in $work/last.
until_so() {
    local seconds=$1 what=$2 tries
    shift 2
    for ((tries = 0; tries < seconds * 10; tries++)); do
        # shellcheck disable=SC2154 # the caller's directory
        ! "$@" >"$work/last" 2>&1 || return 0
        sleep 0.1
    done
    die "not within $seconds s: $what; $(tail -n 20 "$work/last")"
}
