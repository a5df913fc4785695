# Sourced by tests/vm.sh and benches/instructions.sh: Debian's kernels, and the guests that QEMU boots with them.
# shellcheck shell=bash disable=SC2154 # cache, work, boot_limit and apt_there are set there

# Modules that the scenarios need if the kernel does not have them built in. ext4 and zram request
# crc32c_generic and lzo-rle by name.
modules=(virtio_pci virtio_blk crc32c_generic ext4 lzo-rle zram)

# Debian's name of the architecture of a series.
arch_of() {
    case $1 in
    arm64-*) echo arm64 ;;
    *) echo amd64 ;;
    esac
}

# Packages that may hold the image of a series, newest first: "package version". From 6.16 on it
# can be in linux-binary-*.
candidates() {
    local names series=${1#arm64-}
    series=${series#run-}
    names="^linux-(image|binary)-[0-9][^ ]*-cloud-$(arch_of "$1")\$"
    apt-cache pkgnames linux- | grep -E "$names" | xargs -r apt-cache madison 2>/dev/null |
        sed 's/^ *//; s/ *| */|/g' | awk -F '|' '{ print $2, $1 }' |
        { if [ "$1" = newest ]; then cat; else grep "^${series//./\\.}\\."; fi; } |
        sort -u -k 1,1Vr -k 2,2 | awk '{ print $2, $1 }'
}

# The files of a module below a directory, after those of its dependencies; none if it is built
# in.
module_files() {
    local file need
    file=$(find "$1" -name "${2//[-_]/[-_]}.ko" -o -name "${2//[-_]/[-_]}.ko.xz" | head -n 1)
    [ -n "$file" ] || return 0
    case $file in
    *.xz) busybox unxz "$file" && file=${file%.xz} || return 1 ;;
    esac
    for need in $(tr '\0' '\n' <"$file" | LC_ALL=C sed -n 's/^depends=//p' | tr , ' '); do
        module_files "$1" "$need" || return 1
    done
    echo "$file"
}

# Packs the modules below a directory, numbered in load order.
pack_modules() {
    local root=$work/modules name file number=10
    rm -rf "$root" && mkdir -p "$root/modules"
    for name in "${modules[@]}"; do
        module_files "$1" "$name" || return 1
    done | awk '!seen[$0]++' >"$work/module-files" || return 1
    while read -r file; do
        cp "$file" "$root/modules/$number-${file##*/}" && number=$((number + 1)) || return 1
    done <"$work/module-files"
    archive "$root" "$2"
}

# Downloads a kernel: its image to PATH, and the modules for a guest that runs memprof to PATH.modules.
download() {
    local package=$1 version=$2 image=$3 from tree=$work/tree packages=("$1=$2")
    # From 6.16 on, the modules are in a separate package.
    case $package in linux-binary-*) packages+=("${package/binary/modules}=$version") ;; esac
    rm -rf "$work"/*.deb "$tree" && mkdir -p "$tree" "${image%/*}"
    (cd "$work" && apt-get download -qq "${packages[@]}") >>"$work/apt.log" 2>&1 || return 1
    for from in "$work"/*.deb; do
        dpkg-deb -x "$from" "$tree" || return 1
    done
    from=$(find "$tree" -name 'vmlinuz*' | head -n 1)
    [ -n "$from" ] || return 1
    case $image in
    */arm64-[0-9]*) ;;
    *) pack_modules "$tree" "$image.modules.part" || return 1 ;;
    esac
    rm -f "$work"/*.deb && mv "$from" "$image" && rm -rf "$tree"
    [ ! -e "$image.modules.part" ] || mv "$image.modules.part" "$image.modules"
}

# Whether an image is completely cached.
is_kept() {
    [ -s "$1" ] && { [ -s "$1.modules" ] || [[ $1 == */arm64-[0-9]* ]]; }
}

# Prints the path of an image of a series: the newest that can be downloaded, otherwise the newest cached one.
image_of() {
    local series=$1 package version image tries=0
    while read -r package version; do
        image=$cache/images/$series/$package=$version
        is_kept "$image" && echo "$image" && return 0
        [ "$tries" -lt 4 ] || break
        tries=$((tries + 1))
        download "$package" "$version" "$image" && echo "$image" && return 0
    done < <(${apt_there:-false} && candidates "$series")
    image=$(find "$cache/images/$series" -type f ! -name '*.part' ! -name '*.modules' 2>/dev/null |
        sort -V | while read -r image; do ! is_kept "$image" || echo "$image"; done | tail -n 1)
    [ -n "$image" ] || return 1
    say "$series: nothing newer is available; using the kept ${image##*/}"
    echo "$image"
}

# An archive of everything below a directory, padded: without padding, the next archive would be ignored.
archive() {
    (cd "$1" && find . | busybox cpio -o -H newc 2>/dev/null) >"$2" && truncate -s %512 "$2"
}

# /dev/kvm may exist and not work: nested virtualisation without hardware support hangs.
accelerator() {
    if [ -w /dev/kvm ] && grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo; then
        echo kvm:tcg
    else
        echo tcg
    fi
}

# An emulator without the fault of is_emulators_fault: the installed one, or that of this release's backports, which is kept in the
# cache. Sets `emulator` to it, with the option that says where its firmware is; to the installed one if there is no other.
find_emulator() {
    emulator=(qemu-system-x86_64)
    local installed release package version from
    installed=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
    [ "$(printf '%s\n' "$installed" 8.1 | sort -V | head -n 1)" != 8.1 ] || return 0
    release=$(. /etc/os-release && echo "${VERSION_ID-}")
    version=$(${apt_there:-false} && apt-cache madison qemu-system-x86 | awk '{ print $3 }' | grep "~bpo$release+" | sort -V | tail -n 1)
    [ -n "$version" ] || return 0
    from=$cache/qemu-$version
    if [ ! -e "$from/complete" ]; then
        mkdir -p "$from" && rm -f "$work"/*.deb
        (cd "$work" && apt-get download -qq qemu-system-{x86,data}="$version" seabios) >>"$work/apt.log" 2>&1 || return 0
        for package in "$work"/*.deb; do
            dpkg-deb -x "$package" "$from" || return 0
        done
        rm -f "$work"/*.deb
        "$from/usr/bin/qemu-system-x86_64" --version >/dev/null 2>&1 || return 0
        touch "$from/complete"
    fi
    emulator=("$from/usr/bin/qemu-system-x86_64" -L "$from/usr/share/qemu" -L "$from/usr/share/seabios")
}

# Prepares the guest's files, with these archives first, and its disk.
prepare_boot() {
    local image=$1 nonce=$2 wanted=$3
    shift 3
    mkdir -p "$work/settings"
    echo "$nonce ${silent_limit:-$((boot_limit - 60))} $wanted" >"$work/settings/vm-settings"
    archive "$work/settings" "$work/settings.cpio"
    cat "$@" "$image.modules" "$work/settings.cpio" >"$work/initrd"
    rm -f "$work/disk" && truncate -s 256M "$work/disk" && /sbin/mke2fs -q -F -t ext4 "$work/disk"
}

# The options that follow say how the processors are emulated; the last one of a kind counts. `kernel_arguments` are the kernel's.
boot() {
    local image=$1 nonce=$2 wanted=$3 out=$4
    local arguments="console=ttyS0 quiet no_timer_check panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=30 hung_task_panic=1 ${kernel_arguments-}"
    shift 4
    prepare_boot "$image" "$nonce" "$wanted" "$work/base.cpio" "$work/more.cpio" || return 1
    timeout --kill-after=5 "$boot_limit" "${emulator[@]}" \
        -cpu max -m 2048 -smp 2 -nodefaults -no-user-config -display none -no-reboot "$@" \
        -serial "file:$work/console" -serial "file:$out" -kernel "$image" -initrd "$work/initrd" \
        -drive "file=$work/disk,format=raw,if=none,id=disk,cache=unsafe" -device virtio-blk-pci,drive=disk \
        -append "$arguments" </dev/null >"$work/qemu" 2>&1
}

# Archives what every guest has: busybox, its first process, and these scripts, of which it runs check.sh.
build_base() {
    local root=$work/root
    mkdir -p "$root/bin"
    cp "$(command -v busybox)" "$root/bin/busybox"
    cp tests/vm/init.sh "$root/init"
    cp "$@" "$root/"
    chmod +x "$root/init"
    archive "$root" "$work/base.cpio"
}

# Archives a directory of programs with the libraries that they need.
build_more() {
    local more=$1 lib
    ldd "$more"/bin/* | grep -oE '/[^ ]+ \(' | tr -d ' (' | sort -u |
        while read -r lib; do
            mkdir -p "$more${lib%/*}" && cp -L "$lib" "$more$lib"
        done
    archive "$more" "$work/more.cpio"
}
