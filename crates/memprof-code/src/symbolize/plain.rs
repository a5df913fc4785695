//! Debug information that a file has in itself, uncompressed, as compilers write it: read with blazesym.

use std::borrow::Cow;
use std::fs::File;
use std::os::fd::AsRawFd;

use blazesym::helper::ElfResolver;
use blazesym::symbolize::{CodeInfo, FindSymOpts, InlinedFn, SrcLang, Symbolize};

use super::demangle::demangle;
use super::dwarf::Lines;
use super::sections::readable;
use super::shrunk;
use crate::elf::{Elf, Section};
use memprof_profile::symbol::{InlinedFunction, Location};
use memprof_sys::target_file::TargetFile;

/// Where addresses are that split debug information refers to. (Some compilers have them in files without that, too.)
const ADDRESSES: &str = ".debug_addr";

/// A mapped file.
#[derive(Debug)]
pub(super) struct Plain {
    resolver: ElfResolver,
    file: File,
    /// The file's size when it was mapped, in bytes.
    size: u64,
}

/// Whether all of a file's debug information is in the file itself, and uncompressed.
pub(super) fn is_plain(elf: &Elf) -> bool {
    let packed = |(name, section): &(String, &Section)| is_packed(name, section);
    elf.shared_link().is_none()
        && elf.section_named(ADDRESSES).is_none()
        && !elf.debug_sections().iter().any(packed)
}

fn is_packed(name: &str, section: &Section) -> bool {
    section.compressed() || name.starts_with(".z")
}

impl Plain {
    /// Maps a file.
    pub fn map(file: &TargetFile) -> Option<Plain> {
        let file = readable(file)?;
        let size = file.metadata().ok()?.len();
        shrunk::survive();
        // The resolver maps the file immediately and keeps no path, so the descriptor number may be
        // reused for another file afterwards.
        let resolver = ElfResolver::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Plain {
            resolver,
            file,
            size,
        })
    }

    /// Whether the file still has all mapped bytes: what lies behind its end is read as zeros (`shrunk.rs`).
    pub fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.len() >= self.size)
    }

    pub fn look_up(&self, addr: u64) -> Option<Lines> {
        let options = FindSymOpts::CodeInfoAndInlined;
        let sym = self.resolver.find_sym(addr, &options).ok()?.ok()?;
        Some(Lines {
            name: sym.name.to_owned(),
            start: sym.addr,
            rust: sym.lang == SrcLang::Rust,
            // blazesym lists them outermost first.
            inlined: sym.inlined.iter().rev().map(inlined).collect(),
            location: sym.code_info.as_deref().and_then(location),
        })
    }
}

fn inlined(f: &InlinedFn) -> InlinedFunction {
    InlinedFunction {
        name: demangle(f.name.as_bytes()).0,
        location: f.code_info.as_ref().and_then(location),
    }
}

fn location(code: &CodeInfo) -> Option<Location> {
    let path = code.to_path();
    let file: Cow<str> = path.to_string_lossy();
    (!file.is_empty()).then(|| Location {
        file: file.into_owned(),
        line: code.line,
    })
}
