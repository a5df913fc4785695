//! Files as the mappings of pprof and OTLP.
//!
//! A profile's frames are file offsets, the same in every process. Each file is one mapping over the
//! whole address space, so readers take an address to be the one in the file's own ELF headers. If the
//! file cannot be read, addresses are file offsets.

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
    /// Its number, from 1.
    pub number: u64,
    /// In hexadecimal digits; empty if it has none.
    pub build_id: String,
    pub known: Known,
    /// Address of each used file offset.
    addresses: BTreeMap<u64, u64>,
}

/// Which symbol information is known for a file.
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
    /// One mapping for each file in the stacks, the program's own executable first.
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
        let mut all: Vec<&mut Mapping> = mappings.values_mut().collect();
        all.sort_by_key(|m| !m.module.own_executable);
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

    /// The files in the order of their numbers.
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
            build_id: String::new(),
            addresses: BTreeMap::new(),
            known: Known::default(),
        }
    }

    /// Reads the build id and the addresses, if the file has them.
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
