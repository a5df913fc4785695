# Sourced by tests/vm.sh and scripts/release.sh: building memprof for 64-bit ARM on another processor.
# shellcheck shell=bash disable=SC2154 # work and cache are set there

# shellcheck disable=SC2034 # used by the scripts that source this
arm64_target=aarch64-unknown-linux-gnu

# Sets up a private apt configuration for an architecture. It has more suites than this machine's, which it
# does not change. All later apt commands use it.
prepare_apt() {
    local main security keyring=/usr/share/keyrings/debian-archive-keyring.gpg apt=$cache/apt suite
    [ "$1" = amd64 ] || apt=$cache/apt-$1
    unset APT_CONFIG
    main=$(archive_address '')
    [ -n "$main" ] && [ -e "$keyring" ] || return 1
    security=$(archive_address -security)
    security=${security:-${main%/}-security/}
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    {
        for suite in bookworm bookworm-backports trixie trixie-backports; do
            echo "deb [signed-by=$keyring] $main $suite main"
        done
        for suite in bullseye-security bookworm-security trixie-security; do
            echo "deb [signed-by=$keyring] $security $suite main"
        done
    } >"$apt/sources.list"
    cat >"$apt/apt.conf" <<-END
	Dir::Etc::sourcelist "$apt/sources.list";
	Dir::Etc::sourceparts "-";
	Dir::State "$apt";
	Dir::State::status "/dev/null";
	Dir::Cache "$apt";
	APT::Architecture "$1";
	APT::Architectures { "$1"; };
	Acquire::Languages "none";
	Acquire::Retries "2";
	Acquire::http::Timeout "20";
	APT::Sandbox::User "root";
	END
    export APT_CONFIG=$apt/apt.conf
    # Lists that are a few hours old are recent enough.
    if [ -z "$(find "$apt/updated" -mmin -360 2>/dev/null)" ]; then
        apt-get update -qq >"$work/apt.log" 2>&1 || return 1
        touch "$apt/updated"
    fi
}

# libelf and zlib for 64-bit ARM, of this machine's Debian release, into a directory.
arm64_libraries() {
    local release package part=$work/libraries
    # shellcheck source=/dev/null
    release=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    mkdir -p "$part/debs"
    # From Debian 13 on, libelf needs libzstd.
    for package in libelf-dev zlib1g-dev libzstd-dev; do
        (cd "$part/debs" && apt-get download -qq "$package/$release") >>"$work/apt.log" 2>&1 || return 1
    done
    for package in "$part"/debs/*.deb; do
        dpkg-deb -x "$package" "$part" || return 1
    done
    rm -rf "$1" && cp -r "$part" "$1.part" && mv "$1.part" "$1"
}

# Whether rustc has a standard library for it.
has_arm64_std() {
    [ -e "$(rustc --print target-libdir --target "$arm64_target")" ]
}

# Sets `arm64_env` and `arm64_cargo`, with which Cargo builds statically, with libelf and zlib of a directory, into another one.
# shellcheck disable=SC2034 # used by the scripts that source this
set_arm64_env() {
    local libs=$1/usr/lib/aarch64-linux-gnu
    arm64_env=(
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
        AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
        LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu="$libs"
        # The build script uses libbpf, too.
        LIBBPF_SYS_LIBRARY_PATH_x86_64_unknown_linux_gnu="/usr/lib/$(gcc -print-multiarch)"
        LIBBPF_SYS_EXTRA_CFLAGS="-I$1/usr/include"
        RUSTFLAGS='-C force-frame-pointers=yes -C target-feature=+crt-static'
    )
    arm64_cargo=(--release --locked --target "$arm64_target" --target-dir "$2" --features libbpf-rs/static)
}
