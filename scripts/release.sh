#!/usr/bin/env bash
# Makes the files of a release, in target/dist.
#
#   scripts/release.sh [PART…]      (binary deb arm64 notes sums without an argument)
#
#   check   fails unless $TAG is v and the version in Cargo.toml, and CHANGELOG.md has a dated section for it
#   binary  a static binary for x86-64, which needs no library and runs with any glibc, as .tar.gz
#   deb     the same binary as a Debian package
#   arm64   a static binary for 64-bit ARM, built on x86-64, as .tar.gz; needs rustup target add aarch64-unknown-linux-gnu
#   image   a container image from the Dockerfile, for `docker load`; needs docker or podman
#   notes   notes.md: the version's section of CHANGELOG.md, or the section [Unreleased] if there is none and TAG is not set
#   sums    SHA256SUMS of all files
#
# DEB_MAINTAINER: the package's maintainer. Run it on Debian 12: later releases of libelf need more libraries.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/arm64.sh
source scripts/arm64.sh

dist=target/dist
build=target/static
target=x86_64-unknown-linux-gnu
binary=$build/$target/release/memprof
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The same commit gives the same archives.
epoch=${SOURCE_DATE_EPOCH:-$(git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || date +%s)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The section of CHANGELOG.md under a heading, without the heading and blank lines around it.
section() {
    awk -v wanted="## [$1]" '
        /^## / { inside = index($0, wanted) == 1; next }
        inside { print }' CHANGELOG.md | sed -e '/./,$!d' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
}

part_check() {
    [ "${TAG-}" = "v$version" ] ||
        die "the tag is ${TAG:-not set in TAG}, the version in Cargo.toml is $version: tag v$version"
    [ -n "$(section "$version")" ] ||
        die "CHANGELOG.md has no section [$version]: rename [Unreleased] and date it"
    grep -qE "^## \\[${version//./\\.}] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
        die "the section [$version] of CHANGELOG.md has no date: write its heading as ## [$version] - YYYY-MM-DD"
}

# With libelf, zlib and glibc inside. A RUSTFLAGS variable replaces the flags in .cargo/config.toml.
build_static() {
    [ ! -e "$work/built" ] || return 0
    need_rust
    install_missing "${BUILD_NEEDS[@]}"
    say "building the static binary"
    RUSTFLAGS='-C force-frame-pointers=yes -C target-feature=+crt-static' \
        LIBBPF_SYS_LIBRARY_PATH=/usr/lib/$(gcc -print-multiarch) \
        cargo build --release --locked --bin memprof --target "$target" --target-dir "$build" \
        --features libbpf-rs/static
    ! readelf -d "$binary" | grep -q NEEDED || die "$binary needs libraries: $(ldd "$binary")"
    [ "$("$binary" --version)" = "memprof $version" ] || die "$binary is not version $version"
    strip -o "$work/memprof" "$binary"
    touch "$work/built"
}

# The crates and libraries inside the binary, with their licences. Each text appears once.
third_party() {
    local name crate_version licence file sum dir registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    declare -A seen=()
    printf '%s\n\n' "memprof contains the software below. libelf (LGPL-3.0-or-later or GPL-2.0-or-later), glibc
(LGPL-2.1-or-later) and zlib are linked statically; scripts/release.sh in memprof's source links it again with
other versions of them."
    while read -r name crate_version licence; do
        printf '%s %s: %s\n' "$name" "${crate_version#v}" "$licence"
    done < <(crates)
    while read -r name crate_version licence; do
        for dir in "$registry"/*/"$name-${crate_version#v}"; do
            for file in "$dir"/{LICEN[CS]E,COPYING,NOTICE,UNLICENSE}*; do
                [ -f "$file" ] || continue
                sum=$(sha256sum <"$file")
                [ -z "${seen[$sum]-}" ] || continue
                seen[$sum]=1
                printf '\n======== %s, and others with the same text: %s\n\n' "$name" "${file##*/}"
                cat "$file"
            done
        done
    done < <(crates)
    for name in libelf-dev zlib1g-dev libc6-dev; do
        printf '\n======== %s (Debian)\n\n' "$name"
        cat "/usr/share/doc/$name/copyright"
    done
}

# "name version licence" of each crate in the binary but memprof.
crates() {
    cargo tree --locked --edges normal --target "$target" --prefix none --format '{p} {l}' |
        sed 's/ (proc-macro)//; s/ (\*)$//' | grep -v -e '^memprof ' -e '^memprof-' | sort -u
}

# What comes with the binary: documents, manual pages and completions, in directories of $work/more.
make_more() {
    local page shell more=$work/more
    [ ! -d "$more" ] || return 0
    mkdir -p "$more"/{doc/docs/languages,man,completions}
    cp README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE-* "$more/doc"
    cp docs/*.md docs/*.png "$more/doc/docs"
    cp docs/languages/*.md "$more/doc/docs/languages"
    third_party >"$more/doc/THIRD-PARTY"
    "$work/memprof" man >"$more/man/memprof.1"
    for page in top maps; do "$work/memprof" man "$page" >"$more/man/memprof-$page.1"; done
    for shell in bash zsh fish; do "$work/memprof" completions "$shell" >"$more/completions/$shell"; done
}

part_binary() {
    build_static
    make_more
    pack x86_64 "$work/memprof"
}

# The archive of a binary for a processor, with what comes with it.
pack() {
    local name=memprof-$version-$1-linux
    mkdir -p "$work/$name"
    cp -r "$work"/more/doc/* "$work/more/man" "$work/more/completions" "$work/$name"
    cp "$2" "$work/$name/memprof"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" |
        gzip -9n >"$dist/$name.tar.gz"
}

# Its manual pages are those that the binary for this machine writes.
part_arm64() {
    # (Functions that are called see these names.)
    local cache=$PWD/$build/arm64 arm64=$build/$arm64_target/release/memprof
    build_static
    make_more
    install_missing "${ARM64_NEEDS[@]}"
    has_arm64_std || die "rustc has no standard library for 64-bit ARM: rustup target add $arm64_target"
    say "building the static binary for 64-bit ARM"
    [ -e "$cache/libraries/usr/lib/aarch64-linux-gnu/libelf.a" ] ||
        (prepare_apt arm64 && arm64_libraries "$cache/libraries") ||
        die "cannot download libelf and zlib for 64-bit ARM: $(cat "$work/apt.log" 2>/dev/null)"
    set_arm64_env "$cache/libraries" "$build"
    env "${arm64_env[@]}" cargo build "${arm64_cargo[@]}" --bin memprof
    ! aarch64-linux-gnu-readelf -d "$arm64" | grep -q NEEDED || die "$arm64 needs libraries"
    [ "$(qemu-aarch64 "$arm64" --version)" = "memprof $version" ] || die "$arm64 is not version $version for 64-bit ARM"
    aarch64-linux-gnu-strip -o "$work/memprof-arm64" "$arm64"
    pack aarch64 "$work/memprof-arm64"
}

part_deb() {
    build_static
    make_more
    local root=$work/deb page share=$work/deb/usr/share
    install -D -m 755 "$work/memprof" "$root/usr/bin/memprof"
    mkdir -p "$share/man/man1" "$share/doc"
    cp -r "$work/more/doc" "$share/doc/memprof"
    mv "$share/doc/memprof/CHANGELOG.md" "$share/doc/memprof/changelog"
    { cat LICENSE-MIT && printf '\nOr, at your option, under the terms of LICENSE-APACHE. src/bpf: MIT or GPL-2.0.\n'; } \
        >"$share/doc/memprof/copyright"
    gzip -9n "$share/doc/memprof/changelog" "$share/doc/memprof/THIRD-PARTY"
    for page in "$work"/more/man/*; do gzip -9nc "$page" >"$share/man/man1/${page##*/}.gz"; done
    install -D -m 644 "$work/more/completions/bash" "$share/bash-completion/completions/memprof"
    install -D -m 644 "$work/more/completions/zsh" "$share/zsh/vendor-completions/_memprof"
    install -D -m 644 "$work/more/completions/fish" "$share/fish/vendor_completions.d/memprof.fish"
    mkdir "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<-END
	Package: memprof
	Version: $version
	Architecture: amd64
	Maintainer: ${DEB_MAINTAINER:-The memprof maintainers}
	Installed-Size: $(du -k -s "$root/usr" | cut -f 1)
	Section: utils
	Priority: optional
	Description: shows which code owns the physical memory of a running process
	 memprof attaches to a running Linux process and attributes its resident
	 anonymous and shared memory, and the page cache that its own IO brought in,
	 to user call stacks. The rows add up to the kernel's own figure. It needs
	 Linux 6.1 or later, and root or some capabilities.
	END
    chmod -R u=rwX,go=rX "$root"
    SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$root" \
        "$dist/memprof_${version}_amd64.deb" >/dev/null
}

part_image() {
    local tool
    tool=$(command -v docker || command -v podman) || die "an image needs docker or podman: install one"
    "$tool" build -t "memprof:$version" .
    "$tool" save "memprof:$version" | gzip -9n >"$dist/memprof-$version-image.tar.gz"
}

part_notes() {
    local wanted=$version
    [ -n "${TAG-}" ] || [ -n "$(section "$version")" ] || wanted=Unreleased
    section "$wanted" >"$dist/notes.md"
    [ -s "$dist/notes.md" ] || die "CHANGELOG.md has no section [$wanted]"
}

part_sums() {
    (cd "$dist" && sha256sum memprof[-_]* >SHA256SUMS && cat SHA256SUMS)
}

[ $# -gt 0 ] || set -- binary deb arm64 notes sums
for part; do
    declare -F "part_$part" >/dev/null || die "unknown part $part: use check, binary, deb, arm64, image, notes or sums"
done
mkdir -p "$dist"
for part; do "part_$part"; done
