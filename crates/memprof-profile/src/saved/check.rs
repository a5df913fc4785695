//! Builds a profile from a parsed file, and checks the invariants that the rest of memprof relies on.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::forms::{self, List};
use super::frame::NamedFrame;
use super::parts::{self, Uncertainty};
use super::schema::{self, Whole};
use super::{Saved, Symbols};
use crate::measure::{MEASURES, Measure};
use crate::symbol::{Language, Symbol};
use crate::{
    self as profile, Amounts, CachedFile, Frame, FrameKind, Functions, Kind, Losses, Mapping,
    Module, NotObserved, Origin, Outcome, Peak, Places, ProcessProfile, Profile, Sample, Stack,
};
use memprof_sys::file_id::FileId;
use memprof_sys::kernel_figures::KernelFigures;

/// Maximum number of frames of a stack, the upper limit of `--max-frames`.
const MAX_FRAMES: usize = 1024;

/// Maximum sum of all figures of a file. Every partial sum then fits into 64 bits.
const MAX_SUM: u64 = 1 << 62;
/// Maximum sum of all variances, in bytes². Standard errors then fit into 60 bits.
const MAX_VARIANCE: f64 = 1e36;
/// Maximum number of frames in all stacks, including inlined functions: 65,536 stacks of 1024 frames.
const MAX_STEPS: usize = 64 << 20;
/// Maximum number of code segments of a file. Real files have a few.
const MAX_SEGMENTS: usize = 1024;

type Checked<T> = Result<T, String>;

/// Builds and checks a profile.
///
/// # Errors
/// A message that describes the defect in the file.
pub(super) fn build(whole: Whole<'_>) -> Checked<Saved> {
    let mut sums = Sums::default();
    let modules = modules(whole.modules.into_vec())?;
    let frames = whole.frames.into_vec();
    check_frames(&frames, modules.len())?;
    let names = frames
        .iter()
        .filter_map(|f| Some((f.frame, Arc::clone(f.symbol.as_ref()?))));
    let mut symbols: Symbols = names.collect();

    let rows = whole.stacks.into_vec();
    let mut samples = Vec::with_capacity(rows.len());
    for row in rows {
        samples.push(Sample {
            stack: stack(row.outcome, &row.frames, &frames, &mut sums)?,
            amounts: sums.amounts(row.bytes)?,
        });
    }
    let mut stacks: Vec<_> = samples.iter().map(|s| Arc::clone(&s.stack)).collect();
    for other in whole.other_stacks.into_vec() {
        stacks.push(stack(other.outcome, &other.frames, &frames, &mut sums)?);
    }
    let not_observed = not_observed(whole.not_observed, &mut sums)?;
    let total = sums.amounts(whole.total)?;
    adds_up("the profile", &total, &samples, &not_observed)?;
    let uncertainties = uncertainties(whole.uncertainties, samples.len(), &mut sums)?;

    let rows = whole.processes.into_vec();
    let mut processes = Vec::with_capacity(rows.len());
    let mut pids = HashSet::new();
    for process in rows {
        if !pids.insert(process.pid) {
            return Err(format!("process {} occurs twice", process.pid));
        }
        processes.push(share(process, &stacks, &mut sums)?);
    }
    let places = Places {
        mappings: mappings(whole.mappings.into_vec(), &mut sums)?,
        files: files(whole.files.into_vec(), &stacks, &mut sums)?,
        other_files: sums.figure(whole.other_files)?,
    };
    let mut losses = Losses::default();
    for (what, count) in whole.losses.0 {
        losses.add(what, sums.figure(count)?);
    }
    if let Some(faults) = &whole.faults {
        sums.figure(faults.all)?;
        sums.figure(faults.unwalked)?;
    }
    let ended = whole.ended.map(Cow::into_owned).unwrap_or_default();
    for process in &ended.processes {
        sums.amounts(process.total)?;
        peak(process.peak, &mut sums)?;
    }
    let cgroup = match whole.cgroup {
        Some(group) => Some(group.read(&mut |figure| sums.figure(figure))?.into()),
        None => None,
    };
    let profile = Profile {
        taken: forms::time(whole.taken_unix_ms, whole.taken_ns),
        taken_ns: 0,
        observed: Duration::from_millis(whole.followed_ms),
        target: whole.target.into_owned(),
        samples,
        not_observed,
        total,
        uncertainties,
        kernel_before: kernel(whole.kernel_before, &mut sums)?,
        kernel_after: kernel(whole.kernel_after, &mut sums)?,
        losses,
        faults: whole.faults,
        modules: modules.into(),
        places: Arc::new(places),
        processes,
        ended,
        oom_kills: whole.oom_kills.unwrap_or_default(),
        freeze: whole.freeze.into_owned(),
        measures: measures(&whole.measures.into_vec()),
        cgroup,
        peak: peak(whole.peak, &mut sums)?,
        own_peak: peak(whole.own_peak, &mut sums)?,
    };
    symbols.set_advice(whole.names_advice.map(Cow::into_owned));
    Ok(Saved {
        profile,
        symbols: symbols.finally(),
        sequence: whole.report,
    })
}

/// Adds up figures, so that no later sum of some of them can overflow.
#[derive(Default)]
struct Sums {
    figures: u64,
    sizes: u64,
    variances: f64,
    steps: usize,
}

impl Sums {
    fn figure(&mut self, figure: u64) -> Checked<u64> {
        let sum = self
            .figures
            .checked_add(figure)
            .filter(|sum| *sum <= MAX_SUM);
        self.figures = sum.ok_or("its figures are larger than any memory")?;
        Ok(figure)
    }

    fn amounts(&mut self, amounts: Amounts) -> Checked<Amounts> {
        Kind::single().try_for_each(|kind| self.figure(kind.figure(&amounts)).map(drop))?;
        Ok(amounts)
    }

    fn size(&mut self, mapping: &Mapping) -> Checked<()> {
        let size = mapping.end.checked_sub(mapping.start);
        let size = size.ok_or_else(|| {
            let (start, end) = (mapping.start, mapping.end);
            format!("a mapping ends at {end:#x}, before its start {start:#x}")
        })?;
        let sum = self.sizes.checked_add(size).filter(|sum| *sum <= MAX_SUM);
        self.sizes = sum.ok_or("its mappings are larger than any address space")?;
        Ok(())
    }

    fn steps(&mut self, frames: &[NamedFrame], numbers: &[u32]) -> Checked<()> {
        let named = |number: &u32| frames.get(*number as usize)?.symbol.as_deref();
        let functions = numbers
            .iter()
            .filter_map(named)
            .filter_map(Symbol::function);
        self.steps += numbers.len() + functions.map(|f| f.inlined.len()).sum::<usize>();
        match self.steps <= MAX_STEPS {
            true => Ok(()),
            false => Err(format!("its stacks have more than {MAX_STEPS} frames")),
        }
    }

    fn variance(&mut self, variance: f64) -> Checked<()> {
        self.variances += variance;
        match variance >= 0.0 && self.variances <= MAX_VARIANCE {
            true => Ok(()),
            false => Err(format!("{variance} is not the variance of a figure")),
        }
    }
}

fn modules(modules: Vec<schema::Module<'_>>) -> Checked<Vec<Arc<Module>>> {
    let module = |module: schema::Module<'_>| {
        let layout = module.layout.map(Cow::into_owned);
        if layout
            .as_ref()
            .is_some_and(|l| l.segments.len() > MAX_SEGMENTS)
        {
            return Err(format!("a file has more than {MAX_SEGMENTS} code segments"));
        }
        Ok(Arc::new(Module {
            path: module.path.into_owned().into(),
            tree: None,
            name: module.name.into_owned(),
            dev_ino: (0, 0),
            file: None,
            layout,
            // The table of functions stays empty: names come from the frames.
            functions: functions(module.source, Origin::Interpreter)
                .or_else(|| functions(module.made_at_run_time, Origin::Runtime)),
            own_executable: module.own_executable,
        }))
    };
    modules.into_iter().map(module).collect()
}

fn functions(language: Option<Cow<'_, str>>, origin: Origin) -> Option<Functions> {
    let language = Language::by_name(&language?).unwrap_or(Language::Other);
    Some(Functions::new(language, origin))
}

fn check_frames(frames: &[NamedFrame], modules: usize) -> Checked<()> {
    for named in frames {
        if let FrameKind::Code(module, _) = named.frame.kind()
            && usize::from(module.0) >= modules
        {
            return Err(format!("a frame is in module {} of {modules}", module.0));
        }
    }
    Ok(())
}

fn stack(
    outcome: Outcome,
    numbers: &[u32],
    frames: &[NamedFrame],
    sums: &mut Sums,
) -> Checked<Arc<Stack>> {
    sums.steps(frames, numbers)?;
    if numbers.len() > MAX_FRAMES {
        let found = numbers.len();
        return Err(format!(
            "a stack has {found} frames, more than {MAX_FRAMES}"
        ));
    }
    let frame = |number: &u32| {
        let named = frames.get(*number as usize);
        let named = named.map(|named| named.frame);
        named.ok_or_else(|| format!("a stack has frame {number} of {}", frames.len()))
    };
    let found: Checked<Box<[Frame]>> = numbers.iter().map(frame).collect();
    Ok(Arc::new(Stack {
        frames: found?,
        outcome,
    }))
}

fn not_observed(rows: Cow<'_, [NotObserved]>, sums: &mut Sums) -> Checked<Vec<NotObserved>> {
    for row in &*rows {
        sums.amounts(row.amounts)?;
    }
    Ok(rows.into_owned())
}

/// Samples by number of their stack. The numbers must ascend, so no stack occurs twice.
fn samples(
    rows: List<'_, (u32, Amounts)>,
    stacks: &[Arc<Stack>],
    sums: &mut Sums,
) -> Checked<Vec<Sample>> {
    let rows = rows.into_vec();
    let mut found = Vec::with_capacity(rows.len());
    let mut next = 0;
    for (number, amounts) in rows {
        let stack = stacks.get(number as usize).filter(|_| number >= next);
        let stack = stack.ok_or_else(|| {
            let all = stacks.len();
            format!("stack {number} of {all} is not there, or not in order")
        })?;
        next = number + 1;
        found.push(Sample {
            stack: Arc::clone(stack),
            amounts: sums.amounts(amounts)?,
        });
    }
    Ok(found)
}

/// Checks that the rows add up to the total, for each kind.
fn adds_up(
    what: &str,
    total: &Amounts,
    samples: &[Sample],
    not_observed: &[NotObserved],
) -> Checked<()> {
    let mut sum = Amounts::default();
    samples.iter().for_each(|row| sum += row.amounts);
    not_observed.iter().for_each(|row| sum += row.amounts);
    match Kind::single().find(|kind| kind.figure(&sum) != kind.figure(total)) {
        None => Ok(()),
        Some(kind) => Err(format!(
            "the rows of {what} add up to {} {} of kind {}, but its total is {}",
            kind.figure(&sum),
            kind.unit().name(),
            kind.name(),
            kind.figure(total)
        )),
    }
}

fn uncertainties(
    rows: List<'_, Uncertainty>,
    samples: usize,
    sums: &mut Sums,
) -> Checked<Vec<profile::Uncertainty>> {
    let checked = |row: Uncertainty| {
        let uncertainty = profile::Uncertainty::try_from(row)?;
        for part in &uncertainty.parts {
            if let Some(number) = part.sample.filter(|number| *number as usize >= samples) {
                return Err(format!("an error names stack {number} of {samples}"));
            }
            if !(0.0..=1.0).contains(&part.share) {
                return Err(format!("{} is not a share of an estimate", part.share));
            }
            sums.variance(part.variance)?;
            sums.variance(part.single)?;
        }
        Ok(uncertainty)
    };
    rows.into_vec().into_iter().map(checked).collect()
}

fn kernel(kernel: KernelFigures, sums: &mut Sums) -> Checked<KernelFigures> {
    let KernelFigures {
        anonymous,
        rss_anon,
        rss_shmem,
        rss_file,
        swap,
        page_tables,
    } = kernel;
    for figure in [rss_anon, rss_shmem, rss_file, swap, page_tables] {
        sums.figure(figure)?;
    }
    sums.figure(anonymous.unwrap_or_default())?;
    Ok(kernel)
}

fn peak(peak: Option<Peak>, sums: &mut Sums) -> Checked<Option<Peak>> {
    if let Some(Peak {
        rss, high_water, ..
    }) = peak
    {
        sums.figure(rss)?;
        sums.figure(high_water.unwrap_or(0))?;
    }
    Ok(peak)
}

fn share(
    process: schema::Process<'_>,
    stacks: &[Arc<Stack>],
    sums: &mut Sums,
) -> Checked<ProcessProfile> {
    let samples = samples(process.stacks, stacks, sums)?;
    let not_observed = not_observed(process.not_observed, sums)?;
    let total = sums.amounts(process.total)?;
    let what = format!("process {}", process.pid);
    adds_up(&what, &total, &samples, &not_observed)?;
    Ok(ProcessProfile {
        pid: process.pid,
        comm: process.comm.into_owned(),
        container: process.place.map(Cow::into_owned),
        uncertainties: uncertainties(process.uncertainties, samples.len(), sums)?,
        samples,
        not_observed,
        total,
        kernel_before: kernel(process.kernel_before, sums)?,
        kernel_after: kernel(process.kernel_after, sums)?,
        freeze: process.freeze.into_owned(),
        peak: peak(process.peak, sums)?,
    })
}

fn mappings(rows: Vec<parts::Mapping<'_>>, sums: &mut Sums) -> Checked<Vec<Mapping>> {
    let mapping = |row: parts::Mapping<'_>| {
        let mapping = Mapping::from(row);
        sums.size(&mapping)?;
        for usage in [mapping.bytes.attributed, mapping.bytes.not_observed] {
            sums.amounts(usage.into())?;
        }
        sums.figure(mapping.bytes.huge)?;
        Ok(mapping)
    };
    rows.into_iter().map(mapping).collect()
}

fn files(
    rows: Vec<schema::File<'_>>,
    stacks: &[Arc<Stack>],
    sums: &mut Sums,
) -> Checked<Vec<CachedFile>> {
    let mut last = None;
    let file = |row: schema::File<'_>| {
        let id = FileId {
            dev: row.device,
            ino: row.inode,
        };
        if last.replace(id).is_some_and(|last| last >= id) {
            return Err(format!("file {:?} occurs twice, or not in order", id));
        }
        Ok(CachedFile {
            id,
            path: row.path.map(Cow::into_owned),
            samples: samples(row.stacks, stacks, sums)?,
            lost: sums.figure(row.lost)?,
        })
    };
    rows.into_iter().map(file).collect()
}

/// The measures that were counted, without those that this memprof does not know.
fn measures(names: &[Cow<'_, str>]) -> Vec<&'static Measure> {
    let counted = |measure: &&'static Measure| names.iter().any(|name| name == measure.name);
    MEASURES.into_iter().filter(counted).collect()
}
