//! Reads debug information that is compressed, or partly in other files, with addr2line.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::{AbbreviationsCacheStrategy, Dwarf as GimliDwarf, UnitOffset};

use super::demangle::demangle;
use super::dwarf::Lines;
use super::sections::{SectionMemory, Slice};
use super::split::Split;
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_profile::symbol::{InlinedFunction, Location};
use memprof_sys::target_file::TargetFile;

/// Maximum size of a file's debug sections that are decompressed or copied into memory, in bytes. A file that exceeds
/// it gets names only.
pub(super) const MAX_UNPACKED: u64 = 1 << 30;

/// The debug information of a file.
pub(super) struct Linked {
    /// Refers to memory in `split`, so it is dropped first.
    context: Context<Slice>,
    split: RefCell<Split>,
}

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linked").finish_non_exhaustive()
    }
}

impl Linked {
    /// Reads the debug information of a module from its own file or a debug file.
    pub fn read(file: &TargetFile, elf: &Elf, module: &Module) -> Option<Linked> {
        let mut kept = SectionMemory::new(MAX_UNPACKED);
        let sections = kept.load(file, elf, false)?;
        let mut dwarf =
            GimliDwarf::load(|id| Ok::<_, Infallible>(sections.get(Some(id.name())))).ok()?;
        // Units share abbreviation lists, which would otherwise be parsed again for each unit.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut split = Split::new(module, kept);
        if let Some(shared) = split.shared(elf) {
            dwarf.set_sup(shared);
        }
        Some(Linked {
            context: Context::from_dwarf(dwarf).ok()?,
            split: RefCell::new(split),
        })
    }

    /// Whether none of its files was truncated after it was mapped.
    pub fn is_whole(&self) -> bool {
        self.split.borrow().kept.is_whole()
    }

    pub fn look_up(&self, addr: u64) -> Option<Lines> {
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
        // Without functions, the line may be that of an inlined function.
        if own.dw_die_offset.is_none() && self.missing().is_some() {
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

    /// A message about files that were not found; `None` if all were found.
    pub fn missing(&self) -> Option<String> {
        self.split.borrow().missing()
    }

    /// The first address of the function at `die`, which contains `addr`.
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

/// An inlined function; `None` if its name is in a file that was not found. The caller has the line of the call in any
/// case.
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
