//! The interface of the symbol thread to the fetch thread (`crate::debuginfod`). The symbol thread requests debug
//! files and receives the ids of those that have arrived in the cache directory. It never waits for one.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::ModuleKey;
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_sys::text::hex;

/// Valid sizes of build ids, in bytes. Linkers write 8, 16 or 20.
const SIZES: std::ops::RangeInclusive<usize> = 4..=64;
/// Maximum number of requested files.
const MAX_ASKED: usize = 4096;

/// The build id of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BuildId(pub Vec<u8>);

impl BuildId {
    /// The build id of a file; `None` if it has none, or one of an implausible size.
    pub fn from_elf(elf: &Elf) -> Option<BuildId> {
        let id = elf.build_id().filter(|id| SIZES.contains(&id.len()))?;
        Some(BuildId(id))
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// A request for the debug file of a file without names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Build id of the file.
    pub id: BuildId,
    /// Base name of the file, for messages.
    pub name: String,
}

/// The symbol thread's channels to the fetch thread.
#[derive(Debug)]
pub struct Fetch {
    /// Requests. If the channel is full, the file is requested again at its next lookup.
    pub wanted: SyncSender<FetchRequest>,
    /// Build ids whose debug files have arrived in the cache directory.
    pub arrived: Receiver<BuildId>,
}

/// The requests so far.
#[derive(Debug, Default)]
pub(super) struct Requests {
    fetch: Option<Fetch>,
    asked: HashSet<BuildId>,
    modules: HashMap<ModuleKey, BuildId>,
}

impl Requests {
    pub fn new(fetch: Option<Fetch>) -> Requests {
        Requests {
            fetch,
            ..Requests::default()
        }
    }

    /// Requests the debug file of a module, once.
    pub fn want(&mut self, module: &Arc<Module>, elf: &Elf) {
        let Some(fetch) = &self.fetch else { return };
        // The vDSO's path is not absolute.
        let Some(id) = BuildId::from_elf(elf).filter(|_| module.path.is_absolute()) else {
            return;
        };
        if !self.asked.contains(&id) {
            let wanted = FetchRequest {
                id: id.clone(),
                name: module.name.clone(),
            };
            if self.asked.len() >= MAX_ASKED || fetch.wanted.try_send(wanted).is_err() {
                return;
            }
            self.asked.insert(id.clone());
        }
        self.modules.insert(ModuleKey::new(module), id);
    }

    /// The modules whose debug files have arrived since the last call.
    pub fn arrived(&mut self) -> HashSet<ModuleKey> {
        let Some(fetch) = &self.fetch else {
            return HashSet::new();
        };
        let ids: HashSet<BuildId> = fetch.arrived.try_iter().collect();
        if ids.is_empty() {
            return HashSet::new();
        }
        let mut keys = HashSet::new();
        self.modules.retain(|key, id| {
            let there = ids.contains(id);
            keys.extend(there.then_some(*key));
            !there
        });
        keys
    }

    /// Removes modules for which `keep` returns `false`.
    pub fn retain(&mut self, keep: impl Fn(&ModuleKey) -> bool) {
        self.modules.retain(|key, _| keep(key));
    }
}
