//! The seam to whoever fetches debug files from servers (`crate::debuginfod`): the symbol thread says which files it
//! would like to have, and is told which ones have arrived in the cache directory. It never waits for one.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::ModuleKey;
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_sys::text::hex;

/// Sizes of build ids, in bytes. Linkers write 8, 16 or 20.
const SIZES: std::ops::RangeInclusive<usize> = 4..=64;
/// Maximum number of files that are asked for.
const MAX_ASKED: usize = 4096;

/// The build id of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BuildId(pub Vec<u8>);

impl BuildId {
    /// That of a file, if it has one of a plausible size.
    pub fn of(elf: &Elf) -> Option<BuildId> {
        let id = elf.build_id().filter(|id| SIZES.contains(&id.len()))?;
        Some(BuildId(id))
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// A file without names whose debug file is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its build id.
    pub id: BuildId,
    /// Its base name, for messages.
    pub name: String,
}

/// The channels of the symbol thread to the one that fetches.
#[derive(Debug)]
pub struct Fetch {
    /// What is wanted. When it is full, the file is asked for again with the next request.
    pub wanted: SyncSender<Wanted>,
    /// What has arrived in the cache directory.
    pub arrived: Receiver<BuildId>,
}

/// What was asked for.
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

    /// Asks for the debug file of a module, once.
    pub fn want(&mut self, module: &Arc<Module>, elf: &Elf) {
        let Some(fetch) = &self.fetch else { return };
        // (The vDSO's path is not absolute.)
        let Some(id) = BuildId::of(elf).filter(|_| module.path.is_absolute()) else {
            return;
        };
        if !self.asked.contains(&id) {
            let wanted = Wanted {
                id: id.clone(),
                name: module.name.clone(),
            };
            if self.asked.len() >= MAX_ASKED || fetch.wanted.try_send(wanted).is_err() {
                return;
            }
            self.asked.insert(id.clone());
        }
        self.modules.insert(ModuleKey::of(module), id);
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

    /// Forgets modules for which `keep` returns `false`.
    pub fn retain(&mut self, keep: impl Fn(&ModuleKey) -> bool) {
        self.modules.retain(|key, _| keep(key));
    }
}
