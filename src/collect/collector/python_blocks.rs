//! Which Python interpreters have blocks that the sampling library does not see.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Collector;
use memprof_code::modules::AddressMap;
use memprof_heap::sampler::{self, Preloaded, PythonState, Stats};
use memprof_profile::{Losses, Module, ModuleId};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::messages;

/// Beginnings of the names of files that contain CPython.
const INTERPRETERS: [&str; 2] = ["python", "libpython"];

/// The role of a file, by an executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Library,
    Interpreter,
    Other,
}

/// A followed process with code.
#[derive(Debug, Default)]
struct Process {
    /// Address of the library's counters.
    stats: Option<u64>,
    has_interpreter: bool,
}

/// The interpreters of the followed processes.
#[derive(Debug, Default)]
pub(super) struct PythonBlocks {
    roles: HashMap<ModuleId, Role>,
    processes: BTreeMap<MmId, Process>,
    /// Whether the user knows of such an interpreter.
    printed: Cell<bool>,
}

impl PythonBlocks {
    /// Examines the code that an address space has mapped. `may_be_library` says which files have a sampler's probes.
    pub(super) fn look(
        &mut self,
        mm: MmId,
        code: &AddressMap,
        modules: &[Arc<Module>],
        may_be_library: impl Fn(ModuleId, &Module) -> bool,
    ) {
        let mut found = Process::default();
        for (start, end, offset, id) in code.ranges() {
            let Some(module) = modules.get(usize::from(id.0)) else {
                continue;
            };
            let Some(file) = module.file.as_ref().filter(|file| !file.is_own()) else {
                continue;
            };
            let address = || sampler::stats_address(file, (start, end, offset));
            let role = *self.roles.entry(id).or_insert_with(|| {
                let name = module.path.file_name().and_then(|name| name.to_str());
                let is_interpreter = |name: &str| INTERPRETERS.iter().any(|i| name.starts_with(i));
                if name.is_some_and(is_interpreter) {
                    Role::Interpreter
                } else if may_be_library(id, module) && address().is_some() {
                    Role::Library
                } else {
                    Role::Other
                }
            });
            match role {
                Role::Library => found.stats = address(),
                Role::Interpreter => found.has_interpreter = true,
                Role::Other => {}
            }
        }
        self.processes.insert(mm, found);
    }

    /// Forgets the address spaces that have ended.
    pub(super) fn retain(&mut self, has: impl Fn(MmId) -> bool) {
        self.processes.retain(|mm, _| has(*mm));
    }

    /// The processes whose interpreter has blocks that are not sampled. `preloaded` is the library that memprof preloads: it
    /// may have been loaded after the process's code was examined.
    fn unsampled(
        &self,
        preloaded: Option<&Preloaded>,
        pid_of: impl Fn(MmId) -> Option<Pid>,
    ) -> Vec<(Pid, PythonState)> {
        let with_interpreter = self.processes.iter().filter(|(_, p)| p.has_interpreter);
        let unsampled = with_interpreter.filter_map(|(mm, process)| {
            let pid = pid_of(*mm)?;
            let stats = match process.stats {
                Some(address) => Stats::read(pid, address),
                None => preloaded?.stats(pid),
            };
            let state = stats.ok()??.python;
            matches!(state, PythonState::NotFound | PythonState::Hidden).then_some((pid, state))
        });
        unsampled.collect()
    }
}

impl Collector {
    /// Counts the interpreters whose blocks are not sampled.
    pub(super) fn python_losses(&self, losses: &mut Losses) {
        let (aggregator, python) = (&self.aggregator, &self.samplers.python);
        let unsampled = python.unsampled(self.samplers.preloaded(), |mm| aggregator.pid_of(mm));
        if let Some((pid, state)) = unsampled.first().filter(|_| !python.printed.get()) {
            let why = match state {
                PythonState::NotFound => {
                    "its functions are not exported, or it was loaded after the start"
                }
                _ => "the program has installed another allocator, or its tables were not found",
            };
            messages::print(&format!(
                "process {pid} has a Python whose own blocks, of up to 512 bytes each, are not sampled: {why}; `PYTHONMALLOC=malloc` \
                 has it use malloc, and `memprof heap --pid {pid}` says how much they are"
            ));
            python.printed.set(true);
        }
        losses.add(
            "Python interpreters whose own blocks, of up to 512 bytes, are not sampled: they are in no figure of the heap by stack",
            unsampled.len() as u64,
        );
    }
}
