//! memprof's own format: a complete report as JSON.
//!
//! Bytes, file offsets and counts are numbers. A stack is a list of indices into `frames`, innermost first. Stacks are
//! written one by one. The schema has a number, `version`, which increases when readers of the previous version would
//! misread the new one. [`saved`] reads the format back without loss.

mod parts;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use self::parts::{Each, Ended, Files, NotObserved, OtherStacks, Processes, StackNumbers};
use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::Measure;
use memprof_profile::symbol::{Function, Location, Symbol, Symbols};
use memprof_profile::{
    self as profile, Amounts, Frame, FrameKind, Kind, Origin, Profile, Report, TargetInfo, saved,
};
use memprof_sys::kernel_figures::KernelFigures;

pub(super) const FORMAT: Exporter = Exporter {
    name: "profile",
    about: "the complete report, in bytes",
    extension: "memprof.json",
    content_type: "application/json",
    supports: Supports {
        instead: "It always contains the complete report.",
        ..Supports::NOTHING
    },
    wants_lines: true,
    keeps_all_frames: true,
    has_addresses: true,
    write,
};

fn write(report: &Report, _: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let profile = &*report.profile;
    let places = Places::new(profile);
    let stacks = StackNumbers::new(profile);
    let taken = profile.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
    let whole = Whole {
        format: "memprof profile",
        version: saved::VERSION,
        report: report.sequence,
        taken_unix_ms: u64::try_from(taken.as_millis()).unwrap_or(u64::MAX),
        taken_ns: taken.subsec_nanos() % 1_000_000,
        followed_ms: u64::try_from(profile.observed.as_millis()).unwrap_or(u64::MAX),
        target: (&profile.target).into(),
        stopped_us: profile.freeze.lasted().map(|lasted| lasted.as_micros()),
        stopped_in_turn: profile.freeze.in_turn(),
        freeze_error: profile.freeze.failed(),
        freeze: (&profile.freeze).into(),
        measures: profile.measures.iter().map(|m| m.name).collect(),
        counted: Counted(profile),
        faults: profile.faults.map(Faults::from),
        total: Bytes(&profile.total),
        kernel_before: Kernel(&profile.kernel_before),
        kernel_after: Kernel(&profile.kernel_after),
        losses: Losses(profile),
        oom_kills: saved::OomKills::from_kills(&profile.oom_kills),
        cgroup: profile.cgroup.as_deref().map(Into::into),
        ended: Ended::from_ended(&profile.ended),
        names_advice: report.symbols.advice(),
        modules: Modules(profile),
        frames: FrameWriter {
            places: &places,
            symbols: &report.symbols,
        },
        stacks: Stacks {
            places: &places,
            profile,
        },
        not_observed: NotObserved(&profile.not_observed),
        uncertainties: Each(&profile.uncertainties),
        other_stacks: OtherStacks {
            places: &places,
            stacks: &stacks,
        },
        processes: Processes {
            stacks: &stacks,
            profile,
        },
        mappings: Each(&profile.places.mappings),
        files: Files {
            stacks: &stacks,
            profile,
        },
        other_files: profile.places.other_files,
    };
    serde_json::to_writer(&mut *out, &whole)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole<'a> {
    format: &'a str,
    version: u32,
    report: u64,
    taken_unix_ms: u64,
    /// Nanoseconds after `taken_unix_ms`.
    taken_ns: u32,
    followed_ms: u64,
    target: Target<'a>,
    stopped_us: Option<u128>,
    stopped_in_turn: bool,
    freeze_error: Option<&'a str>,
    freeze: saved::Freeze,
    measures: Vec<&'a str>,
    #[serde(flatten)]
    counted: Counted<'a>,
    /// If the stacks of some faults were not unwound, bytes by stack are estimates. `null` if faults had no hook.
    faults: Option<Faults>,
    total: Bytes<'a>,
    kernel_before: Kernel<'a>,
    kernel_after: Kernel<'a>,
    losses: Losses<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_kills: Option<saved::OomKills>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<saved::Cgroup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Ended<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    names_advice: Option<&'a str>,
    modules: Modules<'a>,
    frames: FrameWriter<'a>,
    stacks: Stacks<'a>,
    not_observed: NotObserved<'a>,
    /// The errors of `stacks`.
    uncertainties: Each<'a, profile::Uncertainty>,
    /// Stacks that occur only in `processes` or `files`, numbered after those in `stacks`.
    other_stacks: OtherStacks<'a>,
    processes: Processes<'a>,
    mappings: Each<'a, profile::Mapping>,
    files: Files<'a>,
    other_files: u64,
}

/// Page faults, all and without an unwound stack.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Faults {
    /// Number of page faults.
    all: u64,
    /// Number of page faults whose stack was not walked.
    unwalked: u64,
}

impl From<profile::Faults> for Faults {
    fn from(faults: profile::Faults) -> Faults {
        let profile::Faults { all, unwalked } = faults;
        Faults { all, unwalked }
    }
}

/// The target.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Target<'a> {
    /// Process id.
    pid: u32,
    /// Name, /proc/PID/comm.
    comm: &'a str,
    /// All followed processes; the first is `pid`.
    pids: Vec<u32>,
    /// Whether the target has not ended.
    alive: bool,
}

impl<'a> From<&'a TargetInfo> for Target<'a> {
    fn from(target: &'a TargetInfo) -> Target<'a> {
        Target {
            pid: target.pid.0,
            comm: &target.comm,
            pids: target.pids.iter().map(|pid| pid.0).collect(),
            alive: target.alive,
        }
    }
}

/// Whether each optional measure was counted, as fields `NAMECounted`.
struct Counted<'a>(&'a Profile);

impl Serialize for Counted<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let field =
            |(measure, counted): (&Measure, bool)| (format!("{}Counted", measure.name), counted);
        s.collect_map(self.0.optional_measures().map(field))
    }
}

/// Figures by kind; the keys are the names of [`Kind`].
struct Bytes<'a>(&'a Amounts);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let stated = Kind::single().filter(|kind| kind.stated(self.0));
        s.collect_map(stated.map(|kind| (kind.name(), kind.figure(self.0))))
    }
}

struct Kernel<'a>(&'a KernelFigures);

impl Serialize for Kernel<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let figures = [
            ("anonymous", self.0.anonymous),
            ("rssAnon", Some(self.0.rss_anon)),
            ("rssShmem", Some(self.0.rss_shmem)),
            ("rssFile", Some(self.0.rss_file)),
            ("swap", Some(self.0.swap)),
            ("pageTables", Some(self.0.page_tables)),
        ];
        s.collect_map(
            figures
                .iter()
                .filter_map(|(name, bytes)| Some((name, (*bytes)?))),
        )
    }
}

struct Losses<'a>(&'a Profile);

impl Serialize for Losses<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let counters = self.0.losses.counters.iter();
        s.collect_map(counters.map(|(what, count)| (&**what, count)))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Module<'a> {
    name: &'a str,
    path: std::borrow::Cow<'a, str>,
    own_executable: bool,
    /// The language of a source file of an interpreted program.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    /// The language of a source file whose functions are JIT code.
    #[serde(skip_serializing_if = "Option::is_none")]
    made_at_run_time: Option<&'static str>,
    /// `null` if the file could not be read.
    layout: Option<saved::Layout>,
}

struct Modules<'a>(&'a Profile);

impl Serialize for Modules<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.modules.iter().map(|m| Module {
            name: &m.name,
            path: Path::to_string_lossy(&m.path),
            own_executable: m.own_executable,
            source: m.language_from(Origin::Interpreter),
            made_at_run_time: m.language_from(Origin::Runtime),
            layout: memprof_code::layout::of_module(m).map(|layout| (&*layout).into()),
        }))
    }
}

/// All distinct frames, numbered in order of first appearance.
struct Places {
    frames: Vec<Frame>,
    numbers: HashMap<Frame, usize>,
}

impl Places {
    fn new(profile: &Profile) -> Places {
        let (mut frames, mut numbers) = (Vec::new(), HashMap::new());
        let stacks = profile.all_samples();
        for frame in stacks.flat_map(|s| s.stack.frames.iter().copied()) {
            numbers.entry(frame).or_insert_with(|| {
                frames.push(frame);
                frames.len() - 1
            });
        }
        Places { frames, numbers }
    }
}

/// A frame: code in a file, or an address.
#[derive(Serialize)]
#[serde(untagged)]
enum SavedFrame<'a> {
    Code {
        module: u16,
        offset: u64,
        #[serde(flatten)]
        symbol: Named<'a>,
    },
    Unmapped {
        address: u64,
    },
}

/// The name of a frame, or the reason why it has none.
#[derive(Serialize)]
#[serde(untagged)]
enum Named<'a> {
    #[serde(rename_all = "camelCase")]
    Known {
        function: &'a str,
        language: &'a str,
        offset_in_function: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        first_line: Option<u32>,
        #[serde(flatten)]
        source: Source<'a>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        inlined: Vec<Inlined<'a>>,
    },
    #[serde(rename_all = "camelCase")]
    Unnamed {
        unnamed: &'a str,
        offset_in_function: u64,
    },
    #[serde(rename_all = "camelCase")]
    Unknown { no_name: String },
}

#[derive(Serialize)]
struct Inlined<'a> {
    function: &'a str,
    #[serde(flatten)]
    source: Source<'a>,
}

#[derive(Serialize)]
struct Source<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl<'a> Source<'a> {
    fn from_location(location: Option<&'a Location>) -> Source<'a> {
        Source {
            file: location.map(|l| l.file.as_str()),
            line: location.and_then(|l| l.line),
        }
    }
}

impl<'a> Named<'a> {
    fn from_symbol(symbol: Option<&'a Symbol>) -> Named<'a> {
        match symbol {
            Some(Symbol::Known(function)) => Named::known(function),
            Some(Symbol::Unnamed(function)) => Named::Unnamed {
                unnamed: &function.name,
                offset_in_function: function.offset_in_function,
            },
            Some(Symbol::Unknown(why)) => Named::Unknown {
                no_name: why.to_string(),
            },
            None => Named::Unknown {
                no_name: saved::NOT_LOOKED_UP.to_owned(),
            },
        }
    }

    /// Names are complete, including Rust's hashes, because saved profiles are read back.
    fn known(function: &'a Function) -> Named<'a> {
        let inlined = function.inlined.iter().map(|f| Inlined {
            function: &f.name,
            source: Source::from_location(f.location.as_ref()),
        });
        Named::Known {
            function: &function.name,
            language: function.language.name(),
            offset_in_function: function.offset_in_function,
            first_line: function.first_line,
            source: Source::from_location(function.location.as_ref()),
            inlined: inlined.collect(),
        }
    }
}

struct FrameWriter<'a> {
    places: &'a Places,
    symbols: &'a Symbols,
}

impl Serialize for FrameWriter<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.places.frames.iter().map(|frame| match frame.kind() {
            FrameKind::Code(module, offset) => SavedFrame::Code {
                module: module.0,
                offset,
                symbol: Named::from_symbol(self.symbols.get(*frame)),
            },
            FrameKind::Unmapped(address) => SavedFrame::Unmapped { address },
        }))
    }
}

#[derive(Serialize)]
struct Stack<'a> {
    bytes: Bytes<'a>,
    outcome: &'a str,
    frames: Numbers<'a>,
}

struct Numbers<'a>(&'a Places, &'a [Frame]);

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.1.iter().map(|frame| self.0.numbers[frame]))
    }
}

struct Stacks<'a> {
    places: &'a Places,
    profile: &'a Profile,
}

impl Serialize for Stacks<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.profile.samples.iter().map(|sample| Stack {
            bytes: Bytes(&sample.amounts),
            outcome: sample.stack.outcome.label(),
            frames: Numbers(self.places, &sample.stack.frames),
        }))
    }
}
#[cfg(test)]
mod tests;
