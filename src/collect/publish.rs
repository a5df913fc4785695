//! Publishes unwind tables to the probe's maps: each file once, shared by every process that maps it.
//!
//! A file gets its number when the probe first reports its code; from then on the probe itself binds the
//! file's mappings to that number, in every process. Building the table is slow (tens of milliseconds for a
//! large library), so separate threads do it. Until it is published, the number has no pages and the walk uses
//! frame pointers. Rules are written first, then rows, then pages, so the probe never finds an incomplete
//! table; then a mark that all pages are there, without which code without a rule may still get one. When the
//! maps are full, tables that no followed process maps any more are dropped. Their numbers are not reused: a
//! process forked a moment ago that has such a number finds no table rather than another file's. Tables that did
//! not fit are retried periodically.
//!
//! Stacks in files without a table are not unwound in user space meanwhile: copying registers and up to 32 KiB
//! of stack for each would gain almost nothing. Measured from a program's first instruction, with no table
//! built, the share of bytes in use after one second with complete stacks is 100.000 % for CPython,
//! rustc and SQLite, and 99.76 % for node (0.12 % lack a table, 0.12 % exceed the depth). About 1 % of the stacks
//! lack a table, and their memory is soon freed.

mod builders;
mod interpreters;
mod slot_allocator;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::eventfd::EventFd;

use self::builders::{BuildOrder, Done, Queues};
use self::slot_allocator::SlotAllocator;
pub use crate::probe::table_store::{CodeFile, PageAt, TableStore};
use memprof_code::elf::{Elf, Segment};
use memprof_code::interpreter::EnabledInterpreters;
use memprof_code::modules::{FileNumber, MAX_MODULES, ModuleTable};
use memprof_code::unwind::{Packed, Rule};
use memprof_profile::{Module, ModuleId};
use memprof_sys::ids::FileKey;

/// Minimum time between retries of tables that did not fit.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for the interpreter search in files that are about to be followed. It takes milliseconds, except on a busy machine.
const SEARCHES: Duration = Duration::from_secs(10);

/// A file that has a number.
struct Numbered {
    file: Arc<Module>,
    /// The probe's keys of the file: more than one if it is seen through several mounts.
    keys: Vec<FileKey>,
    code: CodeFile,
    state: TableState,
}

/// The state of a file's table.
enum TableState {
    /// Queued or being built.
    Ordered,
    /// In the maps.
    Ready(TableLocation),
    /// The table did not fit in the maps.
    Refused,
    /// The file's file system did not answer. The file is dropped once it may be read, so that it is registered again.
    Unanswered,
    /// The file cannot have a table.
    None,
}

/// The location of a table in the maps.
struct TableLocation {
    first_rule: u32,
    rules: u32,
    /// By number (address / 65,536).
    pages: Vec<(u32, PageAt)>,
}

/// The result of registering a file that the probe reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The file is registered now.
    Done,
    /// The file was registered before, or could not be queued.
    Known,
    /// The file's contents have changed: it must be opened again.
    Changed,
}

/// Keeps the probe's tables up to date.
pub struct Publisher {
    queues: Queues,
    done: Receiver<(ModuleId, Done)>,
    /// Whether the threads also search the files for interpreters.
    interpreters: bool,
    files: HashMap<ModuleId, Numbered>,
    /// All keys of all files.
    by_key: HashMap<FileKey, ModuleId>,
    /// Number of tables being built.
    building: usize,
    /// Number of files being searched for an interpreter.
    searching: usize,
    /// Free rules, and free rows of all chunks; `None` until first used.
    rules: Option<SlotAllocator>,
    rows: Option<SlotAllocator>,
    retried: Instant,
    refused: HashSet<ModuleId>,
    /// Whether files that processes have mapped were dropped.
    forgotten: bool,
    /// Files with an interpreter whose frames are not read, each with the reason, since the last [`Publisher::take_unread`].
    unread: Vec<String>,
}

impl Publisher {
    /// Starts the threads; they write to `wake` when a table is built. `interpreters` are the interpreters for which they also
    /// search the files.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn start(wake: Arc<EventFd>, interpreters: EnabledInterpreters) -> Result<Publisher> {
        let (queues, done) = builders::start(&wake, interpreters)?;
        Ok(Publisher {
            queues,
            done,
            interpreters: interpreters.any(),
            files: HashMap::new(),
            by_key: HashMap::new(),
            building: 0,
            searching: 0,
            rules: None,
            rows: None,
            retried: Instant::now(),
            refused: HashSet::new(),
            forgotten: false,
            unread: Vec::new(),
        })
    }

    /// Registers a file that the probe reported, and queues its table to be built.
    ///
    /// # Errors
    /// The map of files could not be written.
    pub fn register<S: TableStore>(
        &mut self,
        key: FileKey,
        module: ModuleId,
        modules: &mut ModuleTable,
        store: &mut S,
    ) -> Result<Registered> {
        if modules.is_jit_module(module) {
            // Shared memory, which has no table. A process may make any amount of shared memory executable.
            if self.by_key.len() < MAX_MODULES {
                self.by_key.insert(key, module);
            }
            store.write_file(key, &CodeFile::WITHOUT_TABLE)?;
            return Ok(Registered::Known);
        }
        if let Some(known) = self.files.get_mut(&module) {
            let same_place = |k: &FileKey| (k.dev, k.ino) == (key.dev, key.ino);
            if !known.keys.contains(&key) {
                if known.keys.iter().any(same_place) {
                    modules.renew(module);
                    return Ok(Registered::Changed);
                }
                known.keys.push(key);
                self.by_key.insert(key, module);
                store.write_file(key, &known.code)?;
            }
            return Ok(Registered::Known);
        }
        let Some(mut numbered) = self.order::<S>(module, modules) else {
            return Ok(Registered::Known);
        };
        store.write_file(key, &numbered.code)?;
        numbered.keys.push(key);
        self.files.insert(module, numbered);
        self.by_key.insert(key, module);
        Ok(Registered::Done)
    }

    /// The number of a file; `None` if it has none. Queues its table to be built, unless that was done before.
    pub fn number_of<S: TableStore>(
        &mut self,
        module: ModuleId,
        modules: &mut ModuleTable,
    ) -> Option<FileNumber> {
        if !self.files.contains_key(&module) {
            let numbered = self.order::<S>(module, modules)?;
            self.files.insert(module, numbered);
        }
        self.files.get(&module)?.code.number
    }

    /// Assigns a file its number and queues its table to be built. `None` if the queue is full: then the probe reports the file
    /// again when it is next mapped.
    fn order<S: TableStore>(
        &mut self,
        module: ModuleId,
        modules: &mut ModuleTable,
    ) -> Option<Numbered> {
        let file = modules.modules().get(usize::from(module.0)).cloned()?;
        let segments = segments(&file).filter(|s| s.len() <= S::SEGMENTS);
        let unanswered = segments.is_none() && file.rests();
        let segments = segments.unwrap_or_default();
        let number = (!segments.is_empty()).then(|| modules.number(module, segments.clone()));
        let mut state = match unanswered {
            true => TableState::Unanswered,
            false => TableState::None,
        };
        if number.is_some() {
            let order = || BuildOrder {
                module,
                file: Arc::clone(&file),
            };
            // Queued first: a thread searches for interpreters when it takes a table's order.
            if self.interpreters && self.queues.searches.try_send(order()).is_ok() {
                self.searching += 1;
            }
            self.queues.tables.try_send(order()).ok()?;
            self.building += 1;
            state = TableState::Ordered;
        }
        let code = CodeFile {
            number,
            ready: number.is_none(),
            segments,
        };
        Some(Numbered {
            file,
            keys: Vec::new(),
            code,
            state,
        })
    }

    /// Whether a file that the probe reported is registered.
    pub fn knows(&self, key: &FileKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Publishes the tables built since the last call; returns whether there were any.
    pub fn collect<S: TableStore>(&mut self, store: &mut S) -> bool {
        let mut fresh = false;
        while let Ok((module, done)) = self.done.try_recv() {
            self.publish(module, done, store);
            fresh = true;
        }
        self.retry(store);
        fresh
    }

    /// Waits up to `timeout` until every queued table is published, and up to [`SEARCHES`] until the interpreters of all files are
    /// published.
    pub fn finish<S: TableStore>(&mut self, store: &mut S, timeout: Duration) {
        let began = Instant::now();
        while self.building > 0 || self.searching > 0 {
            let limit = match self.searching {
                0 => timeout,
                _ => timeout.max(SEARCHES),
            };
            match self
                .done
                .recv_timeout(limit.saturating_sub(began.elapsed()))
            {
                Ok((module, done)) => self.publish(module, done, store),
                Err(_) => return,
            }
        }
    }

    /// Whether files that processes have mapped were dropped since the last call. The probe must report them again.
    pub fn take_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.forgotten)
    }

    /// The number of files that once had no table because the maps were full.
    pub fn refused(&self) -> u64 {
        self.refused.len() as u64
    }

    fn publish<S: TableStore>(&mut self, module: ModuleId, done: Done, store: &mut S) {
        match done {
            Done::Searched(found) => self.publish_interpreter(module, found, store),
            Done::Built(table) => self.publish_table(module, table, store),
        }
    }

    fn publish_table<S: TableStore>(
        &mut self,
        module: ModuleId,
        table: Result<(Packed, Vec<Rule>), String>,
        store: &mut S,
    ) {
        self.building -= 1;
        let Some(number) = self.files.get(&module).and_then(|f| f.code.number) else {
            return;
        };
        let state = match table {
            Ok((packed, rules)) => match self.write(number, &packed, &rules, store) {
                Ok(Some(place)) => TableState::Ready(place),
                // If the map refuses a table, the map is full and the file stays without a table.
                Ok(None) | Err(_) => {
                    self.refused.insert(module);
                    TableState::Refused
                }
            },
            Err(_) => TableState::None,
        };
        if let Some(file) = self.files.get_mut(&module) {
            file.state = match state {
                TableState::None if file.file.rests() => TableState::Unanswered,
                state => state,
            };
            file.code.ready = true;
            for key in &file.keys {
                // If this fails, the probe reports the file again, which costs only time.
                let _ = store.write_file(*key, &file.code);
            }
        }
    }

    /// Drops the files that could not be read before and may be read now. They get a new number when they are reported.
    fn forget_unanswered<S: TableStore>(&mut self, store: &mut S) {
        let by_key = &mut self.by_key;
        let forgotten = &mut self.forgotten;
        self.files.retain(|_, file| {
            let keep = !matches!(file.state, TableState::Unanswered) || file.file.rests();
            if !keep {
                file.code.ready = false;
                for key in &file.keys {
                    by_key.remove(key);
                    // If this fails, the file stays without a table.
                    let _ = store.write_file(*key, &file.code);
                }
                *forgotten = true;
            }
            keep
        });
    }

    /// Drops unused tables and, if there were any, rebuilds the tables that did not fit, of currently mapped files.
    fn retry<S: TableStore>(&mut self, store: &mut S) {
        if self.retried.elapsed() < RETRY_PAUSE {
            return;
        }
        self.retried = Instant::now();
        self.forget_unanswered(store);
        let refused = |f: &Numbered| matches!(f.state, TableState::Refused);
        if !self.files.values().any(refused) {
            return;
        }
        let Ok(mapped) = store.mapped() else { return };
        if !self.make_room(&mapped, store) {
            return;
        }
        for (module, file) in self.files.iter_mut().filter(|(_, f)| refused(f)) {
            let wanted = BuildOrder {
                module: *module,
                file: Arc::clone(&file.file),
            };
            let is_mapped = file.code.number.is_some_and(|n| mapped.contains(&n));
            if is_mapped && self.queues.tables.try_send(wanted).is_ok() {
                self.building += 1;
                file.state = TableState::Ordered;
            }
        }
    }

    /// Writes a table; `None` if it does not fit.
    fn write<S: TableStore>(
        &mut self,
        number: FileNumber,
        packed: &Packed,
        rules: &[Rule],
        store: &mut S,
    ) -> Result<Option<TableLocation>> {
        let mut place = self.place::<S>(packed, rules.len() as u32);
        if place.is_none() {
            let mapped = store.mapped()?;
            self.make_room(&mapped, store);
            place = self.place::<S>(packed, rules.len() as u32);
        }
        let Some(place) = place else {
            return Ok(None);
        };
        if let Err(e) = Self::write_at(number, &place, packed, rules, store) {
            self.drop_table(number, &place, store);
            return Err(e);
        }
        Ok(Some(place))
    }

    fn write_at<S: TableStore>(
        number: FileNumber,
        place: &TableLocation,
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
        for (page, at) in &place.pages {
            store.write_page(number, *page, *at)?;
        }
        store.write_end(number)
    }

    fn drop_table<S: TableStore>(
        &mut self,
        number: FileNumber,
        place: &TableLocation,
        store: &mut S,
    ) {
        store.delete_end(number);
        for (page, _) in &place.pages {
            store.delete_page(number, *page);
        }
        self.give_back::<S>(place);
    }

    /// Allocates slots for a table; `None` if there are not enough.
    fn place<S: TableStore>(&mut self, packed: &Packed, rules: u32) -> Option<TableLocation> {
        let free = self
            .rules
            .get_or_insert_with(|| SlotAllocator::new(S::RULES, 1));
        let first_rule = free.take(rules)?;
        let rows = self
            .rows
            .get_or_insert_with(|| SlotAllocator::new(S::CHUNK_ROWS, S::CHUNKS));
        let mut place = TableLocation {
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
        Some(place)
    }

    fn give_back<S: TableStore>(&mut self, place: &TableLocation) {
        if let (Some(rules), Some(rows)) = (&mut self.rules, &mut self.rows) {
            rules.give_back(place.first_rule, place.rules);
            for (_, at) in &place.pages {
                rows.give_back(at.chunk * S::CHUNK_ROWS + at.first, at.count);
            }
        }
    }

    /// Drops the tables of files that no address space maps; returns whether there were any. Such a file gets
    /// a new number when it is mapped again.
    fn make_room<S: TableStore>(&mut self, mapped: &HashSet<FileNumber>, store: &mut S) -> bool {
        let unused = |(module, file): (&ModuleId, &Numbered)| {
            let gone = file.code.number.is_some_and(|n| !mapped.contains(&n));
            (gone && matches!(file.state, TableState::Ready(_))).then_some(*module)
        };
        let unused: Vec<ModuleId> = self.files.iter().filter_map(unused).collect();
        for module in &unused {
            let Some(mut file) = self.files.remove(module) else {
                continue;
            };
            file.code.ready = false;
            for key in &file.keys {
                self.by_key.remove(key);
                // If this fails, the file stays without a table.
                let _ = store.write_file(*key, &file.code);
            }
            if let (TableState::Ready(place), Some(number)) = (file.state, file.code.number) {
                self.drop_table(number, &place, store);
            }
        }
        !unused.is_empty()
    }
}

/// The code segments of an ELF file; `None` if it is not an ELF file.
fn segments(module: &Module) -> Option<Vec<Segment>> {
    let elf = Elf::read(module.file.as_ref()?).ok()?;
    Some(elf.code_segments().copied().collect())
}

#[cfg(test)]
mod tests;
