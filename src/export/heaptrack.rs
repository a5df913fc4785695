//! heaptrack's own format (version 2, text): the sampled allocations of `--heap`, for `heaptrack_print` and the heaptrack
//! GUI.
//!
//! heaptrack writes one event per call, but memprof has estimates of very many calls. Each event therefore represents as
//! many calls as the first line says, and the sizes of a stack's events add up to its bytes. A stack has events for
//! temporary allocations (freed at once), for allocations freed later, and for live allocations, which heaptrack calls
//! leaked. Live allocations come last, so that the peak is at the end.
//!
//! The file ends with the RSS at the time of the report, and how long memprof had followed the target by then.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS, TEMPORARY_SPACE,
};
use memprof_profile::tree::{Direction, Label, Merge, Naming, Paths};
use memprof_profile::{Amounts, FrameFilter, Report};
use memprof_sys::text::printable;

pub(super) const FORMAT: Exporter = Exporter {
    name: "heaptrack",
    about: "for heaptrack_print: the sampled allocations of --heap, and nothing else",
    extension: "heaptrack",
    content_type: "text/plain; charset=utf-8",
    supports: Supports {
        instead: "heaptrack's format holds allocations alone.",
        ..Supports::NOTHING
    },
    usual_frames: Some(FrameFilter::All),
    has_addresses: false,
    write,
};

/// Approximate maximum number of events in a file. Each stack has at least one event.
const EVENTS: u64 = 200_000;

/// Bytes of a stack's allocations: temporary, freed later, live. Then the numbers of these allocations.
fn parts(amounts: &Amounts) -> [u64; 6] {
    let of = |all, live, temporary| {
        let (live, temporary) = (amounts.column(live), amounts.column(temporary));
        let others = live.saturating_add(temporary);
        [temporary, amounts.column(all).saturating_sub(others), live]
    };
    let [a, b, c] = of(ALLOC_SPACE, INUSE_SPACE, TEMPORARY_SPACE);
    let [d, e, f] = of(ALLOC_OBJECTS, INUSE_OBJECTS, TEMPORARY_OBJECTS);
    [a, b, c, d, e, f]
}

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let profile = &report.profile;
    let naming = Naming {
        merge: Merge::Function,
        inlined: !options.no_inline,
    };
    let paths = Paths::columns(report.side(), Direction::OutermostFirst, naming, parts);
    let objects: u64 = paths.total()[3..].iter().sum();
    let each = objects.div_ceil(EVENTS).max(1);
    let target = &profile.target;
    let sampled = profile
        .measures
        .iter()
        .any(|m| m.name == memprof_profile::measure::HEAP.name);
    let about = match sampled {
        true => format!(
            "{} by memprof: each call here stands for {each} calls",
            match profile.is_heap_exact() {
                true => "every call counted",
                false => "estimated",
            }
        ),
        false => "allocations were not sampled: start memprof with --heap".to_owned(),
    };
    writeln!(out, "v 10400 2")?;
    writeln!(
        out,
        "X {} (pid {}), {about}",
        printable(&target.comm),
        target.pid
    )?;
    let page = memprof_sys::residency::page_size();
    writeln!(out, "I {page:x} 0")?;
    let mut events = Events::default();
    // Number 0 stays unused, because heaptrack mistakes it for the last event before any event exists.
    writeln!(out, "t 0 0\na 0 1")?;
    let labels = paths.labels().all();
    let mut traces = Traces::new();
    for (steps, figures) in paths.iter() {
        let mut trace = 0;
        for step in steps {
            trace = traces.below(trace, *step, labels, out)?;
        }
        let lists = [&mut events.temporary, &mut events.later, &mut events.live];
        for (part, list) in lists.into_iter().enumerate() {
            split((figures[part], figures[part + 3]), each, |size, count| {
                let numbers = [(); 2].map(|()| traces.allocation(size, trace, out));
                let [one, other] = numbers;
                list.push(([one?, other?], count));
                Ok(())
            })?;
        }
    }
    events.write(out)?;
    let kernel = &profile.kernel_after;
    let rss = kernel.rss_anon + kernel.rss_shmem + kernel.rss_file;
    writeln!(out, "R {:x}", rss / page)?;
    writeln!(out, "c {:x}", profile.observed.as_millis())
}

/// Splits a stack's bytes into events, and calls `with` with each size and the number of its events.
fn split(
    (bytes, objects): (u64, u64),
    each: u64,
    mut with: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let count = objects.div_ceil(each).clamp(1, bytes);
    let (size, larger) = (bytes / count, bytes % count);
    if larger > 0 {
        with(size + 1, larger)?;
    }
    with(size, count - larger)
}

/// Allocations, each with the number of its repetitions. Each has two numbers, which alternate: heaptrack interprets a free
/// of the number that was allocated last as a temporary allocation.
#[derive(Default)]
struct Events {
    temporary: Vec<([u64; 2], u64)>,
    later: Vec<([u64; 2], u64)>,
    live: Vec<([u64; 2], u64)>,
}

impl Events {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let each = |of: &[([u64; 2], u64)]| -> Vec<u64> {
            let repeated = of.iter().flat_map(|&(numbers, count)| {
                (0..count as usize).map(move |time| numbers[time % 2])
            });
            repeated.collect()
        };
        for info in each(&self.temporary) {
            writeln!(out, "+ {info:x}\n- {info:x}")?;
        }
        // Each is freed after the next allocation, so that heaptrack does not count it as temporary.
        let mut last = None;
        for info in each(&self.later) {
            writeln!(out, "+ {info:x}")?;
            if let Some(last) = last.replace(info) {
                writeln!(out, "- {last:x}")?;
            }
        }
        if let Some(last) = last {
            writeln!(out, "- {last:x}")?;
        }
        for info in each(&self.live) {
            writeln!(out, "+ {info:x}")?;
        }
        Ok(())
    }
}

/// The entries written so far, by their number in the file. Numbers begin with 1.
struct Traces {
    strings: HashMap<String, u64>,
    frames: HashMap<u32, u64>,
    traces: HashMap<(u64, u64), u64>,
    allocations: u64,
}

impl Traces {
    fn new() -> Traces {
        Traces {
            strings: HashMap::new(),
            frames: HashMap::new(),
            // A trace that stays unused.
            traces: HashMap::from([((0, 0), 1)]),
            allocations: 0,
        }
    }

    fn string(&mut self, text: &str, out: &mut dyn Write) -> io::Result<u64> {
        if let Some(known) = self.strings.get(text) {
            return Ok(*known);
        }
        writeln!(out, "s {}", printable(text))?;
        let number = self.strings.len() as u64 + 1;
        self.strings.insert(text.to_owned(), number);
        Ok(number)
    }

    fn frame(&mut self, step: u32, label: &Label<'_>, out: &mut dyn Write) -> io::Result<u64> {
        if let Some(known) = self.frames.get(&step) {
            return Ok(*known);
        }
        let number = self.frames.len() as u64 + 1;
        let (name, file) = match label {
            Label::Code(code) => (code.by_name().to_string(), code.file),
            other => (other.to_string(), ""),
        };
        let file = match file {
            "" => 0,
            file => self.string(file, out)?,
        };
        let name = self.string(&name, out)?;
        // 0 in place of an address, because the frames of a function have different addresses.
        writeln!(out, "i {number:x} {file:x} {name:x} 0 0")?;
        self.frames.insert(step, number);
        Ok(number)
    }

    /// The trace with this label as its innermost frame, called by trace `caller`.
    fn below(
        &mut self,
        caller: u64,
        step: u32,
        labels: &[Label<'_>],
        out: &mut dyn Write,
    ) -> io::Result<u64> {
        let frame = self.frame(step, &labels[step as usize], out)?;
        let next = self.traces.len() as u64 + 1;
        if let Some(known) = self.traces.get(&(frame, caller)) {
            return Ok(*known);
        }
        writeln!(out, "t {frame:x} {caller:x}")?;
        self.traces.insert((frame, caller), next);
        Ok(next)
    }

    fn allocation(&mut self, size: u64, trace: u64, out: &mut dyn Write) -> io::Result<u64> {
        writeln!(out, "a {size:x} {trace:x}")?;
        self.allocations += 1;
        Ok(self.allocations)
    }
}
