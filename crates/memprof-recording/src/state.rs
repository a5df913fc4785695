//! Reads the state at a moment: the report, from the figures and lists since the full moment before it.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cell::Cell;
use crate::figures::{self, Key};
use crate::read::{Checked, damaged};
use crate::recorder::full_before;
use crate::report::WHOLE;
use crate::schema::{ERROR_PART, FACT, FILE_STATE, MAPPING_STATE, PROCESS_STATE, Table, VALUE};
use crate::{facts, lists, symbols};
use memprof_profile::measure::{ColumnId, MEASURES};
use memprof_profile::symbol::{Language, Symbols};
use memprof_profile::{
    Amounts, CachedFile, Ended, Faults, Frame, FreezeOutcome, Functions, Kind, KnownPath, Losses,
    MappedBytes, Mapping, Module, ModuleId, NotObserved, OomKills, Origin, Peak, Places,
    ProcessProfile, Profile, Report, Sample, Stack, UncertainPart, Uncertainty, UncertaintyOf,
};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::Category;
use memprof_sys::usage::Usage;

/// Maximum size of the texts of a moment, in bytes.
const MAX_TEXTS: usize = 256 << 20;
/// Maximum sum of the figures of a moment. The reader of saved profiles has the same limit.
const MAX_SUM: u64 = 1 << 62;
/// Maximum number of modules, which a frame can refer to.
const MAX_MODULES: usize = u16::MAX as usize;
/// Maximum number of frames of a stack, the upper limit of `--max-frames`.
const MAX_FRAMES: usize = 1024;

/// A row of a report: the index of a sample, or of memory without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// An index of `samples`.
    Sample(usize),
    /// An index of `not_observed`.
    NotObserved(usize),
}

/// The kinds of figures by id; `None` for a kind that this memprof does not know.
pub(crate) fn kinds(db: &Connection) -> Checked<FxHashMap<i64, Option<Kind>>> {
    let mut kinds = FxHashMap::default();
    let mut rows = db.prepare_cached("SELECT id, name FROM kind")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let name = row.get_ref(1)?.as_str().unwrap_or_default();
        kinds.insert(row.get(0)?, Kind::by_name(name));
    }
    Ok(kinds)
}

/// Reads one moment.
pub(crate) struct Reader<'a> {
    db: &'a Connection,
    moment: i64,
    full: i64,
    lists: FxHashMap<String, Vec<i64>>,
    facts: FxHashMap<String, Cell>,
    processes: FxHashMap<Key, Box<[Cell]>>,
    amounts: FxHashMap<(i64, i64, i64), Amounts>,
    /// The number of each module in the report.
    modules: FxHashMap<i64, ModuleId>,
    frames: FxHashMap<i64, Frame>,
    stacks: FxHashMap<i64, Arc<Stack>>,
    names: Symbols,
    /// Bytes of texts that may still be read.
    texts: usize,
    sum: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(db: &'a Connection, moment: i64) -> Checked<Reader<'a>> {
        let full = full_before(db, moment)?;
        let mut reader = Reader {
            db,
            moment,
            full,
            lists: FxHashMap::default(),
            facts: FxHashMap::default(),
            processes: figures::state(db, &PROCESS_STATE, full, moment)?,
            amounts: FxHashMap::default(),
            modules: FxHashMap::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            names: Symbols::default(),
            texts: MAX_TEXTS,
            sum: 0,
        };
        for (name, ids) in lists::state(db, full, moment)? {
            let name = reader.one("SELECT name FROM name WHERE id = ?1", name)?;
            reader.lists.insert(name, ids);
        }
        for ([name, ..], cells) in reader.rows(&FACT)? {
            let name = reader.one("SELECT name FROM name WHERE id = ?1", name)?;
            if let Cell::Text(text) = &cells[0] {
                reader.spend(text.len())?;
            }
            reader.facts.insert(name, cells[0].clone());
        }
        reader.read_amounts()?;
        Ok(reader)
    }

    fn rows(&self, table: &Table) -> Checked<FxHashMap<Key, Box<[Cell]>>> {
        figures::state(self.db, table, self.full, self.moment)
    }

    fn spend(&mut self, bytes: usize) -> Checked<()> {
        match self.texts.checked_sub(bytes) {
            Some(left) => {
                self.texts = left;
                Ok(())
            }
            None => damaged(format!("a moment has more than {MAX_TEXTS} bytes of text")),
        }
    }

    fn figure(&mut self, cell: Option<&Cell>) -> Checked<u64> {
        let figure = cell.and_then(Cell::as_figure).unwrap_or(0);
        match self.sum.checked_add(figure).filter(|sum| *sum <= MAX_SUM) {
            Some(sum) => {
                self.sum = sum;
                Ok(figure)
            }
            None => damaged("its figures are larger than any memory"),
        }
    }

    /// The text in the one row that a statement selects by an id.
    fn one(&mut self, sql: &str, id: i64) -> Checked<String> {
        let text: Option<String> = {
            let mut row = self.db.prepare_cached(sql)?;
            row.query_row([id], |row| row.get(0)).optional()?
        };
        let Some(text) = text else {
            return damaged(format!("nothing has the id {id} ({sql})"));
        };
        self.spend(text.len())?;
        Ok(text)
    }

    /// A list whose ids are all different.
    fn list(&mut self, name: &str) -> Checked<Vec<i64>> {
        let ids = self.lists.remove(name).unwrap_or_default();
        let different: FxHashSet<i64> = ids.iter().copied().collect();
        match different.len() == ids.len() {
            true => Ok(ids),
            false => damaged(format!("the list {name} has an id twice")),
        }
    }

    /// The items of a list.
    fn items<T: DeserializeOwned>(&mut self, name: &str) -> Checked<Vec<T>> {
        let ids = self.lists.remove(name).unwrap_or_default();
        let mut items = Vec::new();
        for id in ids {
            let json = self.one("SELECT json FROM item WHERE id = ?1", id)?;
            match serde_json::from_str(&json) {
                Ok(item) => items.push(item),
                Err(e) => return damaged(format!("an item of {name}: {e}")),
            }
        }
        Ok(items)
    }

    fn read_amounts(&mut self) -> Checked<()> {
        let kinds = kinds(self.db)?;
        let sql = "SELECT process, file, stack, kind FROM series WHERE id = ?1";
        let mut series = self.db.prepare_cached(sql)?;
        for ([id, ..], cells) in self.rows(&VALUE)? {
            let of = series.query_row([id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?))
            });
            let Some((process, file, stack, kind)) = of.optional()? else {
                return damaged(format!("no series has the id {id}"));
            };
            let Some(Some(kind)) = kinds.get(&kind) else {
                return damaged("a figure is of an unknown kind");
            };
            let figure = self.figure(cells.first())?;
            let amounts = self.amounts.entry((process, file, stack)).or_default();
            if let Some(amount) = amounts_of(*kind, figure) {
                *amounts += amount;
            }
        }
        Ok(())
    }

    /// The report, and its row for each stack id.
    pub(crate) fn report_and_owners(mut self) -> Checked<(Report, FxHashMap<i64, Owner>)> {
        let sql = "SELECT report, unix_ns, followed_ms, faults, unwalked FROM moment WHERE id = ?1";
        let row = self.db.query_row(sql, [self.moment], |row| {
            Ok((
                row.get::<_, i64>(0)?.cast_unsigned(),
                row.get::<_, i64>(1)?.max(0).cast_unsigned(),
                row.get::<_, i64>(2)?.max(0).cast_unsigned(),
                row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
                row.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned),
            ))
        });
        let (sequence, unix_ns, followed, all, unwalked) = row?;
        let modules = self.read_modules()?;
        let whole = self.share(WHOLE)?;
        let mut processes = Vec::new();
        for process in self.list("processes")? {
            processes.push(self.process(process)?);
        }
        let places = self.places()?;
        let facts = facts::tree(&std::mem::take(&mut self.facts));
        let target = json!({
            "pid": facts["target"]["pid"],
            "comm": facts["target"]["comm"],
            "alive": facts["target"]["alive"],
            "pids": self.items::<u32>("pids")?,
        });
        let mut losses = Losses::default();
        for (what, count) in parse::<Vec<(String, u64)>>(&facts["losses"])? {
            losses.add(what, count);
        }
        let counted: Vec<String> = parse(&facts["measures"])?;
        let measures = MEASURES.into_iter();
        let profile = Profile {
            taken: UNIX_EPOCH + Duration::from_nanos(unix_ns),
            taken_ns: 0,
            observed: Duration::from_millis(followed),
            target: parse(&target)?,
            samples: whole.samples,
            not_observed: whole.not_observed,
            total: whole.total,
            uncertainties: whole.uncertainties,
            kernel_before: whole.kernel[0],
            kernel_after: whole.kernel[1],
            losses,
            faults: all
                .zip(unwalked)
                .map(|(all, unwalked)| Faults { all, unwalked }),
            modules: modules.into(),
            places: Arc::new(places),
            processes,
            ended: Ended {
                processes: self.items("ended")?,
                unscanned: parse(&facts["ended"])?,
            },
            oom_kills: OomKills {
                newest: self.items("oom_kills")?.into(),
                count: parse(&facts["oom_kills"])?,
            },
            freeze: whole.freeze,
            measures: measures
                .filter(|measure| counted.iter().any(|name| name == measure.name))
                .collect(),
            cgroup: parse::<Option<_>>(&facts["cgroup"])?.map(Arc::new),
            peak: whole.peak,
            own_peak: parse(&facts["own_peak"])?,
        };
        let mut symbols = self.names;
        symbols.set_advice(parse(&facts["names_advice"])?);
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols),
            sequence,
        };
        Ok((report, whole.owners))
    }

    fn read_modules(&mut self) -> Checked<Vec<Arc<Module>>> {
        let ids = self.list("modules")?;
        if ids.len() > MAX_MODULES {
            return damaged(format!("a moment has more than {MAX_MODULES} modules"));
        }
        let mut modules = Vec::with_capacity(ids.len());
        for (number, id) in (0..).zip(ids) {
            self.modules.insert(id, ModuleId(number));
            modules.push(Arc::new(self.module(id)?));
        }
        Ok(modules)
    }

    fn module(&mut self, id: i64) -> Checked<Module> {
        let sql =
            "SELECT name, path, own_executable, interpreted, jit, layout FROM module WHERE id = ?1";
        let mut row = self.db.prepare_cached(sql)?;
        let row = row.query_row([id], |row| {
            let [name, path]: [String; 2] = [row.get(0)?, row.get(1)?];
            let texts: [Option<String>; 3] = [row.get(3)?, row.get(4)?, row.get(5)?];
            Ok((name, path, row.get(2)?, texts))
        });
        let Some((name, path, own_executable, [interpreted, jit, layout])) = row.optional()? else {
            return damaged(format!("no module has the id {id}"));
        };
        self.spend(name.len() + path.len() + layout.as_ref().map_or(0, String::len))?;
        let functions = |language: Option<String>, origin| {
            let language = Language::by_name(&language?).unwrap_or(Language::Other);
            Some(Functions::new(language, origin))
        };
        let layout = layout.map(|json| serde_json::from_str(&json)).transpose();
        Ok(Module {
            path: path.into(),
            tree: None,
            name,
            dev_ino: (0, 0),
            file: None,
            layout: layout.or_else(|e| damaged(format!("a module's layout: {e}")))?,
            functions: functions(interpreted, Origin::Interpreter)
                .or_else(|| functions(jit, Origin::Runtime)),
            own_executable,
        })
    }

    fn frame(&mut self, id: i64) -> Checked<Frame> {
        if let Some(frame) = self.frames.get(&id) {
            return Ok(*frame);
        }
        let sql = format!(
            "SELECT {}, f.module, f.offset FROM frame f LEFT JOIN function u ON u.id = f.function WHERE f.id = ?1",
            symbols::COLUMNS
        );
        let mut rows = self.db.prepare_cached(&sql)?;
        let mut rows = rows.query([id])?;
        let Some(row) = rows.next()? else {
            return damaged(format!("no frame has the id {id}"));
        };
        let (module, offset): (i64, i64) = (row.get(9)?, row.get(10)?);
        let offset = offset.cast_unsigned();
        let frame = match self.modules.get(&module) {
            Some(module) => Frame::code(*module, offset),
            None if module == 0 => Frame::unmapped(offset),
            None => return damaged("a frame is in a module that the moment does not have"),
        };
        if let Some(symbol) = symbols::read(row)? {
            self.spend(symbols::text_len(&symbol))?;
            self.names.insert(frame, Arc::new(symbol));
        }
        self.frames.insert(id, frame);
        Ok(frame)
    }

    fn stack(&mut self, id: i64) -> Checked<Arc<Stack>> {
        if let Some(stack) = self.stacks.get(&id) {
            return Ok(Arc::clone(stack));
        }
        let outcome = self.one("SELECT outcome FROM stack WHERE id = ?1", id)?;
        let sql = "SELECT frame FROM stack_frame WHERE stack = ?1 ORDER BY depth LIMIT ?2";
        let ids: Vec<i64> = {
            let mut rows = self.db.prepare_cached(sql)?;
            let rows = rows.query_map([id, MAX_FRAMES as i64 + 1], |row| row.get(0))?;
            rows.collect::<Result<_, _>>()?
        };
        if ids.len() > MAX_FRAMES {
            return damaged(format!("a stack has more than {MAX_FRAMES} frames"));
        }
        let frames: Checked<Vec<Frame>> = ids.into_iter().map(|id| self.frame(id)).collect();
        let stack = Arc::new(Stack {
            frames: frames?.into(),
            outcome: parse(&outcome.into())?,
        });
        self.stacks.insert(id, Arc::clone(&stack));
        Ok(stack)
    }

    fn amounts(&mut self, process: i64, file: i64, stack: i64) -> Checked<Amounts> {
        let amounts = self.amounts.remove(&(process, file, stack));
        match amounts {
            Some(amounts) => Ok(amounts),
            None => damaged(format!("stack {stack} has no figures")),
        }
    }

    /// The rows of the whole report or of a process.
    fn share(&mut self, process: i64) -> Checked<Share> {
        let mut share = Share::default();
        let sql = "SELECT mapping, reason FROM stack WHERE id = ?1";
        let rows = self.list(&format!("rows/{process}"))?;
        let mut numbers = FxHashMap::default();
        for id in rows {
            let amounts = self.amounts(process, 0, id)?;
            share.total += amounts;
            let texts: Option<(Option<String>, Option<String>)> = {
                let mut row = self.db.prepare_cached(sql)?;
                let row = row.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)));
                row.optional()?
            };
            match texts {
                Some((Some(mapping), Some(reason))) => {
                    self.spend(mapping.len())?;
                    let owner = Owner::NotObserved(share.not_observed.len());
                    share.owners.insert(id, owner);
                    share.not_observed.push(NotObserved {
                        amounts,
                        mapping,
                        reason: parse(&reason.into())?,
                    });
                }
                _ => {
                    numbers.insert(id, share.samples.len() as u32);
                    share.owners.insert(id, Owner::Sample(share.samples.len()));
                    let stack = self.stack(id)?;
                    share.samples.push(Sample { stack, amounts });
                }
            }
        }
        share.uncertainties = self.uncertainties(process, &numbers)?;
        let Some(state) = self.processes.remove(&[process, 0, 0]) else {
            return damaged(format!("process {process} has no state"));
        };
        share.kernel = [self.kernel(&state[1..7])?, self.kernel(&state[7..13])?];
        share.peak = self.peak(&state[13..])?;
        let freeze = state[0].as_int().unwrap_or(0);
        let freeze = self.one("SELECT json FROM item WHERE id = ?1", freeze)?;
        share.freeze = serde_json::from_str(&freeze)
            .or_else(|e| damaged(format!("the outcome of a freeze: {e}")))?;
        Ok(share)
    }

    fn peak(&mut self, cells: &[Cell]) -> Checked<Option<Peak>> {
        let [Cell::Int(_), high_water, processes, after_ms, is_shown] = cells else {
            return Ok(None);
        };
        Ok(Some(Peak {
            rss: self.figure(cells.first())?,
            high_water: match high_water {
                Cell::Null => None,
                cell => Some(self.figure(Some(cell))?),
            },
            processes: processes.as_figure().unwrap_or(1) as u32,
            after_ms: after_ms.as_figure().unwrap_or(0),
            is_shown: is_shown.as_figure() == Some(1),
        }))
    }

    fn kernel(&mut self, cells: &[Cell]) -> Checked<KernelFigures> {
        let anonymous = match &cells[0] {
            Cell::Null => None,
            cell => Some(self.figure(Some(cell))?),
        };
        Ok(KernelFigures {
            anonymous,
            rss_anon: self.figure(cells.get(1))?,
            rss_shmem: self.figure(cells.get(2))?,
            rss_file: self.figure(cells.get(3))?,
            swap: self.figure(cells.get(4))?,
            page_tables: self.figure(cells.get(5))?,
        })
    }

    fn uncertainties(
        &mut self,
        process: i64,
        numbers: &FxHashMap<i64, u32>,
    ) -> Checked<Vec<Uncertainty>> {
        let of: Vec<Value> = self.items(&format!("errors/{process}"))?;
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let mut uncertainties = Vec::with_capacity(of.len());
        for of in of {
            let column = of["column"].as_str();
            let column = column.and_then(|name| {
                ColumnId::ALL
                    .into_iter()
                    .find(|id| id.column().name == name)
            });
            uncertainties.push(Uncertainty {
                of: match column {
                    Some(column) => UncertaintyOf::Column(column),
                    None => UncertaintyOf::Pages(parse(&of["pages"])?),
                },
                parts: Vec::new(),
            });
        }
        let parts = self.rows(&ERROR_PART)?;
        let mut parts: Vec<_> = parts.iter().filter(|(key, _)| key[0] == process).collect();
        parts.sort_unstable_by_key(|(key, _)| **key);
        for ([_, number, _], cells) in parts {
            let uncertainty = usize::try_from(*number).ok();
            let uncertainty = uncertainty.and_then(|number| uncertainties.get_mut(number));
            let Some(uncertainty) = uncertainty else {
                return damaged("an error has no kind");
            };
            let real = |at: usize| cells[at].as_real().unwrap_or(f64::NAN);
            let sample = match cells[0].as_int() {
                Some(0) | None => None,
                Some(stack) => match numbers.get(&stack) {
                    Some(number) => Some(*number),
                    None => return damaged("an error is of a stack that the moment does not have"),
                },
            };
            uncertainty.parts.push(UncertainPart {
                sample,
                share: real(1),
                variance: real(2),
                single: real(3),
            });
        }
        Ok(uncertainties)
    }

    fn process(&mut self, id: i64) -> Checked<ProcessProfile> {
        let sql = "SELECT pid, comm, container FROM process WHERE id = ?1";
        let row: Option<(u32, String, Option<String>)> = {
            let mut row = self.db.prepare_cached(sql)?;
            let row = row.query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            row.optional()?
        };
        let Some((pid, comm, container)) = row else {
            return damaged(format!("no process has the id {id}"));
        };
        self.spend(comm.len() + container.as_ref().map_or(0, String::len))?;
        let container = container.map(|json| serde_json::from_str(&json));
        let container = container.transpose();
        let share = self.share(id)?;
        Ok(ProcessProfile {
            pid: Pid(pid),
            comm,
            container: container.or_else(|e| damaged(format!("a container: {e}")))?,
            samples: share.samples,
            not_observed: share.not_observed,
            total: share.total,
            uncertainties: share.uncertainties,
            kernel_before: share.kernel[0],
            kernel_after: share.kernel[1],
            freeze: share.freeze,
            peak: share.peak,
        })
    }

    fn places(&mut self) -> Checked<Places> {
        let mut mappings = Vec::new();
        let mut states = self.rows(&MAPPING_STATE)?;
        for id in self.list("mappings")? {
            let Some(cells) = states.remove(&[id, 0, 0]) else {
                return damaged(format!("mapping {id} has no state"));
            };
            mappings.push(self.mapping(id, &cells)?);
        }
        let mut files = Vec::new();
        let mut states = self.rows(&FILE_STATE)?;
        for id in self.list("files")? {
            let Some(cells) = states.remove(&[id, 0, 0]) else {
                return damaged(format!("file {id} has no state"));
            };
            files.push(self.file(id, &cells)?);
        }
        let other = self.facts.get("/other_files").cloned();
        Ok(Places {
            mappings,
            files,
            other_files: self.figure(other.as_ref())?,
        })
    }

    fn usage(&mut self, cells: &[Cell]) -> Checked<Usage> {
        Ok(Usage {
            anon: self.figure(cells.first())?,
            shmem: self.figure(cells.get(1))?,
            cache: self.figure(cells.get(2))?,
            file: self.figure(cells.get(3))?,
            swap: self.figure(cells.get(4))?,
            hugetlb: self.figure(cells.get(5))?,
        })
    }

    fn mapping(&mut self, id: i64, cells: &[Cell]) -> Checked<Mapping> {
        let sql = "SELECT pid, start, permissions, name, category FROM mapping WHERE id = ?1";
        let row = {
            let mut row = self.db.prepare_cached(sql)?;
            let row = row.query_row([id], |row| {
                let texts: [String; 3] = [row.get(2)?, row.get(3)?, row.get(4)?];
                Ok((row.get::<_, u32>(0)?, row.get::<_, i64>(1)?, texts))
            });
            row.optional()?
        };
        let Some((pid, start, [permissions, name, category])) = row else {
            return damaged(format!("no mapping has the id {id}"));
        };
        self.spend(permissions.len() + name.len())?;
        let Some(category) = Category::by_name(&category, &permissions) else {
            return damaged("a mapping has an unknown category");
        };
        Ok(Mapping {
            pid: Pid(pid),
            start: start.cast_unsigned(),
            end: cells[0].as_figure().unwrap_or(0),
            permissions,
            name,
            category,
            bytes: MappedBytes {
                attributed: self.usage(&cells[1..7])?,
                not_observed: self.usage(&cells[7..13])?,
                huge: self.figure(cells.get(13))?,
            },
        })
    }

    fn file(&mut self, id: i64, cells: &[Cell]) -> Checked<CachedFile> {
        let sql = "SELECT major, minor, inode, path, deleted, source FROM file WHERE id = ?1";
        let row = {
            let mut row = self.db.prepare_cached(sql)?;
            let row = row.query_row([id], |row| {
                let texts: [Option<String>; 2] = [row.get(3)?, row.get(5)?];
                let numbers = ((row.get(0)?, row.get(1)?), row.get::<_, i64>(2)?);
                Ok((numbers, texts, row.get(4)?))
            });
            row.optional()?
        };
        let Some(((dev, inode), [path, source], deleted)) = row else {
            return damaged(format!("no file has the id {id}"));
        };
        let path = match path.zip(source) {
            None => None,
            Some((path, source)) => {
                self.spend(path.len())?;
                let seen = cells[1].as_int().unwrap_or(0);
                let seen = self.facts.get(&format!("/seen/{seen}"));
                let seen = seen.and_then(Cell::as_int).unwrap_or(0).max(0);
                Some(KnownPath {
                    path,
                    deleted,
                    from: parse(&source.into())?,
                    seen: UNIX_EPOCH + Duration::from_millis(seen.cast_unsigned()),
                })
            }
        };
        let mut samples = Vec::new();
        for stack in self.list(&format!("file/{id}"))? {
            let amounts = self.amounts(WHOLE, id, stack)?;
            let stack = self.stack(stack)?;
            samples.push(Sample { stack, amounts });
        }
        let ino = inode.cast_unsigned();
        Ok(CachedFile {
            id: FileId { dev, ino },
            path,
            samples,
            lost: self.figure(cells.first())?,
        })
    }
}

#[derive(Default)]
struct Share {
    /// The row for each stack id.
    owners: FxHashMap<i64, Owner>,
    samples: Vec<Sample>,
    not_observed: Vec<NotObserved>,
    total: Amounts,
    uncertainties: Vec<Uncertainty>,
    kernel: [KernelFigures; 2],
    freeze: FreezeOutcome,
    peak: Option<Peak>,
}

fn parse<T: DeserializeOwned>(value: &Value) -> Checked<T> {
    T::deserialize(value).or_else(|e| damaged(e.to_string()))
}

/// A figure of one kind; `None` for a kind that is a sum of others.
pub(crate) fn amounts_of(kind: Kind, figure: u64) -> Option<Amounts> {
    let mut usage = Usage::default();
    let field = match kind {
        Kind::All | Kind::Resident => return None,
        Kind::Column(id) => return Some(Amounts::in_column(id, figure)),
        Kind::Anon => &mut usage.anon,
        Kind::Shmem => &mut usage.shmem,
        Kind::Cache => &mut usage.cache,
        Kind::File => &mut usage.file,
        Kind::Swap => &mut usage.swap,
        Kind::Hugetlb => &mut usage.hugetlb,
    };
    *field = figure;
    Some(usage.into())
}
