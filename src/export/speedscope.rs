//! speedscope's own JSON: one sampled profile for each kind of memory that is not zero, with weights in bytes.
//!
//! Stacks have the outermost function first, as the format requires. Memory without a stack is in stacks of one frame,
//! `[before attach: MAPPING]`. The format has no field for losses and estimates. If there are any, the name of the profile
//! mentions them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::Unit;
use memprof_profile::tree::{Label, Merge, frame_label};
use memprof_profile::{Amounts, Frame, FrameFilter, Kind, PartialReason, Profile, Report, Stack};
use memprof_sys::text::printable;

pub(super) const FORMAT: Exporter = Exporter {
    name: "speedscope",
    about: "for speedscope, one profile for each kind of memory",
    extension: "speedscope.json",
    content_type: "application/json",
    supports: Supports {
        kind: true,
        instead: "speedscope's sandwich view shows callers and callees; its weights cannot be \
                  negative, so export both states instead of a difference.",
        ..Supports::NOTHING
    },
    usual_frames: Some(FrameFilter::All),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let table = Table::new(report);
    let total = &report.profile.total;
    let kinds: Vec<Kind> = match options.kind {
        Kind::All => Kind::ALL
            .into_iter()
            .filter(|k| k.figure(total) > 0)
            .collect(),
        one => vec![one],
    };
    // Readers reject a file without a profile.
    let kinds = if kinds.is_empty() {
        vec![Kind::All]
    } else {
        kinds
    };
    let profiles = kinds.into_iter().map(|kind| Sampled::new(&table, kind));
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("memprof@", env!("CARGO_PKG_VERSION")),
        name: name(&report.profile),
        active_profile_index: 0,
        shared: Shared {
            frames: &table.frames,
        },
        profiles: profiles.collect(),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn name(profile: &Profile) -> String {
    let target = &profile.target;
    let mut name = format!("{} (pid {})", printable(&target.comm), target.pid);
    if let Some(estimates) = profile.estimates() {
        name += &format!(", {estimates}");
    }
    for (what, count) in profile.losses.lost() {
        name += &format!(", lost: {count} {what}");
    }
    name
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a, P> {
    #[serde(rename = "$schema")]
    schema: &'a str,
    exporter: &'a str,
    name: String,
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<P>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [Named<'a>],
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
struct Named<'a> {
    name: String,
    /// The file that contains the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

impl<'a> From<Label<'a>> for Named<'a> {
    fn from(label: Label<'a>) -> Named<'a> {
        let (label, file) = match label {
            Label::Code(code) => (code.by_name(), Some(code.file)),
            other => (other, None),
        };
        let name = label.to_string();
        Named { name, file }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'a, S, W> {
    #[serde(rename = "type")]
    shape: &'a str,
    name: Cow<'static, str>,
    unit: &'a str,
    start_value: u64,
    end_value: u64,
    /// The stacks with a figure of this kind, as indices of frames.
    samples: S,
    /// The figures of the same stacks.
    weights: W,
}

impl<'a> Sampled<'a, (), ()> {
    fn new(
        table: &'a Table<'a>,
        kind: Kind,
    ) -> Sampled<'a, impl Serialize + 'a, impl Serialize + 'a> {
        Sampled {
            shape: "sampled",
            name: table.profile.label(kind),
            // The format has no unit for counts.
            unit: match kind.unit() {
                Unit::Bytes => "bytes",
                Unit::Objects => "none",
            },
            start_value: 0,
            end_value: kind.figure(&table.profile.total),
            samples: Seq(move || table.rows(kind).map(|(stack, _)| stack)),
            weights: Seq(move || table.rows(kind).map(|(_, bytes)| bytes)),
        }
    }
}

/// A list whose items are generated one by one during serialization.
struct Seq<F>(F);

impl<F, I> Serialize for Seq<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq((self.0)())
    }
}

/// All distinct frames with their numbers.
struct Table<'a> {
    profile: &'a Profile,
    frames: Vec<Named<'a>>,
    by_frame: HashMap<Frame, usize>,
    no_stack: usize,
    /// The frames that represent the missing callers of cut-off stacks.
    cut_off: HashMap<PartialReason, usize>,
    /// Number of the first frame for memory without a stack; the others follow.
    not_observed: usize,
}

impl<'a> Table<'a> {
    fn new(report: &'a Report) -> Table<'a> {
        let profile = &*report.profile;
        let (mut frames, mut by_frame, mut numbers) = (Vec::new(), HashMap::new(), HashMap::new());
        let stacks = profile.samples.iter();
        for frame in stacks.flat_map(|s| s.stack.frames.iter().copied()) {
            by_frame.entry(frame).or_insert_with(|| {
                let named = Named::from(frame_label(report.side(), frame, Merge::Site));
                *numbers.entry(named.clone()).or_insert_with(|| {
                    frames.push(named);
                    frames.len() - 1
                })
            });
        }
        let no_stack = frames.len();
        frames.push(Label::NoStack.into());
        let mut cut_off = HashMap::new();
        let reasons = profile.samples.iter();
        for reason in reasons.filter_map(|s| s.stack.outcome.cut_off()) {
            cut_off.entry(reason).or_insert_with(|| {
                frames.push(Label::CutOff(reason).into());
                frames.len() - 1
            });
        }
        let not_observed = frames.len();
        let rows = profile.not_observed.iter();
        frames.extend(rows.map(|row| Label::NotObserved(&row.mapping, row.reason).into()));
        Table {
            profile,
            frames,
            by_frame,
            no_stack,
            cut_off,
            not_observed,
        }
    }

    /// The rows with nonzero figures of this kind, each with its figure.
    fn rows(&self, kind: Kind) -> impl Iterator<Item = (SampleStack<'_>, u64)> {
        let samples = self.profile.samples.iter();
        let stacks = samples.map(|s| (SampleStack::Stack(self, &s.stack), &s.amounts));
        let rows = self.profile.not_observed.iter().enumerate();
        let rest = rows.map(|(n, row)| (SampleStack::Pseudo(self.not_observed + n), &row.amounts));
        let all: Box<dyn Iterator<Item = (SampleStack<'_>, &Amounts)>> =
            Box::new(stacks.chain(rest));
        all.map(move |(row, amounts)| (row, kind.figure(amounts)))
            .filter(|(_, bytes)| *bytes > 0)
    }
}

enum SampleStack<'a> {
    Stack(&'a Table<'a>, &'a Stack),
    Pseudo(usize),
}

impl Serialize for SampleStack<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            SampleStack::Stack(table, stack) if stack.frames.is_empty() => {
                s.collect_seq([table.no_stack])
            }
            SampleStack::Stack(table, stack) => {
                let cut_off = stack.outcome.cut_off().map(|reason| table.cut_off[&reason]);
                let frames = stack.frames.iter().rev();
                s.collect_seq(cut_off.into_iter().chain(frames.map(|f| table.by_frame[f])))
            }
            SampleStack::Pseudo(number) => s.collect_seq([number]),
        }
    }
}
