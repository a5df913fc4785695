//! Writer of saved profiles.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::forms::{ByName, List, unix_ms};
use super::frame::NamedFrame;
use super::parts::{Mapping, Uncertainty};
use super::schema::{self, Format, OtherStack, Process, Version, Whole};
use crate::{
    Amounts, CachedFile, CodeLayout, Frame, Module, Origin, ProcessProfile, Profile, Report,
    Sample, Stack,
};

/// `heap_peak` as `heapPeak`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_').map(str::to_owned);
    let mut text = words.next().unwrap_or_default();
    for mut word in words {
        word[..1].make_ascii_uppercase();
        text += &word;
    }
    text
}

/// Writes a saved profile. `layout` looks up the code layout of a file.
///
/// # Errors
/// If `out` cannot be written.
pub fn write(
    report: &Report,
    layout: fn(&Module) -> Option<Cow<'_, CodeLayout>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let profile = &*report.profile;
    let (frames, stacks) = (&FrameNumbers::new(profile), &StackNumbers::new(profile));
    let counted = profile.optional_measures();
    let counted =
        counted.map(|(measure, yes)| (format!("{}Counted", camel_case(measure.name)), yes));
    let losses = profile.losses.counters.iter();
    let ended = &profile.ended;
    let whole = Whole {
        format: Format,
        version: Version,
        report: report.sequence,
        taken_unix_ms: unix_ms(profile.taken),
        taken_ns: profile
            .taken
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .subsec_nanos()
            % 1_000_000,
        followed_ms: u64::try_from(profile.observed.as_millis()).unwrap_or(u64::MAX),
        target: Cow::Borrowed(&profile.target),
        stopped_us: profile.freeze.lasted().map(|lasted| lasted.as_micros()),
        stopped_in_turn: profile.freeze.in_turn(),
        freeze_error: profile.freeze.failed(),
        freeze: Cow::Borrowed(&profile.freeze),
        measures: List::map(&profile.measures, |measure| measure.name.into()),
        counted: ByName(counted.collect()),
        faults: profile.faults,
        total: profile.total,
        kernel_before: profile.kernel_before,
        kernel_after: profile.kernel_after,
        losses: ByName(losses.map(|(what, n)| (what.to_string(), *n)).collect()),
        oom_kills: (profile.oom_kills.count > 0).then(|| profile.oom_kills.clone()),
        cgroup: profile.cgroup.as_deref().map(Into::into),
        peak: profile.peak,
        own_peak: profile.own_peak,
        ended: (ended.unscanned > 0 || !ended.processes.is_empty()).then_some(Cow::Borrowed(ended)),
        names_advice: report.symbols.advice().map(Cow::Borrowed),
        modules: List::map(&profile.modules, move |module| schema::Module {
            name: (&module.name).into(),
            path: Path::to_string_lossy(&module.path),
            own_executable: module.own_executable,
            source: module.language_from(Origin::Interpreter).map(Into::into),
            made_at_run_time: module.language_from(Origin::Runtime).map(Into::into),
            layout: layout(module),
        }),
        frames: List::map(&frames.frames, |frame| NamedFrame {
            frame: *frame,
            symbol: report.symbols.shared(*frame).cloned(),
        }),
        stacks: List::map(&profile.samples, |sample| schema::Stack {
            bytes: sample.amounts,
            outcome: sample.stack.outcome,
            frames: frames.of_stack(&sample.stack),
        }),
        not_observed: Cow::Borrowed(&profile.not_observed),
        uncertainties: List::map(&profile.uncertainties, Uncertainty::from),
        other_stacks: List::map(&stacks.others, |stack| OtherStack {
            outcome: stack.outcome,
            frames: frames.of_stack(stack),
        }),
        processes: List::map(&profile.processes, |share: &ProcessProfile| Process {
            pid: share.pid,
            comm: (&share.comm).into(),
            place: share.container.as_ref().map(Cow::Borrowed),
            stacks: stacks.of_samples(&share.samples),
            not_observed: Cow::Borrowed(&share.not_observed),
            total: share.total,
            uncertainties: List::map(&share.uncertainties, Uncertainty::from),
            kernel_before: share.kernel_before,
            kernel_after: share.kernel_after,
            freeze: Cow::Borrowed(&share.freeze),
            peak: share.peak,
        }),
        mappings: List::map(&profile.places.mappings, Mapping::from),
        files: List::map(&profile.places.files, |file: &CachedFile| schema::File {
            device: file.id.dev,
            inode: file.id.ino,
            path: file.path.as_ref().map(Cow::Borrowed),
            stacks: stacks.of_samples(&file.samples),
            lost: file.lost,
        }),
        other_files: profile.places.other_files,
    };
    serde_json::to_writer(&mut *out, &whole)?;
    out.write_all(b"\n")
}

/// All distinct frames, numbered in order of first appearance.
struct FrameNumbers {
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u32>,
}

impl FrameNumbers {
    fn new(profile: &Profile) -> FrameNumbers {
        let (mut frames, mut numbers) = (Vec::new(), HashMap::new());
        let stacks = profile.all_samples();
        for frame in stacks.flat_map(|s| s.stack.frames.iter().copied()) {
            numbers.entry(frame).or_insert_with(|| {
                frames.push(frame);
                (frames.len() - 1) as u32
            });
        }
        FrameNumbers { frames, numbers }
    }

    fn of_stack(&self, stack: &Stack) -> Vec<u32> {
        stack
            .frames
            .iter()
            .map(|frame| self.numbers[frame])
            .collect()
    }
}

/// Numbers of stacks: the stacks of samples by position, then all others.
struct StackNumbers<'a> {
    numbers: HashMap<*const Stack, u32>,
    others: Vec<&'a Stack>,
}

impl<'a> StackNumbers<'a> {
    fn new(profile: &'a Profile) -> StackNumbers<'a> {
        let samples = profile.samples.iter().zip(0..);
        let mut numbers: HashMap<_, _> = samples
            .map(|(sample, number)| (Arc::as_ptr(&sample.stack), number))
            .collect();
        let (mut others, first) = (Vec::new(), profile.samples.len());
        for sample in profile.all_samples() {
            numbers
                .entry(Arc::as_ptr(&sample.stack))
                .or_insert_with(|| {
                    others.push(&*sample.stack);
                    (first + others.len() - 1) as u32
                });
        }
        StackNumbers { numbers, others }
    }

    fn of_samples(&'a self, samples: &'a [Sample]) -> List<'a, (u32, Amounts)> {
        List::map(samples, |sample| {
            (self.numbers[&Arc::as_ptr(&sample.stack)], sample.amounts)
        })
    }
}
