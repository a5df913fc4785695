//! Tables into the probe's maps: each file once, shared by every process that maps it.
//!
//! Building is slow (a large library takes tens of milliseconds), so a thread of its own does it. Until
//! a file's table is there its mapping says "no table"; the walk then gets by with frame pointers.
//! Published in the order rules, rows, pages, mappings: what the probe finds is whole.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::eventfd::EventFd;

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

    /// Writes the rows of a chunk, from its beginning; makes the chunk if it is new.
    ///
    /// # Errors
    /// The map refused them.
    fn write_rows(&mut self, chunk: u32, rows: &[u32]) -> Result<()>;

    /// Writes a page: where in which chunk its rows are, and where the table's rules begin.
    ///
    /// # Errors
    /// The map refused it.
    fn write_page(&mut self, table: u32, page: u32, at: PageAt) -> Result<()>;

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
    table: Result<(Packed, Vec<Rule>, Vec<Segment>), String>,
}

/// A file's table.
enum State {
    /// Being built.
    Wanted,
    /// In the maps.
    Ready { table: u32, segments: Vec<Segment> },
    /// There is none, and will be none.
    None,
}

/// Keeps the probe's tables and mappings up to date.
pub struct Publisher {
    requests: SyncSender<(ModuleId, Arc<Module>)>,
    built: Receiver<Built>,
    files: HashMap<ModuleId, State>,
    /// Address spaces with a file whose table is being built.
    waiting: HashSet<MmId>,
    /// Whether a table has come since these were last told.
    fresh: bool,
    next_table: u32,
    next_rule: u32,
    /// The chunk being filled, and its rows so far.
    chunk: u32,
    rows: Vec<u32>,
    refused: u64,
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
                    if done.send(Built { module, table }).is_err() {
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
            fresh: false,
            next_table: 1,
            next_rule: 0,
            chunk: 0,
            rows: Vec::new(),
            refused: 0,
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
        let mut mappings = Vec::with_capacity(code.len());
        for (start, end, offset, module) in code.ranges() {
            self.want(module, modules);
            let (table, address) = match self.files.get(&module) {
                Some(State::Ready { table, segments }) => {
                    address_of_mapping(segments.iter(), offset, end - start)
                        .map_or((0, 0), |address| (*table, address))
                }
                Some(State::Wanted) => {
                    self.waiting.insert(mm);
                    (0, 0)
                }
                Some(State::None) | None => (0, 0),
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

    /// An address space that is gone.
    pub fn forget(&mut self, mm: MmId) {
        self.waiting.remove(&mm);
    }

    /// Files without a table because the maps are full.
    pub fn refused(&self) -> u64 {
        self.refused
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
            Ok((packed, rules, segments)) => match self.write(&packed, &rules, store)? {
                Some(table) => State::Ready { table, segments },
                None => {
                    self.refused += 1;
                    State::None
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
    ) -> Result<Option<u32>> {
        if self.next_rule + rules.len() as u32 > S::RULES || !self.rows_fit::<S>(packed) {
            return Ok(None);
        }
        let table = self.next_table;
        let first_rule = self.next_rule;
        store.write_rules(first_rule, rules)?;
        let mut pages = Vec::with_capacity(packed.pages.len());
        for page in &packed.pages {
            if self.rows.len() as u32 + page.count > S::CHUNK_ROWS {
                store.write_rows(self.chunk, &self.rows)?;
                self.rows.clear();
                self.chunk += 1;
            }
            let at = PageAt {
                chunk: self.chunk,
                first: self.rows.len() as u32,
                count: page.count,
                rules: first_rule,
            };
            pages.push((page.number, at));
            let (first, count) = (page.first as usize, page.count as usize);
            self.rows.extend(&packed.rows[first..first + count]);
        }
        store.write_rows(self.chunk, &self.rows)?;
        for (number, at) in pages {
            store.write_page(table, number, at)?;
        }
        self.next_table += 1;
        self.next_rule += rules.len() as u32;
        Ok(Some(table))
    }

    /// Whether the rows fit, page by page: a page does not cross chunks.
    fn rows_fit<S: TableStore>(&self, packed: &Packed) -> bool {
        let (mut chunk, mut used) = (self.chunk, self.rows.len() as u32);
        for page in &packed.pages {
            if used + page.count > S::CHUNK_ROWS {
                chunk += 1;
                used = 0;
            }
            used += page.count;
        }
        chunk < S::CHUNKS
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
