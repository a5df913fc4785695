//! Inlined functions and source lines from debug information, read with addr2line.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Weak};

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::{AbbreviationsCacheStrategy, Dwarf as GimliDwarf, UnitOffset};

use super::debuginfod_cache::CacheDirs;
use super::demangle::demangle;
use super::sections::{Kept, Slice};
use super::split::Split;
use super::{ModuleKey, debugfile};
use crate::elf::Elf;
use crate::profile::Module;
use crate::symbol::{InlinedFunction, Language, Location};
use crate::target_file::TargetFile;

/// Maximum size of the debug sections of a file that are decompressed or copied into memory, in bytes; a file
/// that exceeds it gets names only.
const MAX_UNPACKED: u64 = 1 << 30;
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
    /// What was not read of the debug information of files, in words.
    unread: HashMap<ModuleKey, String>,
}

#[derive(Debug)]
struct Entry {
    /// Prevents reuse of the key for another module.
    _module: Weak<Module>,
    source: Option<Source>,
}

/// The debug information of a file.
struct Source {
    /// Refers to what `split` keeps, so it is dropped first.
    context: Context<Slice>,
    split: RefCell<Split>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Source {
    /// Reads the debug information of a file that belongs to the program at this path.
    fn read(file: &TargetFile, elf: &Elf, program: &Path) -> Option<Source> {
        let mut kept = Kept::new(MAX_UNPACKED);
        let sections = kept.load(file, elf, false)?;
        let mut dwarf =
            GimliDwarf::load(|id| Ok::<_, Infallible>(sections.get(Some(id.name())))).ok()?;
        // Units share their lists of abbreviations, which would be read again for each.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut split = Split::new(program, kept);
        if let Some(shared) = split.shared(elf) {
            dwarf.set_sup(shared);
        }
        Some(Source {
            context: Context::from_dwarf(dwarf).ok()?,
            split: RefCell::new(split),
        })
    }

    fn is_whole(&self) -> bool {
        self.split.borrow().kept.is_whole()
    }

    fn look_up(&self, addr: u64) -> Option<Lines> {
        let mut found = self.context.find_frames(addr);
        let mut frames = loop {
            found = match found {
                LookupResult::Output(frames) => break frames.ok()?,
                LookupResult::Load { load, continuation } => {
                    continuation.resume(self.split.borrow_mut().unit(&load))
                }
            };
        };
        let (mut inlined, mut outermost) = (Vec::new(), None);
        while let Some(frame) = frames.next().ok()? {
            inlined.extend(
                outermost
                    .replace(frame)
                    .and_then(|inner| self::inlined(&inner)),
            );
        }
        let own = outermost?;
        // Without functions the line may be that of an inlined one.
        if own.dw_die_offset.is_none() && self.split.borrow().missing().is_some() {
            return None;
        }
        let name = own.function.as_ref();
        Some(Lines {
            name: name
                .and_then(|f| Some(f.raw_name().ok()?.into_owned()))
                .unwrap_or_default(),
            start: own
                .dw_die_offset
                .and_then(|die| self.start(addr, die))
                .unwrap_or(addr),
            rust: name.is_some_and(|f| f.language == Some(gimli::DW_LANG_Rust)),
            inlined,
            location: own.location.as_ref().and_then(location),
        })
    }

    /// The first address of the function with this entry, which contains the address.
    fn start(&self, addr: u64, die: UnitOffset) -> Option<u64> {
        let unit = self.context.find_dwarf_and_unit(addr).skip_all_loads()?;
        let mut ranges = unit.die_ranges(&unit.entry(die).ok()?).ok()?;
        let mut first = None;
        while let Some(range) = ranges.next().ok()? {
            first = Some(first.map_or(range.begin, |first: u64| first.min(range.begin)));
        }
        first
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

    /// Forgets what was not read of other modules than these.
    pub(super) fn retain(&mut self, known: impl Fn(&ModuleKey) -> bool) {
        self.unread.retain(|key, _| known(key));
    }

    /// What was not read of a module's debug information, if anything.
    pub(super) fn unread(&self, key: ModuleKey) -> Option<&str> {
        self.unread.get(&key).map(String::as_str)
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
        // Malformed debug information might make its reader panic. Then only the lines are lost, because names
        // come from the symbol table, and the file is not tried again.
        let found = catch_unwind(AssertUnwindSafe(|| self.read(module, elf, cache, addrs)));
        found.unwrap_or_else(|_| {
            let _module = Arc::downgrade(module);
            let source = None;
            let broken = Entry { _module, source };
            self.open.insert(ModuleKey::of(module), broken);
            self.unread.insert(ModuleKey::of(module), damaged(module));
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
        if let Some(missing) = source.and_then(|source| source.split.borrow().missing()) {
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
    let read =
        |file: &TargetFile, elf: &Elf| Source::read(file, elf, &module.path).ok_or(Unreadable);
    if elf.has_debug_info() {
        return module.file.as_ref().map(|file| read(file, elf)).transpose();
    }
    let Some(debug) = debugfile::find(elf, &module.path, cache) else {
        return Ok(None);
    };
    let elf = Elf::read(&debug).ok().filter(Elf::has_debug_info);
    elf.map(|elf| read(&debug, &elf)).transpose()
}

fn damaged(module: &Module) -> String {
    format!(
        "No debug information of {} was read: it is damaged, compressed in an unknown way, or larger than {} MiB",
        module.name,
        MAX_UNPACKED >> 20
    )
}

/// An inlined function; `None` if its name is in a file that was not found. Its caller has the line of the call in any case.
fn inlined(frame: &Frame<'_, Slice>) -> Option<InlinedFunction> {
    let function = frame.function.as_ref()?;
    Some(InlinedFunction {
        name: demangle(function.raw_name().ok()?.as_bytes()).0,
        location: frame.location.as_ref().and_then(location),
    })
}

fn location(found: &addr2line::Location<'_>) -> Option<Location> {
    let file = found.file.filter(|file| !file.is_empty())?;
    Some(Location {
        file: file.to_owned(),
        line: found.line.filter(|line| *line > 0),
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
    use std::io::Write;

    use super::*;

    /// Between a look at its size and the reading of it, a file may be cut.
    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_no_end() {
        let own = fs::read("/proc/self/exe").unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&own).unwrap();
        let cut = file.try_clone().unwrap();
        let file = TargetFile::from(file);
        let elf = Elf::read(&file).unwrap();
        if !elf.has_debug_info() {
            return crate::skip::skip("the tests are built without debug information");
        }
        let source = Source::read(&file, &elf, Path::new("/proc/self/exe")).unwrap();
        let code = *elf.code_segments().next().unwrap();
        cut.set_len(4096).unwrap();
        for inside in (0..code.size).step_by(1 << 20) {
            let _ = source.look_up(code.addr + inside);
        }
        assert!(!source.is_whole());
    }
}
