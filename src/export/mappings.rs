//! Files as the mappings of pprof and OTLP.
//!
//! A profile's frames are file offsets, the same in every process. Each file becomes one mapping over the whole address
//! space, so that readers interpret an address as an address in the file's own ELF headers. If the file cannot be read,
//! addresses are file offsets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memprof_profile::symbol::{Function, Symbols};
use memprof_profile::{Frame, FrameKind, Module, ModuleId, Profile};
use memprof_sys::text::hex;

/// The files in a profile's stacks.
pub(crate) struct Mappings(BTreeMap<ModuleId, Mapping>);

/// A file.
pub(crate) struct Mapping {
    pub module: Arc<Module>,
    /// Number of the mapping, from 1.
    pub number: u64,
    /// Bytes of resident memory of the stacks through the file.
    resident: u64,
    /// Build id in hexadecimal digits; empty if the file has none.
    pub build_id: String,
    pub known: Known,
    /// The address of each used file offset.
    addresses: BTreeMap<u64, u64>,
}

/// The symbol information that is known for a file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    pub functions: bool,
    pub files: bool,
    pub lines: bool,
    pub inlined: bool,
}

impl Known {
    fn add(&mut self, function: &Function) {
        let place = function.location.as_ref();
        self.functions = true;
        self.files |= place.is_some();
        self.lines |= place.is_some_and(|p| p.line.is_some());
        self.inlined |= !function.inlined.is_empty();
    }
}

impl Mappings {
    /// One mapping for each file in the stacks; the program's own executable comes first, since readers name the profile after
    /// it. Of a script that has executed the actual program, that is the executable with more memory.
    pub fn new(profile: &Profile, symbols: &Symbols) -> Mappings {
        let stacks = profile.samples.iter();
        let frames = stacks.flat_map(|s| s.stack.frames.iter().copied());
        let distinct: BTreeSet<Frame> = frames.collect();
        let mut mappings = BTreeMap::new();
        for frame in distinct {
            let FrameKind::Code(id, offset) = frame.kind() else {
                continue;
            };
            let Some(module) = profile.module(id) else {
                continue;
            };
            let mapping = mappings.entry(id).or_insert_with(|| Mapping::new(module));
            mapping.addresses.insert(offset, offset);
            if let Some(function) = symbols.function(frame) {
                mapping.known.add(function);
            }
        }
        for sample in &profile.samples {
            let modules = sample.stack.frames.iter().filter_map(|f| match f.kind() {
                FrameKind::Code(id, _) => Some(id),
                FrameKind::Unmapped(_) => None,
            });
            for id in modules.collect::<BTreeSet<_>>() {
                if let Some(mapping) = mappings.get_mut(&id) {
                    mapping.resident += sample.amounts.usage.resident();
                }
            }
        }
        let mut all: Vec<&mut Mapping> = mappings.values_mut().collect();
        all.sort_by_key(|m| Reverse((m.module.own_executable, m.resident)));
        for (at, mapping) in all.into_iter().enumerate() {
            mapping.number = at as u64 + 1;
            mapping.read_file();
        }
        Mappings(mappings)
    }

    /// The mapping number and the address of a file offset.
    pub fn place(&self, module: ModuleId, offset: u64) -> Option<(u64, u64)> {
        let mapping = self.0.get(&module)?;
        Some((mapping.number, *mapping.addresses.get(&offset)?))
    }

    /// The files, in the order of their numbers.
    pub fn files(&self) -> Vec<&Mapping> {
        let mut all: Vec<&Mapping> = self.0.values().collect();
        all.sort_by_key(|m| m.number);
        all
    }
}

impl Mapping {
    fn new(module: &Arc<Module>) -> Mapping {
        Mapping {
            module: Arc::clone(module),
            number: 0,
            resident: 0,
            build_id: String::new(),
            addresses: BTreeMap::new(),
            known: Known::default(),
        }
    }

    /// Reads the build id and the addresses, if the file is readable.
    fn read_file(&mut self) {
        let Some(layout) = memprof_code::layout::of_module(&self.module) else {
            return;
        };
        self.build_id = hex(&layout.build_id);
        for (offset, address) in &mut self.addresses {
            *address = layout.address_of(*offset).unwrap_or(*offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, kib, module, profile};

    /// A shell script that executes Python is a profile of Python.
    #[test]
    fn the_executable_with_most_memory_comes_first() {
        let mut profile = profile(
            &[
                (&[at(0, 1)], kib(4, 0)),
                (&[at(1, 1)], kib(8, 0)),
                (&[at(2, 1)], kib(100, 0)),
            ],
            &[],
        );
        profile.modules = Arc::new([
            module("bash", true),
            module("python3", true),
            module("libc.so.6", false),
        ]);
        let mappings = Mappings::new(&profile, &Symbols::default());
        let names = mappings.files().into_iter();
        let names: Vec<_> = names.map(|file| file.module.name.clone()).collect();
        assert_eq!(names, ["python3", "bash", "libc.so.6"]);
        assert_eq!(mappings.place(ModuleId(1), 1), Some((1, 1)));
    }
}
