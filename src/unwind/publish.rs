//! Tables into the probe's maps: each file once, shared by every process that maps it.
//!
//! Building is slow (a large library takes tens of milliseconds), so a thread of its own does it. Until
//! a file's table is there its mapping says "no table"; the walk then gets by with frame pointers.
//! Published in the order rules, rows, pages, mappings: what the probe finds is whole. When the maps are
//! full, tables that no followed process maps any more make room. Their numbers are not given again: a
//! process that still names one, forked a moment ago, finds no table, and not another file's. What did
//! not fit then is tried again when a process has left room behind.
//!
//! Stacks of what has no table yet are not unwound in user space meanwhile: what would be copied for that
//! (registers, and up to 32 KiB of stack for each) buys next to nothing. Measured from a program's first
//! instruction on, with everything still to be built: of the bytes in use after a second, those under
//! complete stacks are 100.000 % for CPython, rustc and SQLite, 99.76 % for node (0.12 % for want of a
//! table, as much for its depth). Stacks without a table are some ten of a thousand, whose memory is soon
//! given back.

mod room;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::eventfd::EventFd;

use self::room::Room;
use super::{Packed, Rule, Table};
use crate::elf::{Elf, Segment, address_of_mapping};
use crate::event::MmId;
use crate::modules::AddressMap;
use crate::profile::{Module, ModuleId};

/// Files whose tables may wait to be built; further ones are asked for again later.
const QUEUE: usize = 4096;

/// One executable mapping, as the probe has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Address less this is the address in the file (ELF virtual address).
    pub bias: u64,
    /// The file's table; 0 for none (yet).
    pub table: u32,
}

/// Where tables are published: the probe's maps.
pub trait TableStore {
    /// Rules that fit in all.
    const RULES: u32;
    /// Rows of one chunk.
    const CHUNK_ROWS: u32;
    /// Chunks that fit in all.
    const CHUNKS: u32;
    /// Mappings of one address space.
    const MAPPINGS: usize;

    /// Writes rules from index `first` on.
    ///
    /// # Errors
    /// The map refused them.
    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()>;

    /// Writes rows of a chunk, each part from the row named on; makes the chunk if it is new.
    ///
    /// # Errors
    /// The map refused them.
    fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()>;

    /// Writes a page: where in which chunk its rows are, and where the table's rules begin.
    ///
    /// # Errors
    /// The map refused it.
    fn write_page(&mut self, table: u32, page: u32, at: PageAt) -> Result<()>;

    /// Drops a page.
    fn delete_page(&mut self, table: u32, page: u32);

    /// Writes the mappings of an address space; those beyond what fits are left out. Returns how many.
    ///
    /// # Errors
    /// The map refused them.
    fn write_mappings(&mut self, mm: MmId, mappings: &[CodeMapping]) -> Result<u64>;
}

/// Where a page's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAt {
    /// The chunk.
    pub chunk: u32,
    /// Its first row there.
    pub first: u32,
    /// How many rows.
    pub count: u32,
    /// The first of the table's rules.
    pub rules: u32,
}

/// A table made by the thread.
struct Built {
    module: ModuleId,
    file: Arc<Module>,
    table: Result<(Packed, Vec<Rule>, Vec<Segment>), String>,
}

/// A file's table.
enum State {
    /// Being built.
    Wanted,
    /// In the maps.
    Ready(Place, Vec<Segment>),
    /// It did not fit.
    Refused(Arc<Module>),
    /// There is none, and will be none.
    None,
}

/// Where a table is in the maps.
struct Place {
    table: u32,
    first_rule: u32,
    rules: u32,
    /// By number (address / 65,536).
    pages: Vec<(u32, PageAt)>,
}

/// Keeps the probe's tables and mappings up to date.
pub struct Publisher {
    requests: SyncSender<(ModuleId, Arc<Module>)>,
    built: Receiver<Built>,
    files: HashMap<ModuleId, State>,
    /// Address spaces with a file whose table is being built.
    waiting: HashSet<MmId>,
    /// The files that each address space maps.
    mapped: HashMap<MmId, HashSet<ModuleId>>,
    /// Whether a table has come since these were last told.
    fresh: bool,
    next_table: u32,
    /// Free rules, and free rows of all chunks.
    rules: Option<Room>,
    rows: Option<Room>,
    refused: HashSet<ModuleId>,
    left_out: u64,
}

impl Publisher {
    /// Starts the thread; it writes to `wake` when a table is there.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(wake: Arc<EventFd>) -> Result<Publisher> {
        let (requests, wanted) = sync_channel::<(ModuleId, Arc<Module>)>(QUEUE);
        let (done, built) = channel();
        thread::Builder::new()
            .name("memprof-tables".into())
            .spawn(move || {
                for (module, file) in wanted {
                    let table = build(&file);
                    let built = Built {
                        module,
                        file,
                        table,
                    };
                    if done.send(built).is_err() {
                        return;
                    }
                    let _ = wake.write(1);
                }
            })
            .context("cannot start the thread that builds unwind tables")?;
        Ok(Publisher {
            requests,
            built,
            files: HashMap::new(),
            waiting: HashSet::new(),
            mapped: HashMap::new(),
            fresh: false,
            next_table: 1,
            rules: None,
            rows: None,
            refused: HashSet::new(),
            left_out: 0,
        })
    }

    /// Has the tables of a process's files built and waits for them, at most so long.
    ///
    /// # Errors
    /// The maps could not be written.
    pub fn prepare<S: TableStore>(
        &mut self,
        code: &AddressMap,
        modules: &[Arc<Module>],
        store: &mut S,
        timeout: Duration,
    ) -> Result<()> {
        for (_, _, _, module) in code.ranges() {
            self.want(module, modules);
        }
        let deadline = Instant::now() + timeout;
        while self.files.values().any(|s| matches!(s, State::Wanted)) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.built.recv_timeout(left) {
                Ok(built) => self.publish(built, store)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Publishes the mappings of an address space as they are now.
    ///
    /// # Errors
    /// The maps could not be written.
    pub fn map<S: TableStore>(
        &mut self,
        mm: MmId,
        code: &AddressMap,
        modules: &[Arc<Module>],
        store: &mut S,
    ) -> Result<()> {
        self.waiting.remove(&mm);
        let files = code.ranges().map(|(_, _, _, module)| module).collect();
        self.mapped.insert(mm, files);
        let mut mappings = Vec::with_capacity(code.len());
        for (start, end, offset, module) in code.ranges() {
            self.want(module, modules);
            let (table, address) = match self.files.get(&module) {
                Some(State::Ready(place, segments)) => {
                    address_of_mapping(segments.iter(), offset, end - start)
                        .map_or((0, 0), |address| (place.table, address))
                }
                Some(State::Wanted) => {
                    self.waiting.insert(mm);
                    (0, 0)
                }
                Some(State::Refused(_) | State::None) | None => (0, 0),
            };
            let bias = start.wrapping_sub(address);
            mappings.push(CodeMapping {
                start,
                end,
                bias,
                table,
            });
        }
        if mappings.len() > S::MAPPINGS {
            // What a JIT made may be in any number of pieces: tables are worth more.
            let all = mappings.len();
            mappings.retain(|m| m.table != 0);
            self.left_out += (all - mappings.len()) as u64;
        }
        self.left_out += store.write_mappings(mm, &mappings)?;
        Ok(())
    }

    /// Publishes the tables that were built meanwhile. Returns the address spaces whose mappings can
    /// now name more tables.
    ///
    /// # Errors
    /// The maps could not be written.
    pub fn collect<S: TableStore>(&mut self, store: &mut S) -> Result<Vec<MmId>> {
        while let Ok(built) = self.built.try_recv() {
            self.publish(built, store)?;
        }
        // Also those that came while a process was prepared.
        Ok(if std::mem::take(&mut self.fresh) {
            self.waiting.drain().collect()
        } else {
            Vec::new()
        })
    }

    /// An address space that is gone. If it was the last with some table, there is room for those that
    /// did not fit: they are built again.
    pub fn forget(&mut self, mm: MmId) {
        self.waiting.remove(&mm);
        let Some(left) = self.mapped.remove(&mm) else {
            return;
        };
        let ready = |file: &&ModuleId| matches!(self.files.get(file), Some(State::Ready(..)));
        if left.iter().filter(ready).any(|file| !self.is_mapped(*file)) {
            self.retry_refused();
        }
    }

    fn is_mapped(&self, file: ModuleId) -> bool {
        self.mapped.values().any(|files| files.contains(&file))
    }

    /// Has the tables built again that did not fit, of files that are still mapped.
    fn retry_refused(&mut self) {
        let refused = |(module, state): (&ModuleId, &State)| match state {
            State::Refused(file) => Some((*module, Arc::clone(file))),
            _ => None,
        };
        let refused: Vec<_> = self.files.iter().filter_map(refused).collect();
        for (module, file) in refused {
            let mms = self.mapped.iter().filter(|(_, f)| f.contains(&module));
            let mms: Vec<MmId> = mms.map(|(mm, _)| *mm).collect();
            if mms.is_empty() {
                // Asked for when it is mapped again.
                self.files.remove(&module);
            } else if self.requests.try_send((module, file)).is_ok() {
                self.files.insert(module, State::Wanted);
                self.waiting.extend(mms);
            }
        }
    }

    /// Files that had no table at some time because the maps were full.
    pub fn refused(&self) -> u64 {
        self.refused.len() as u64
    }

    /// Mappings that an address space had beyond what fits, counted at each publication.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn want(&mut self, module: ModuleId, modules: &[Arc<Module>]) {
        if self.files.contains_key(&module) {
            return;
        }
        let Some(file) = modules.get(usize::from(module.0)) else {
            return;
        };
        // A full queue: asked for again when the mappings are next published.
        if self.requests.try_send((module, Arc::clone(file))).is_ok() {
            self.files.insert(module, State::Wanted);
        }
    }

    fn publish<S: TableStore>(&mut self, built: Built, store: &mut S) -> Result<()> {
        self.fresh = true;
        let state = match built.table {
            Ok((packed, rules, segments)) => match self.write(&packed, &rules, store) {
                Ok(Some(place)) => State::Ready(place, segments),
                // A map that refuses a table is full: it goes without.
                Ok(None) | Err(_) => {
                    self.refused.insert(built.module);
                    State::Refused(built.file)
                }
            },
            Err(_) => State::None,
        };
        self.files.insert(built.module, state);
        Ok(())
    }

    /// Writes a table; `None` if it does not fit.
    fn write<S: TableStore>(
        &mut self,
        packed: &Packed,
        rules: &[Rule],
        store: &mut S,
    ) -> Result<Option<Place>> {
        let mut place = self.place::<S>(packed, rules.len() as u32);
        if place.is_none() {
            self.make_room(store);
            place = self.place::<S>(packed, rules.len() as u32);
        }
        let Some(place) = place else {
            return Ok(None);
        };
        if let Err(e) = Self::write_at(&place, packed, rules, store) {
            self.drop_table(&place, store);
            return Err(e);
        }
        Ok(Some(place))
    }

    fn write_at<S: TableStore>(
        place: &Place,
        packed: &Packed,
        rules: &[Rule],
        store: &mut S,
    ) -> Result<()> {
        store.write_rules(place.first_rule, rules)?;
        let mut parts: BTreeMap<u32, Vec<(u32, &[u32])>> = BTreeMap::new();
        for (page, (_, at)) in packed.pages.iter().zip(&place.pages) {
            let rows = &packed.rows[page.first as usize..][..page.count as usize];
            parts.entry(at.chunk).or_default().push((at.first, rows));
        }
        for (chunk, parts) in &parts {
            store.write_rows(*chunk, parts)?;
        }
        for (number, at) in &place.pages {
            store.write_page(place.table, *number, *at)?;
        }
        Ok(())
    }

    fn drop_table<S: TableStore>(&mut self, place: &Place, store: &mut S) {
        for (number, _) in &place.pages {
            store.delete_page(place.table, *number);
        }
        self.give_back::<S>(place);
    }

    /// Takes the room for a table; `None` if there is not enough.
    fn place<S: TableStore>(&mut self, packed: &Packed, rules: u32) -> Option<Place> {
        let free = self.rules.get_or_insert_with(|| Room::new(S::RULES, 1));
        let first_rule = free.take(rules)?;
        let rows = self
            .rows
            .get_or_insert_with(|| Room::new(S::CHUNK_ROWS, S::CHUNKS));
        let mut place = Place {
            table: self.next_table,
            first_rule,
            rules,
            pages: Vec::with_capacity(packed.pages.len()),
        };
        for page in &packed.pages {
            let Some(row) = rows.take(page.count) else {
                self.give_back::<S>(&place);
                return None;
            };
            let at = PageAt {
                chunk: row / S::CHUNK_ROWS,
                first: row % S::CHUNK_ROWS,
                count: page.count,
                rules: first_rule,
            };
            place.pages.push((page.number, at));
        }
        self.next_table += 1;
        Some(place)
    }

    fn give_back<S: TableStore>(&mut self, place: &Place) {
        if let (Some(rules), Some(rows)) = (&mut self.rules, &mut self.rows) {
            rules.give_back(place.first_rule, place.rules);
            for (_, at) in &place.pages {
                rows.give_back(at.chunk * S::CHUNK_ROWS + at.first, at.count);
            }
        }
    }

    /// Drops the tables of files that no address space maps. They are built anew if one does again.
    fn make_room<S: TableStore>(&mut self, store: &mut S) {
        let mapped: HashSet<ModuleId> = self.mapped.values().flatten().copied().collect();
        let unused = |(module, state): (&ModuleId, &State)| {
            let gone = matches!(state, State::Ready(..)) && !mapped.contains(module);
            gone.then_some(*module)
        };
        let unused: Vec<ModuleId> = self.files.iter().filter_map(unused).collect();
        for module in unused {
            if let Some(State::Ready(place, _)) = self.files.remove(&module) {
                self.drop_table(&place, store);
            }
        }
    }
}

fn build(module: &Module) -> Result<(Packed, Vec<Rule>, Vec<Segment>), String> {
    let file = module.file.as_ref().ok_or("the file is not open")?;
    let table = Table::build(file).map_err(|e| e.to_string())?;
    let elf = Elf::read(file).map_err(|_| "not a usable ELF file")?;
    let segments = elf.code_segments().copied().collect();
    Ok((table.pack(), table.rules, segments))
}

#[cfg(test)]
mod tests;
