//! Collects the rows of a report.

use std::sync::Arc;
use std::time::SystemTime;

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cell::Cell;
use crate::facts;
use crate::ids::{content_of, unobserved};
use crate::recorder::Recorder;
use memprof_profile::symbol::Symbols;
use memprof_profile::{
    Amounts, ErrorSum, FrameKind, FreezeOutcome, Kind, MappedBytes, Mapping, NotObserved, Parts,
    Peak, Places, ProcessProfile, Profile, Report, Sample, Stack, Uncertainty, UncertaintyOf,
    saved,
};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::usage::Usage;

/// The process of figures of the whole report.
pub(crate) const WHOLE: i64 = 0;

/// Standard errors of a report or process, by number of the sample and kind.
type Errors = FxHashMap<(u32, Kind), u64>;

/// Collects all rows of a report.
pub(crate) fn collect(to: &mut Recorder, report: &Report) -> rusqlite::Result<()> {
    let profile = &*report.profile;
    let modules = to.modules(profile)?;
    let stacks = Stacks::new(to, profile, &modules)?;
    to.list("modules", modules)?;
    let whole = Share {
        process: WHOLE,
        samples: &profile.samples,
        not_observed: &profile.not_observed,
        uncertainties: &profile.uncertainties,
        kernel: [&profile.kernel_before, &profile.kernel_after],
        freeze: &profile.freeze,
        peak: profile.peak,
    };
    to.share(&stacks, &whole)?;
    let mut processes = Vec::with_capacity(profile.processes.len());
    for process in &profile.processes {
        let id = to.process(process)?;
        processes.push(id);
        let share = Share {
            process: id,
            samples: &process.samples,
            not_observed: &process.not_observed,
            uncertainties: &process.uncertainties,
            kernel: [&process.kernel_before, &process.kernel_after],
            freeze: &process.freeze,
            peak: process.peak,
        };
        to.share(&stacks, &share)?;
    }
    to.list("processes", processes)?;
    to.mappings(&report.profile)?;
    to.files(&stacks, &profile.places)?;
    to.facts(report)?;
    to.symbols(&report.symbols)
}

/// The ids of a report's stacks, by address.
struct Stacks(FxHashMap<usize, i64>);

fn address(stack: &Arc<Stack>) -> usize {
    Arc::as_ptr(stack) as usize
}

impl Stacks {
    /// The ids of a report's stacks. Several may have the same frames: they are numbered in the order of the report.
    fn new(to: &mut Recorder, profile: &Profile, modules: &[i64]) -> rusqlite::Result<Stacks> {
        let mut cached = FxHashMap::default();
        let mut numbers: FxHashMap<usize, usize> = FxHashMap::default();
        let mut ids = FxHashMap::default();
        for sample in profile.all_samples() {
            let stack = &sample.stack;
            let address = address(stack);
            if ids.contains_key(&address) {
                continue;
            }
            let content = match to.cache.stacks.remove(&address) {
                Some((_, content)) => content,
                None => to.content(stack, modules)?,
            };
            cached.insert(address, (Arc::clone(stack), content));
            let number = numbers.entry(content).or_default();
            ids.insert(address, to.ids.stack(&to.db, content, *number)?);
            *number += 1;
        }
        to.cache.stacks = cached;
        Ok(Stacks(ids))
    }

    fn id(&self, stack: &Arc<Stack>) -> i64 {
        self.0.get(&address(stack)).copied().unwrap_or(0)
    }
}

/// The memory of the whole report or of a process.
struct Share<'a> {
    process: i64,
    samples: &'a [Sample],
    not_observed: &'a [NotObserved],
    uncertainties: &'a [Uncertainty],
    kernel: [&'a KernelFigures; 2],
    freeze: &'a FreezeOutcome,
    peak: Option<Peak>,
}

impl Recorder {
    /// Sets a list of the moment.
    fn list(&mut self, name: &str, ids: Vec<i64>) -> rusqlite::Result<()> {
        let name = self.ids.name(&self.db, name.to_owned())?;
        self.state.lists.set(name, ids);
        Ok(())
    }

    fn item(&mut self, item: &impl Serialize) -> rusqlite::Result<i64> {
        let json = serde_json::to_string(item).unwrap_or_default();
        self.ids.item(&self.db, json)
    }

    fn items<T: Serialize>(&mut self, name: &str, items: &[T]) -> rusqlite::Result<()> {
        let ids = items.iter().map(|item| self.item(item));
        let ids = ids.collect::<Result<_, _>>()?;
        self.list(name, ids)
    }

    fn content(&mut self, stack: &Stack, modules: &[i64]) -> rusqlite::Result<usize> {
        let mut frames = Vec::with_capacity(stack.frames.len());
        for frame in &stack.frames {
            if let Some(id) = self.cache.frames.get(frame) {
                frames.push(*id);
                continue;
            }
            let (module, offset) = match frame.kind() {
                FrameKind::Code(module, offset) => {
                    let known = modules.get(usize::from(module.0));
                    (known.copied().unwrap_or(0), offset)
                }
                FrameKind::Unmapped(address) => (0, address),
            };
            let id = self.ids.frame(&self.db, module, offset)?;
            self.cache.frames.insert(*frame, id);
            frames.push(id);
        }
        Ok(self.ids.content(content_of(stack.outcome, frames.into())))
    }

    fn process(&mut self, process: &ProcessProfile) -> rusqlite::Result<i64> {
        let container = process.container.as_ref();
        let container = container.and_then(|c| serde_json::to_string(c).ok());
        let key = (process.pid.0, &*process.comm, container);
        self.ids.process(&self.db, key)
    }

    fn share(&mut self, stacks: &Stacks, share: &Share<'_>) -> rusqlite::Result<()> {
        let process = share.process;
        let errors = errors(share.uncertainties);
        let mut rows = Vec::with_capacity(share.samples.len() + share.not_observed.len());
        for (number, sample) in (0..).zip(share.samples) {
            let stack = stacks.id(&sample.stack);
            rows.push(stack);
            let error = |kind| errors.get(&(number, kind)).copied();
            self.amounts(process, stack, &sample.amounts, &error)?;
        }
        let mut numbers: FxHashMap<usize, usize> = FxHashMap::default();
        for row in share.not_observed {
            let content = self.ids.content(unobserved(row));
            let number = numbers.entry(content).or_default();
            let stack = self.ids.stack(&self.db, content, *number)?;
            *number += 1;
            rows.push(stack);
            self.amounts(process, stack, &row.amounts, &|_| None)?;
        }
        let samples = &rows[..share.samples.len()];
        self.uncertainties(process, share.uncertainties, samples)?;
        self.list(&format!("rows/{process}"), rows)?;
        let freeze = self.item(share.freeze)?;
        let mut state = vec![Cell::Int(freeze)];
        state.extend(share.kernel.into_iter().flat_map(kernel));
        let peak = share.peak;
        state.extend([
            peak.map(|peak| peak.rss).into(),
            peak.and_then(|peak| peak.high_water).into(),
            peak.map(|peak| u64::from(peak.processes)).into(),
            peak.map(|peak| peak.after_ms).into(),
            peak.map(|peak| u64::from(peak.is_shown)).into(),
        ]);
        self.state.processes.set([process, 0, 0], &state);
        Ok(())
    }

    /// Sets the figures of a stack: those that are not 0, or at least one, so that the stack is there.
    fn amounts(
        &mut self,
        process: i64,
        stack: i64,
        amounts: &Amounts,
        error: &dyn Fn(Kind) -> Option<u64>,
    ) -> rusqlite::Result<()> {
        let some = Kind::single().filter(|kind| kind.figure(amounts) > 0);
        let mut kinds: Vec<Kind> = some.collect();
        if kinds.is_empty() {
            kinds.push(Kind::Anon);
        }
        for kind in kinds {
            let kind_id = self.ids.kind(&self.db, kind)?;
            let series = self.ids.series(&self.db, process, 0, stack, kind_id)?;
            let row = [Cell::figure(kind.figure(amounts)), error(kind).into()];
            self.state.values.set([series, 0, 0], &row);
        }
        Ok(())
    }

    fn uncertainties(
        &mut self,
        process: i64,
        uncertainties: &[Uncertainty],
        samples: &[i64],
    ) -> rusqlite::Result<()> {
        if uncertainties.is_empty() {
            return Ok(());
        }
        let of = |uncertainty: &Uncertainty| match uncertainty.of {
            UncertaintyOf::Pages(kind) => json!({ "pages": kind }),
            UncertaintyOf::Column(column) => json!({ "column": column.column().name }),
        };
        let all: Vec<Value> = uncertainties.iter().map(of).collect();
        // The same several times would be the same item, but a list of items may contain one several times.
        self.items(&format!("errors/{process}"), &all)?;
        for (number, uncertainty) in (0..).zip(uncertainties) {
            for (at, part) in (0..).zip(&uncertainty.parts) {
                let sample = part.sample.and_then(|sample| samples.get(sample as usize));
                let row = [
                    Cell::Int(sample.copied().unwrap_or(0)),
                    Cell::Real(part.share),
                    Cell::Real(part.variance),
                    Cell::Real(part.single),
                ];
                self.state.errors.set([process, number, at], &row);
            }
        }
        Ok(())
    }

    fn mappings(&mut self, profile: &Arc<Profile>) -> rusqlite::Result<()> {
        let now = &profile.places.mappings;
        let last = self.cache.mappings.take();
        if let Some((last, ids)) = last.filter(|(last, _)| same(&last.places.mappings, now)) {
            // Most mappings do not change: nothing is looked up for those.
            self.state.mappings.keep();
            for ((mapping, last), id) in now.iter().zip(&last.places.mappings).zip(&ids) {
                if (mapping.end, &mapping.bytes) != (last.end, &last.bytes) {
                    self.mapping(*id, mapping.end, &mapping.bytes);
                }
            }
            self.list("mappings", ids.clone())?;
            self.cache.mappings = Some((Arc::clone(profile), ids));
            return Ok(());
        }
        let mut ids = Vec::with_capacity(now.len());
        let mut mapped: FxHashMap<i64, (u64, MappedBytes)> = FxHashMap::default();
        for mapping in now {
            let id = self.ids.mapping(&self.db, mapping)?;
            // A process has one mapping at an address; in a report that is wrong about it, the ids are still unique.
            let (end, bytes) = mapped.entry(id).or_insert_with(|| {
                ids.push(id);
                Default::default()
            });
            *end = mapping.end.max(*end);
            bytes.attributed += mapping.bytes.attributed;
            bytes.not_observed += mapping.bytes.not_observed;
            bytes.huge += mapping.bytes.huge;
        }
        for (id, (end, bytes)) in mapped {
            self.mapping(id, end, &bytes);
        }
        if ids.len() == now.len() {
            self.cache.mappings = Some((Arc::clone(profile), ids.clone()));
        }
        self.list("mappings", ids)
    }

    fn mapping(&mut self, id: i64, end: u64, bytes: &MappedBytes) {
        let mut state = vec![Cell::figure(end)];
        state.extend(usage(&bytes.attributed));
        state.extend(usage(&bytes.not_observed));
        state.push(Cell::figure(bytes.huge));
        self.state.mappings.set([id, 0, 0], &state);
    }

    fn files(&mut self, stacks: &Stacks, places: &Places) -> rusqlite::Result<()> {
        let mut ids = Vec::with_capacity(places.files.len());
        let cache = self.ids.kind(&self.db, Kind::Cache)?;
        // Most files were seen at the same time, which changes with each report: it is written once.
        let mut seen: Vec<SystemTime> = Vec::new();
        for file in &places.files {
            let id = self.ids.file(&self.db, file)?;
            ids.push(id);
            let number = file.path.as_ref().map(|path| {
                let known = seen.iter().position(|seen| *seen == path.seen);
                known.unwrap_or_else(|| {
                    seen.push(path.seen);
                    seen.len() - 1
                }) as u64
            });
            let state = [Cell::figure(file.lost), number.into()];
            self.state.files.set([id, 0, 0], &state);
            let mut rows = Vec::with_capacity(file.samples.len());
            for sample in &file.samples {
                let stack = stacks.id(&sample.stack);
                rows.push(stack);
                let series = self.ids.series(&self.db, WHOLE, id, stack, cache)?;
                let row = [Cell::figure(sample.amounts.usage.cache), Cell::Null];
                self.state.values.set([series, 0, 0], &row);
            }
            self.list(&format!("file/{id}"), rows)?;
        }
        self.list("files", ids)?;
        for (number, seen) in seen.into_iter().enumerate() {
            let ms = saved::unix_ms(seen);
            self.fact(format!("/seen/{number}"), Cell::figure(ms))?;
        }
        Ok(())
    }

    fn symbols(&mut self, symbols: &Arc<Symbols>) -> rusqlite::Result<()> {
        let frames = self.cache.frames.len();
        let last = self.cache.symbols.as_ref();
        if last.is_some_and(|(last, known)| Arc::ptr_eq(last, symbols) && *known == frames) {
            return Ok(());
        }
        for (frame, symbol) in symbols.iter() {
            if let Some(id) = self.cache.frames.get(&frame) {
                self.symbols.set(&self.db, *id, symbol)?;
            }
        }
        self.cache.symbols = Some((Arc::clone(symbols), frames));
        Ok(())
    }

    fn fact(&mut self, name: String, value: Cell) -> rusqlite::Result<()> {
        let id = self.ids.name(&self.db, name)?;
        self.state.facts.set([id, 0, 0], &[value]);
        Ok(())
    }

    fn facts(&mut self, report: &Report) -> rusqlite::Result<()> {
        let profile = &*report.profile;
        let target = &profile.target;
        self.items("pids", &target.pids)?;
        self.items("ended", &profile.ended.processes)?;
        self.items("oom_kills", &profile.oom_kills.newest)?;
        let losses = profile.losses.counters.iter();
        let losses: Vec<Value> = losses.map(|(what, count)| json!([what, count])).collect();
        let measures: Vec<&str> = profile.measures.iter().map(|m| m.name).collect();
        let tree = json!({
            "target": { "pid": target.pid, "comm": target.comm, "alive": target.alive },
            "losses": losses,
            "measures": measures,
            "names_advice": report.symbols.advice(),
            "ended": profile.ended.unscanned,
            "oom_kills": profile.oom_kills.count,
            "other_files": profile.places.other_files,
            "cgroup": profile.cgroup.as_deref(),
            "own_peak": profile.own_peak,
        });
        let mut leaves = Vec::new();
        facts::flatten("", &tree, &mut |path, cell| leaves.push((path, cell)));
        leaves
            .into_iter()
            .try_for_each(|(path, cell)| self.fact(path, cell))
    }
}

/// Whether two reports have the same mappings, in the same order, whatever memory is there.
fn same(before: &[Mapping], now: &[Mapping]) -> bool {
    let key = |mapping: &Mapping| (mapping.pid, mapping.start, mapping.category);
    let same = |(a, b): (&Mapping, &Mapping)| {
        key(a) == key(b) && a.permissions == b.permissions && a.name == b.name
    };
    before.len() == now.len() && before.iter().zip(now).all(same)
}

fn usage(usage: &Usage) -> [Cell; 6] {
    let Usage {
        anon,
        shmem,
        cache,
        file,
        swap,
        hugetlb,
    } = *usage;
    [anon, shmem, cache, file, swap, hugetlb].map(Cell::figure)
}

fn kernel(kernel: &KernelFigures) -> [Cell; 6] {
    let KernelFigures {
        anonymous,
        rss_anon,
        rss_shmem,
        rss_file,
        swap,
        page_tables,
    } = *kernel;
    let figures = [rss_anon, rss_shmem, rss_file, swap, page_tables].map(Cell::figure);
    let [a, b, c, d, e] = figures;
    [anonymous.into(), a, b, c, d, e]
}

/// The standard error of each sample's figures.
fn errors(uncertainties: &[Uncertainty]) -> Errors {
    let mut sums: FxHashMap<(u32, Kind), ErrorSum> = FxHashMap::default();
    for uncertainty in uncertainties {
        let Some(kind) = Kind::single().find(|kind| uncertainty.is_in(*kind)) else {
            continue;
        };
        let mut all = Parts::default();
        uncertainty.parts.iter().for_each(|part| all.add(part));
        for part in &uncertainty.parts {
            if let Some(sample) = part.sample {
                let mut own = Parts::default();
                own.add(part);
                sums.entry((sample, kind)).or_default().add(&own, &all);
            }
        }
    }
    let errors = sums.into_iter();
    errors
        .map(|(key, sum)| (key, sum.standard_error()))
        .collect()
}
