//! heaptrack's own format (version 2, text): the sampled allocations of `--heap`, for `heaptrack_print` and its window.
//!
//! heaptrack writes one event for each call; here are estimates of very many. So each event stands for as many calls as the
//! first line says, and the sizes of a stack's events add up to its bytes: those of temporary allocations (freed right after), those
//! that were freed later, and those that live, which heaptrack calls leaked. What lives is allocated last: the peak is now.
//! At the end are the RSS at the moment of the report, and how long memprof had followed the target by then.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY_OBJECTS, TEMPORARY_SPACE,
};
use memprof_profile::tree::{Direction, Label, Merge, Naming, Paths};
use memprof_profile::{Amounts, Report};
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
    wants_lines: false,
    keeps_all_frames: false,
    has_addresses: false,
    write,
};

/// About how many events a file has, at most, and at least one for each stack.
const EVENTS: u64 = 200_000;

/// Bytes of a stack's allocations: temporary ones, those freed later, and live ones. Then their numbers.
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

fn write(report: &Report, _: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let profile = &report.profile;
    let naming = Naming {
        merge: Merge::Function,
        inlined: false,
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
    // Number 0 is used for nothing: heaptrack takes it for the last event where there was none.
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

/// Sizes of a stack's events, each with their number.
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

/// Allocations, and how often each is made. Each has two numbers, which take turns: heaptrack takes a free of the number
/// that was last allocated for one right after its allocation.
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
        // Each is freed after the next one's allocation.
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

/// What was written, by its number in the file; numbers begin with 1.
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
            // One that is used for nothing.
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
        // Instead of an address, which frames of a function do not share.
        writeln!(out, "i {number:x} {file:x} {name:x} 0 0")?;
        self.frames.insert(step, number);
        Ok(number)
    }

    /// The trace whose innermost frame is this label, called by that of another trace.
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
