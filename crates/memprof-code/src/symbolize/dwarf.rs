//! Looks up inlined functions and source lines in debug information.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::debuginfod_cache::CacheDirs;
use super::demangle::demangle;
use super::linked::{self, Linked};
use super::plain::{self, Plain};
use super::{ModuleKey, debugfile};
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_profile::symbol::{InlinedFunction, Language, Location};
use memprof_sys::target_file::TargetFile;

/// Maximum number of files whose debug information stays open between requests.
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

/// The debug information of recently requested files.
#[derive(Debug, Default)]
pub struct Dwarf {
    open: HashMap<ModuleKey, Entry>,
    /// Messages about debug information that could not be read, by module.
    unread: HashMap<ModuleKey, String>,
}

#[derive(Debug)]
struct Entry {
    /// Prevents reuse of the key for another module.
    _module: Weak<Module>,
    source: Option<Source>,
}

/// The debug information of a file.
#[derive(Debug)]
enum Source {
    Plain(Plain),
    Linked(Box<Linked>),
}

impl Source {
    /// Reads the debug information of a module from its own file or a debug file.
    fn read(file: &TargetFile, elf: &Elf, module: &Module) -> Option<Source> {
        match plain::is_plain(elf) {
            true => Plain::map(file).map(Source::Plain),
            false => Linked::read(file, elf, module).map(|linked| Source::Linked(Box::new(linked))),
        }
    }

    /// Whether none of its files was truncated after it was mapped.
    fn is_whole(&self) -> bool {
        match self {
            Source::Plain(plain) => plain.is_whole(),
            Source::Linked(linked) => linked.is_whole(),
        }
    }

    fn look_up(&self, addr: u64) -> Option<Lines> {
        match self {
            Source::Plain(plain) => plain.look_up(addr),
            Source::Linked(linked) => linked.look_up(addr),
        }
    }

    /// A message about files that were not found; `None` if all were found.
    fn missing(&self) -> Option<String> {
        match self {
            Source::Plain(_) => None,
            Source::Linked(linked) => linked.missing(),
        }
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
        self.unread.remove(&key);
    }

    /// Drops the messages about modules for which `known` returns `false`.
    pub(super) fn retain(&mut self, known: impl Fn(&ModuleKey) -> bool) {
        self.unread.retain(|key, _| known(key));
    }

    /// A message about unread parts of a module's debug information, if any.
    pub(super) fn unread(&self, key: ModuleKey) -> Option<&str> {
        self.unread.get(&key).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Source lines for addresses (in the file's own addresses) of a module, in the same order; `None` where there is
    /// no debug information.
    pub(super) fn lines(
        &mut self,
        module: &Arc<Module>,
        elf: &Elf,
        cache: &CacheDirs,
        addrs: &[u64],
    ) -> Vec<Option<Lines>> {
        // Malformed debug information might make the reader panic. Then only the lines are lost, because names come
        // from the symbol table, and the file is not tried again.
        let found = catch_unwind(AssertUnwindSafe(|| self.read(module, elf, cache, addrs)));
        found.unwrap_or_else(|_| {
            let _module = Arc::downgrade(module);
            let source = None;
            let broken = Entry { _module, source };
            self.open.insert(ModuleKey::new(module), broken);
            self.unread.insert(ModuleKey::new(module), damaged(module));
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
        let key = ModuleKey::new(module);
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&key) {
            self.clear();
        }
        if !self.open.contains_key(&key) {
            let _module = Arc::downgrade(module);
            let source = open(module, elf, cache).unwrap_or_else(|Unreadable| {
                self.unread.insert(key, damaged(module));
                None
            });
            self.open.insert(key, Entry { _module, source });
        }
        let source = self.open.get(&key).and_then(|entry| entry.source.as_ref());
        let found = source.filter(|s| s.is_whole()).map(|source| {
            let found: Vec<_> = addrs.iter().map(|addr| source.look_up(*addr)).collect();
            (source, found)
        });
        if let Some(missing) = source.and_then(Source::missing) {
            let what = format!(
                "Not all debug information of {} was read: {missing}",
                module.name
            );
            self.unread.insert(key, what);
        }
        match found.filter(|(source, _)| source.is_whole()) {
            Some((_, found)) => found,
            None => addrs.iter().map(|_| None).collect(),
        }
    }
}

/// The file has debug information that cannot be read.
struct Unreadable;

fn open(module: &Module, elf: &Elf, cache: &CacheDirs) -> Result<Option<Source>, Unreadable> {
    let read = |file: &TargetFile, elf: &Elf| Source::read(file, elf, module).ok_or(Unreadable);
    if elf.has_debug_info() {
        return module.file.as_ref().map(|file| read(file, elf)).transpose();
    }
    let Some(debug) = debugfile::find(elf, module, cache) else {
        return Ok(None);
    };
    let elf = Elf::read(&debug).ok().filter(Elf::has_debug_info);
    elf.map(|elf| read(&debug, &elf)).transpose()
}

fn damaged(module: &Module) -> String {
    format!(
        "No debug information of {} was read: it is damaged, compressed in an unknown way, or larger than {} MiB",
        module.name,
        linked::MAX_UNPACKED >> 20
    )
}

impl Lines {
    /// The function's own name, demangled, and its language; `None` if it has no name.
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
    use std::io::Write;

    use super::*;

    /// A file may be truncated between checking its size and reading it.
    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_no_end() {
        let bytes = fs::read("/proc/self/exe").unwrap();
        for is_linked in [false, true] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let cut = file.try_clone().unwrap();
            let file = TargetFile::from(file);
            let elf = Elf::read(&file).unwrap();
            if !elf.has_debug_info() {
                return crate::skip::skip("the tests are built without debug information");
            }
            let source = match is_linked {
                true => {
                    Source::Linked(Box::new(Linked::read(&file, &elf, &Module::jit()).unwrap()))
                }
                false => Source::Plain(Plain::map(&file).unwrap()),
            };
            let code = *elf.code_segments().next().unwrap();
            cut.set_len(4096).unwrap();
            for inside in (0..code.size).step_by(1 << 20) {
                let _ = source.look_up(code.addr + inside);
            }
            assert!(!source.is_whole());
        }
    }
}
