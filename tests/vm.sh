#!/usr/bin/env bash
# Boots other kernels in QEMU, and checks in each that memprof works end to end, or reports what is
# missing, and that the network recorder works.
#
#   tests/vm.sh [SERIES…]      (default: 5.10 6.1 newest arm64-6.1, with some of the scenarios; all of them with a SERIES)
#   tests/vm.sh all            (6.12, arm64-6.12, arm64-run-6.1 and arm64-run-6.12 besides, and the scenarios with all kinds
#                          of hooks of system calls)
#
# On 64-bit ARM, arm64-6.1 and arm64-6.12 check the BPF programs alone (tests/vm/arm64): all of them are loaded, those whose hooks
# exist there are attached, a stack is walked, a page gets its owner, and TCP connections are recorded byte by byte, by packets and
# by system calls. arm64-run-6.1 and arm64-run-6.12 build memprof and the network recorder for it, which takes minutes, and check
# them like on x86-64.
#
# MEMPROF_VM_ONLY=recorder, with a SERIES from 6.1 on, checks nothing but the network recorder, and does not build memprof. It
# does not concern arm64-6.1 and arm64-6.12, which always check both.
#
# The kernels are Debian's cloud kernels, from the Debian mirror that this machine's apt uses. They are
# cached in MEMPROF_VM_CACHE (default ~/.cache/memprof-vm), with their modules for a disk and for zram.
# A guest has an ext4 disk. Prints one line per kernel, and at the end the result of each scenario of
# tests/scenarios on each kernel, and on this machine's kernel if `cargo test --test scenarios` was run
# before, and the failed tests with what their panics said. Exit status: 0 if every kernel passed, 1 if one failed, 77 if one was skipped (REQUIRE_VM=1 makes
# that a failure). A QEMU older than 8.1 is replaced by that of this release's backports, in the same cache. Installs nothing: it needs qemu-system-x86, busybox-static, e2fsprogs, apt and dpkg; for
# 64-bit ARM qemu-system-arm, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and, for arm64-run-*, Rust's standard library
# (rustup target add aarch64-unknown-linux-gnu).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/arm64.sh
source scripts/arm64.sh
# shellcheck source=tests/vm/guest.sh
source tests/vm/guest.sh
# shellcheck source=tests/vm/arm64-run.sh
source tests/vm/arm64-run.sh

cache=${MEMPROF_VM_CACHE:-$HOME/.cache/memprof-vm}
boot_limit=900 # seconds, under emulation on a busy machine
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
failed=0 skipped=0
# What is wanted of the guests, see tests/vm/check.sh: of all, and instead of some.
thorough=full
declare -A instead=([5.10]=told)

skip() {
    report_skipped "vm:$1: $2"
    skipped=$((skipped + 1))
}

# A table of scenario by kernel: passed, skipped (the reasons follow), FAILED, or - if not run.
print_table() {
    local own=target/tmp/scenarios.results
    [ ! -s "$own" ] || cp "$own" "$work/table.own"
    set -- "$work"/table.*
    [ -e "$1" ] || return 0
    awk '{ kernel = FILENAME; sub(/.*table\./, "", kernel) }
        FNR == 1 { kernels[++n] = kernel }
        { state = $1; name = $2; sub(/scenario:/, "", name); sub(/:$/, "", name) }
        !(name in known) { known[name] = 1; names[++m] = name }
        { got[name, kernel] = state == "SKIPPED" ? "skipped" : state }
        state == "SKIPPED" { left_out[kernel]++ }
        state == "SKIPPED" { why = $0; sub(/^SKIPPED *scenario:/, "", why); reason[kernel ": " why] = 1 }
        END {
            printf "\n%-32s", "scenario"
            for (k = 1; k <= n; k++) printf " %-8s", kernels[k]
            print ""
            for (i = 1; i <= m; i++) {
                printf "%-32s", names[i]
                for (k = 1; k <= n; k++) {
                    cell = got[names[i], kernels[k]]
                    printf " %-8s", cell == "" ? "-" : cell
                }
                print ""
            }
            printf "%-32s", "(skipped)"
            for (k = 1; k <= n; k++) printf " %-8s", left_out[kernels[k]] + 0
            print ""
            for (r in reason) print "skipped on " r | "sort -V"
        }' "$@"
}

# What failed in which guest, once more: the guests' output is long.
print_failures() {
    [ -s "$work/failures" ] || return 0
    printf '\nfailed in the guests:\n'
    cat "$work/failures"
}

finish() {
    print_table
    print_failures
    [ "$failed" -eq 0 ] || exit 1
    [ "$skipped" -eq 0 ] && exit 0
    [ "${REQUIRE_VM-}" != 1 ] || die "kernels were skipped, and REQUIRE_VM=1 forbids it"
    exit 77
}

# The test binary of tests/scenarios.
scenarios_binary() {
    cargo test -q --no-run --test scenarios --message-format json |
        sed -n 's/.*"executable":"\([^"]*scenarios-[^"]*\)".*/\1/p' | tail -n 1
}

build_initrd() {
    local more=$work/more
    build_base tests/vm/check.sh tests/vm/preempted.sh tests/vm/recorder.sh || return 1
    mkdir -p "$more/bin"
    # As the step `recorder` has built them. Optimised builds would take minutes.
    cargo build -q -p tezos-recorder --bin tezos-recorder --example pseudo_node || return 1
    strip -o "$more/bin/tezos-recorder" target/debug/tezos-recorder || return 1
    strip -o "$more/bin/pseudo_node" target/debug/examples/pseudo_node || return 1
    [ "$thorough" = recorder ] || add_memprof "$more/bin" || return 1
    build_more "$more"
}

# memprof, and what its checks run, into a directory.
add_memprof() {
    local bin=$1 workload
    cargo build -q --release || die "memprof does not build"
    strip -o "$bin/memprof" target/release/memprof || return 1
    for workload in scenarios moves allocations preempted peaks; do
        gcc -std=gnu11 -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls \
            -o "$bin/$workload" "tests/workloads/$workload.c" || return 1
    done
    strip -o "$bin/test-scenarios" "$(scenarios_binary)"
}

# Like `boot`, for kernels that must always pass. There is only one serial port, which also has the kernel's messages.
boot_arm64() {
    local image=$1 nonce=$2 out=$3
    timeout --kill-after=5 "$boot_limit" qemu-system-aarch64 -machine virt,accel=tcg \
        -cpu cortex-a57 -m 1024 -smp 2 -nodefaults -no-user-config -display none -no-reboot \
        -serial "file:$out" -kernel "$image" -initrd "$work/arm64.cpio" \
        -append "console=ttyAMA0 quiet panic=-1 oops=panic -- $nonce" </dev/null >"$work/qemu" 2>&1
}

# The guest's only files: tests/vm/arm64 as its first process, and the BPF objects that it loads.
build_arm64() {
    local libraries=$cache/arm64-libraries headers source sources root=$work/arm64
    local elf=$libraries/usr/include libs=$libraries/usr/lib/aarch64-linux-gnu
    [ -e "$libs/libelf.a" ] || { $apt_there && arm64_libraries "$libraries"; } ||
        { echo "libelf for arm64 is not available"; return 1; }
    mkdir -p "$root"
    for source in src/bpf/memprof recorder/src/bpf/recorder; do
        build_bpf_aarch64 "$root/${source##*/}.bpf.o" "$source.bpf.c" || { echo "$source.bpf.c does not compile"; return 2; }
    done
    headers=$(libbpf_headers) || return 2
    sources=$(cargo metadata -q --format-version 1 --locked |
        grep -o '"manifest_path":"[^"]*/libbpf-sys-[^"]*"' | head -n 1 | cut -d '"' -f 4)
    sources=${sources%/*}/libbpf
    # Without the warnings of libbpf.
    aarch64-linux-gnu-gcc -std=gnu11 -O1 -w -static -fno-omit-frame-pointer -D_LARGEFILE64_SOURCE \
        -D_FILE_OFFSET_BITS=64 -I "$headers" -I "$sources/include" -I "$sources/include/uapi" \
        -I src/bpf -I recorder/src/bpf -I "$elf" -o "$root/init" tests/vm/arm64/*.c "$sources"/src/*.c \
        -L "$libs" -lelf -lz -lzstd || { echo "tests/vm/arm64 does not compile"; return 2; }
    archive "$root" "$work/arm64.cpio"
}

# Whether the emulator broke the guest: a processor executed a breakpoint that the kernel had already removed while it patched
# its own code, once (a crash) or again and again (a lockup, up to 6.1, where the kernel finds no breakpoint in memory and goes back
# to the instruction). That is neither the kernel's fault nor memprof's, which only attaches to tracepoints: before 8.1, QEMU may
# keep what it translated while another processor wrote there (deba78709ae8 "accel/tcg: Always lock pages before
# translation"). It cannot with one thread for all processors. With one of memprof's programs on the stack, the guest has failed.
is_emulators_fault() {
    grep -q 'int3: 0000\|softlockup: hung tasks' "$work/console" &&
        ! grep -q '\] \+bpf_prog_\|RIP: [0-9]*:bpf_prog_' "$work/console"
}

# Tests one kernel: prints its line, and after a failure the guest's output.
check() {
    local series=$1 image nonce out=$work/out began=$SECONDS wanted=${instead[$1]-$thorough} status result silent_limit=''
    # All scenarios take minutes, and print nothing meanwhile.
    case $wanted in some | told | recorder) silent_limit=300 ;; esac
    image=$(image_of "$series") ||
        { skip "$series" "no image: none is kept in $cache, and none could be downloaded"; return; }
    nonce=$RANDOM$RANDOM$RANDOM
    : >"$out"
    case $series in
    arm64-run-*) boot_arm64_run "$image" "$nonce" "$wanted" "$out" ;;
    arm64-*) boot_arm64 "$image" "$nonce" "$out" ;;
    *)
        boot "$image" "$nonce" "$wanted" "$out" -machine "pc,accel=$(accelerator)"
        if is_emulators_fault; then
            say "$series: the emulator broke the kernel, which was patching its own code; retry with one thread for both processors"
            grep -o 'RIP: .*' "$work/console" | sort | uniq -c >&2
            : >"$out"
            boot "$image" "$nonce" "$wanted" "$out" -machine pc -accel tcg,thread=single
        fi
        ;;
    esac
    tr -d '\r' <"$out" >"$out.text"
    # The table follows the blank line after the scenarios.
    sed -n 's/^table: //p' "$out.text" >"$work/table.$series"
    [ -s "$work/table.$series" ] || rm "$work/table.$series"
    status=$(sed -n "s/^VM-EXIT:$nonce:\([0-9]*\)\$/\1/p" "$out.text")
    result=$(sed -n 's/^result: //p' "$out.text")
    if [ "$status" = 0 ] && [ -n "$result" ]; then
        printf 'passed vm:%s (%s, %s s): %s\n' "$series" "${image##*/}" "$((SECONDS - began))" "$result"
        [ "${VERBOSE-}" != 1 ] || cat "$out.text"
        return
    fi
    failed=$((failed + 1))
    [ -n "$status" ] || result="the guest gave no exit status in $((SECONDS - began)) s of at most $boot_limit"
    printf 'FAILED vm:%s (%s): %s\n' "$series" "${image##*/}" "$result"
    sed 's/^/    /' "$out.text"
    {
        printf 'FAILED vm:%s: %s\n' "$series" "$result"
        # What it did last, and what the kernel said of a task that hangs.
        if [ -z "$status" ]; then
            tail -n 3 "$out.text"
            grep -A 25 'blocked for more than\|Kernel panic\|BUG: ' "$work/console" | head -n 60
        fi
        # The names of tests, and what their panics said.
        ! grep -q 'panicked at' "$out.text" ||
            awk -v target="vm:$series" -f scripts/failed-tests.awk "$out.text"
    } | sed 's/^/    /' >>"$work/failures"
    [ -n "$status" ] || tail -n 30 "$work/console" "$work/qemu" | sed 's/^/    /'
}

# The packages of missing commands; the arguments are "command:package".
missing_of() {
    local need
    for need; do
        is_there "${need%:*}" || printf ' %s' "${need#*:}"
    done
}

# Tests the kernels of one kind of guest (amd64, arm64, arm64-run), one by one, if everything that they need is installed.
check_all() {
    local kind=$1 arch=${1%-run} missing series status why=
    shift
    [ $# -gt 0 ] || return 0
    case $arch in
    amd64) missing=$(missing_of qemu-system-x86_64:qemu-system-x86 busybox:busybox-static \
        /sbin/mke2fs:e2fsprogs) ;;
    arm64) missing=$(missing_of qemu-system-aarch64:qemu-system-arm busybox:busybox-static \
        aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
        /usr/aarch64-linux-gnu/lib/libc.a:libc6-dev-arm64-cross /sbin/mke2fs:e2fsprogs) ;;
    esac
    missing+=$(missing_of apt-cache:apt dpkg-deb:dpkg)
    if [ -n "$missing" ]; then
        for series; do skip "$series" "packages to install first:$missing"; done
        return
    fi
    apt_there=true
    prepare_apt "$arch" ||
        { apt_there=false && say "cannot reach Debian's archive; using only the kept images"; }
    case $kind in
    amd64)
        find_emulator
        build_initrd
        ;;
    arm64) why=$(build_arm64) ;;
    arm64-run) why=$(build_arm64_run) ;;
    esac
    status=$?
    [ "$status:$arch" != 1:arm64 ] || { for series; do skip "$series" "$why"; done && return; }
    [ "$status" -eq 0 ] || die "cannot assemble the guest's files${why:+: $why}"
    for series; do check "$series"; done
}

if [ $# -eq 0 ]; then
    set -- 5.10 6.1 newest arm64-6.1
    instead[6.1]=some instead[newest]=some
elif [ "$*" = all ]; then
    thorough=both
    set -- 5.10 6.1 6.12 newest arm64-6.1 arm64-6.12 arm64-run-6.1 arm64-run-6.12
fi
case ${MEMPROF_VM_ONLY-} in
'') ;;
recorder) thorough=recorder instead=() ;;
*) die "MEMPROF_VM_ONLY=$MEMPROF_VM_ONLY: only the recorder can be checked alone" ;;
esac
amd64=() arm64=() arm64_run=()
for series; do
    case $series in
    arm64-run-*) arm64_run+=("$series") ;;
    arm64-*) arm64+=("$series") ;;
    *) amd64+=("$series") ;;
    esac
done
check_all amd64 "${amd64[@]}"
check_all arm64 "${arm64[@]}"
check_all arm64-run "${arm64_run[@]}"
finish
