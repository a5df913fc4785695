//! Inlined functions and source lines from debug information, read with blazesym.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use blazesym::helper::ElfResolver;
use blazesym::symbolize::{CodeInfo, FindSymOpts, InlinedFn, SrcLang, Symbolize};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::debuginfod_cache::CacheDirs;
use super::demangle::demangle;
use super::packed::unpacks_within;
use super::{ModuleKey, debugfile, shrunk};
use crate::elf::Elf;
use crate::profile::Module;
use crate::symbol::{InlinedFunction, Language, Location};
use crate::target_file::TargetFile;

/// Maximum size of decompressed debug sections, in bytes, because they are decompressed into memory; files
/// that exceed it get names only.
const MAX_UNPACKED: u64 = 1 << 30;
/// Maximum size of a file that is copied for its debug information, in bytes.
const MAX_COPIED: u64 = 256 << 20;
/// Maximum number of files whose debug information is kept between requests.
const MAX_OPEN: usize = 16;

/// The debug information for one address.
#[derive(Debug)]
pub struct Lines {
    /// The mangled name of the function that contains the address; may be empty.
    pub name: String,
    /// First address of the function.
    pub start: u64,
    /// Whether debug information gives Rust as the language.
    pub rust: bool,
    /// Functions inlined at the address, innermost first.
    pub inlined: Vec<InlinedFunction>,
    /// Source position of the address in the function itself.
    pub location: Option<Location>,
}

/// Debug information of recently requested files.
#[derive(Debug, Default)]
pub struct Dwarf {
    open: HashMap<ModuleKey, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Prevents reuse of the key for another module.
    _module: Weak<Module>,
    source: Option<Source>,
}

/// A file whose debug information is mapped.
#[derive(Debug)]
struct Source {
    resolver: ElfResolver,
    file: File,
    /// The file's size when it was mapped, in bytes.
    size: u64,
}

impl Source {
    fn map(file: &TargetFile, elf: &Elf) -> Option<Source> {
        if !unpacks_within(elf, MAX_UNPACKED) {
            return None;
        }
        let file = match file.opened() {
            Some(file) => file.try_clone().ok()?,
            None => copy(file)?,
        };
        let size = file.metadata().ok()?.len();
        shrunk::survive();
        // The resolver maps the file immediately and keeps no path, so the descriptor number may be
        // reused for another file afterwards.
        let resolver = ElfResolver::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Source {
            resolver,
            file,
            size,
        })
    }

    /// Whether the file still has all mapped bytes: what lies behind its end is read as zeros (`shrunk.rs`).
    fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.len() >= self.size)
    }
}

impl Dwarf {
    /// Drops all debug information; it is read again when needed.
    pub fn clear(&mut self) {
        self.open = HashMap::new();
    }

    /// Drops the debug information of one module.
    pub(super) fn forget(&mut self, key: ModuleKey) {
        self.open.remove(&key);
    }

    /// Whether anything is held in memory.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Source lines for addresses (in the file's own addresses) of a module, in the same order;
    /// `None` if there is no debug information.
    pub(super) fn lines(
        &mut self,
        module: &Arc<Module>,
        elf: &Elf,
        cache: &CacheDirs,
        addrs: &[u64],
    ) -> Vec<Option<Lines>> {
        // Malformed debug information can make blazesym panic. Then only the lines are lost, because names
        // come from the symbol table, and the file is not tried again.
        let found = catch_unwind(AssertUnwindSafe(|| self.read(module, elf, cache, addrs)));
        found.unwrap_or_else(|_| {
            let _module = Arc::downgrade(module);
            let source = None;
            let broken = Entry { _module, source };
            self.open.insert(ModuleKey::of(module), broken);
            addrs.iter().map(|_| None).collect()
        })
    }

    fn read(
        &mut self,
        module: &Arc<Module>,
        elf: &Elf,
        cache: &CacheDirs,
        addrs: &[u64],
    ) -> Vec<Option<Lines>> {
        let key = ModuleKey::of(module);
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&key) {
            self.clear();
        }
        let entry = self.open.entry(key).or_insert_with(|| {
            let _module = Arc::downgrade(module);
            Entry {
                _module,
                source: open(module, elf, cache),
            }
        });
        let found = entry
            .source
            .as_ref()
            .filter(|s| s.is_whole())
            .map(|source| {
                let found = addrs.iter().map(|addr| look_up(&source.resolver, *addr));
                let found: Vec<_> = found.collect();
                (source, found)
            });
        match found.filter(|(source, _)| source.is_whole()) {
            Some((_, found)) => found,
            None => addrs.iter().map(|_| None).collect(),
        }
    }
}

fn open(module: &Module, elf: &Elf, cache: &CacheDirs) -> Option<Source> {
    if elf.has_debug_info() {
        return Source::map(module.file.as_ref()?, elf);
    }
    let debug = debugfile::find(elf, &module.path, cache)?;
    let elf = Elf::read(&debug).ok().filter(Elf::has_debug_info)?;
    Source::map(&debug, &elf)
}

/// A copy in memory: reading a mapping of the file would wait for its file system without a limit.
fn copy(file: &TargetFile) -> Option<File> {
    if file.about().size() > MAX_COPIED {
        return None;
    }
    let mut copy = File::from(memfd_create(c"debug-info", MFdFlags::MFD_CLOEXEC).ok()?);
    let copied = io::copy(&mut file.contents().take(MAX_COPIED + 1), &mut copy).ok()?;
    (copied <= MAX_COPIED).then_some(copy)
}

fn look_up(resolver: &ElfResolver, addr: u64) -> Option<Lines> {
    let sym = resolver
        .find_sym(addr, &FindSymOpts::CodeInfoAndInlined)
        .ok()?
        .ok()?;
    Some(Lines {
        name: sym.name.to_owned(),
        start: sym.addr,
        rust: sym.lang == SrcLang::Rust,
        // blazesym lists them outermost first.
        inlined: sym.inlined.iter().rev().map(inlined).collect(),
        location: sym.code_info.as_deref().and_then(location),
    })
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

impl Lines {
    /// The function's own name demangled and its language; `None` if it has no name.
    pub fn function(&self) -> Option<(String, Language)> {
        if self.name.is_empty() {
            return None;
        }
        let (name, language) = demangle(self.name.as_bytes());
        Some((name, if self.rust { Language::Rust } else { language }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Between a look at its size and the reading of it, a file may be cut.
    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_no_end() {
        let own = fs::read("/proc/self/exe").unwrap();
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &own).unwrap();
        let cut = file.try_clone().unwrap();
        let file = TargetFile::from(file);
        let elf = Elf::read(&file).unwrap();
        if !elf.has_debug_info() {
            return crate::skip::skip("the tests are built without debug information");
        }
        let source = Source::map(&file, &elf).unwrap();
        let code = *elf.code_segments().next().unwrap();
        cut.set_len(4096).unwrap();
        for inside in (0..code.size).step_by(1 << 20) {
            let _ = look_up(&source.resolver, code.addr + inside);
        }
        assert!(!source.is_whole());
    }
}
