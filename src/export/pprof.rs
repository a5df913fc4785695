//! pprof's gzip'd `profile.proto`, for `go tool pprof` and other tools that read it.
//!
//! A sample has three values, `resident_space`, `page_cache_space` and `swapped_space`, all in bytes, and one for
//! each column of the other measures that were counted: `approximate_kernel_space` for kernel memory, `inuse_space`,
//! `inuse_objects`, `alloc_space`, `alloc_objects` and so on for the heap; objects have pprof's unit `count`. pprof
//! shows the value of the kind that was asked for, `resident_space` by default. A kind without a value has one if it
//! is asked for, `anon_space` for example.
//! Memory without a stack is in a function `[before attach: MAPPING]` with the reason as a label. Stacks
//! have a label with their unwind outcome. Comments contain the target, the kernel's figures, losses, and
//! the kinds of memory without a value type.
//!
//! Concatenated protobuf messages are merged into one message, so a profile is written in small parts and
//! is never completely in memory.

mod mappings;
mod message;
mod strings;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use self::mappings::Mappings;
use self::message as proto;
use self::strings::Strings;
use super::{ExportOptions, Exporter, Report, Supports};
use crate::measure::Unit;
use crate::profile::{Amounts, Frame, FrameKind, KernelFigures, Kind, Profile};
use crate::symbol::{Location, Symbols};
use crate::tree::Label;

/// The value types of resident bytes; the first one is the default.
const RESIDENT: [(&str, Kind); 3] = [
    ("resident_space", Kind::Resident),
    ("page_cache_space", Kind::Cache),
    ("swapped_space", Kind::Swap),
];
const NO_MAPPING: u64 = 0;

pub(super) const FORMAT: Exporter = Exporter {
    name: "pprof",
    about: "for go tool pprof and other readers of profile.proto",
    extension: "pb.gz",
    content_type: "application/octet-stream",
    supports: Supports {
        kind: true,
        instead: "For a difference, write two files and give pprof the earlier one with -base or \
                  -diff_base; its -focus and -peek show callers and callees.",
        ..Supports::NOTHING
    },
    wants_lines: true,
    keeps_all_frames: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let out = GzEncoder::new(out, Compression::default());
    let mut writer = Writer::new(report, options.kind, out);
    writer.write_head(&report.profile)?;
    writer.write_samples(&report.profile)?;
    writer.out.finish()?;
    Ok(())
}

struct Writer<'a, W: Write> {
    out: GzEncoder<W>,
    symbols: &'a Symbols,
    /// The value types of every sample: [`RESIDENT`], then the columns of other measures, then the kind that was asked
    /// for if it is none of these.
    values: Vec<(Cow<'static, str>, Kind)>,
    /// The value type that readers show by default.
    first: usize,
    mappings: Mappings,
    strings: Strings,
    locations: HashMap<Frame, u64>,
    pseudo: HashMap<String, u64>,
    functions: HashMap<(i64, i64), u64>,
    last_location: u64,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(report: &'a Report, asked: Kind, out: GzEncoder<W>) -> Writer<'a, W> {
        let columns = report.profile.columns();
        let columns = columns.map(|(kind, column)| (column.sample_type, kind));
        let known = RESIDENT.into_iter().chain(columns);
        let mut values: Vec<_> = known
            .map(|(name, kind)| (Cow::Borrowed(name), kind))
            .collect();
        let known = values.iter().position(|(_, kind)| *kind == asked);
        let first = match known {
            Some(at) => at,
            None if asked == Kind::All => 0,
            None => {
                let name = match asked {
                    Kind::Column(id) => id.column().sample_type.into(),
                    pages => format!("{}_space", pages.name()).into(),
                };
                values.push((name, asked));
                values.len() - 1
            }
        };
        Writer {
            out,
            symbols: &report.symbols,
            values,
            first,
            mappings: Mappings::new(&report.profile, &report.symbols),
            strings: Strings::default(),
            locations: HashMap::new(),
            pseudo: HashMap::new(),
            functions: HashMap::new(),
            last_location: 0,
        }
    }

    /// Writes a part together with its new strings.
    fn write(&mut self, mut part: proto::Profile) -> io::Result<()> {
        part.string_table = self.strings.take_new();
        self.out.write_all(&part.encode_to_vec())
    }

    fn write_head(&mut self, profile: &Profile) -> io::Result<()> {
        let bytes = self.strings.number(Unit::Bytes.name());
        let sample_type = self.values.iter().map(|(name, kind)| proto::ValueType {
            r#type: self.strings.number(name),
            unit: self.strings.number(kind.unit().pprof()),
        });
        let sample_type: Vec<_> = sample_type.collect();
        let taken = profile.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        let comments = comments(profile, &self.values);
        let part = proto::Profile {
            default_sample_type: sample_type[self.first].r#type,
            period_type: Some(proto::ValueType {
                r#type: self.strings.number("space"),
                unit: bytes,
            }),
            period: 1,
            sample_type,
            time_nanos: i64::try_from(taken.as_nanos()).unwrap_or(i64::MAX),
            comment: comments.iter().map(|c| self.strings.number(c)).collect(),
            mapping: self.mappings.messages(&mut self.strings),
            ..proto::Profile::default()
        };
        self.write(part)
    }

    fn write_samples(&mut self, profile: &Profile) -> io::Result<()> {
        for sample in &profile.samples {
            let Some(value) = values(&sample.amounts, &self.values) else {
                continue;
            };
            let mut part = proto::Profile::default();
            let frames = sample.stack.frames.iter();
            let mut location_id: Vec<u64> = frames.map(|f| self.location(*f, &mut part)).collect();
            match sample.stack.outcome.cut_off() {
                _ if location_id.is_empty() => {
                    location_id.push(self.pseudo(Label::NoStack, &mut part));
                }
                Some(reason) => location_id.push(self.pseudo(Label::CutOff(reason), &mut part)),
                None => {}
            }
            let label = self.label("outcome", sample.stack.outcome.label());
            part.sample.push(proto::Sample {
                location_id,
                value,
                label,
            });
            self.write(part)?;
        }
        for row in &profile.not_observed {
            let Some(value) = values(&row.amounts, &self.values) else {
                continue;
            };
            let mut part = proto::Profile::default();
            let location = self.pseudo(Label::NotObserved(&row.mapping, row.reason), &mut part);
            let label = self.label("reason", row.reason.label());
            part.sample.push(proto::Sample {
                location_id: vec![location],
                value,
                label,
            });
            self.write(part)?;
        }
        Ok(())
    }

    fn label(&mut self, key: &str, value: &str) -> Vec<proto::Label> {
        vec![proto::Label {
            key: self.strings.number(key),
            str: self.strings.number(value),
        }]
    }

    /// The location id of a frame; a new location is added to the part.
    fn location(&mut self, frame: Frame, part: &mut proto::Profile) -> u64 {
        if let Some(id) = self.locations.get(&frame) {
            return *id;
        }
        let place = match frame.kind() {
            FrameKind::Code(module, offset) => self.mappings.place(module, offset),
            FrameKind::Unmapped(_) => None,
        };
        let id = match place {
            None => self.pseudo(Label::Unmapped, part),
            Some((mapping_id, address)) => {
                let line = self.lines(frame, part);
                self.push(part, mapping_id, address, line)
            }
        };
        self.locations.insert(frame, id);
        id
    }

    /// The functions at a frame, innermost first: inlined ones, then the function that contains them.
    fn lines(&mut self, frame: Frame, part: &mut proto::Profile) -> Vec<proto::Line> {
        let Some(function) = self.symbols.function(frame) else {
            let unnamed = self.symbols.name(frame);
            return unnamed
                .iter()
                .map(|name| self.line(name, None, part))
                .collect();
        };
        let inlined = function.inlined.iter().map(|f| (&f.name, &f.location));
        inlined
            .chain([(&function.name, &function.location)])
            .map(|(name, location)| self.line(self.symbols.shown(name), location.as_ref(), part))
            .collect()
    }

    /// The location id of a label that is not code.
    fn pseudo(&mut self, label: Label<'_>, part: &mut proto::Profile) -> u64 {
        let name = label.to_string();
        if let Some(id) = self.pseudo.get(&name) {
            return *id;
        }
        let line = vec![self.line(&name, None, part)];
        let id = self.push(part, NO_MAPPING, 0, line);
        self.pseudo.insert(name, id);
        id
    }

    fn push(
        &mut self,
        part: &mut proto::Profile,
        mapping_id: u64,
        address: u64,
        line: Vec<proto::Line>,
    ) -> u64 {
        self.last_location += 1;
        part.location.push(proto::Location {
            id: self.last_location,
            mapping_id,
            address,
            line,
        });
        self.last_location
    }

    fn line(
        &mut self,
        name: &str,
        location: Option<&Location>,
        part: &mut proto::Profile,
    ) -> proto::Line {
        let name = self.strings.number(name);
        let filename = self.strings.number(location.map_or("", |l| &l.file));
        let next = self.functions.len() as u64 + 1;
        let function_id = *self.functions.entry((name, filename)).or_insert_with(|| {
            part.function.push(proto::Function {
                id: next,
                name,
                system_name: name,
                filename,
            });
            next
        });
        let line = location.and_then(|l| l.line).map_or(0, i64::from);
        proto::Line { function_id, line }
    }
}

/// A sample's values; `None` if all are zero.
fn values(amounts: &Amounts, values: &[(Cow<'_, str>, Kind)]) -> Option<Vec<i64>> {
    let value = values.iter().map(|(_, kind)| kind.of(amounts));
    let value: Vec<i64> = value
        .map(|v| i64::try_from(v).unwrap_or(i64::MAX))
        .collect();
    value.iter().any(|figure| *figure > 0).then_some(value)
}

fn comments(profile: &Profile, values: &[(Cow<'_, str>, Kind)]) -> Vec<String> {
    let target = &profile.target;
    let ended = if target.alive { "" } else { ", ended" };
    let mut lines = vec![
        concat!("memprof ", env!("CARGO_PKG_VERSION")).to_owned(),
        format!("target: {} (pid {}{ended})", target.comm, target.pid),
        kernel("before", &profile.kernel_before),
        kernel("after", &profile.kernel_after),
    ];
    for kind in [Kind::File, Kind::Hugetlb] {
        let bytes = kind.of(&profile.total);
        if bytes > 0 && values.iter().all(|(_, known)| *known != kind) {
            let name = kind.name();
            lines.push(format!(
                "without a value in this format: {name} {bytes} bytes"
            ));
        }
    }
    lines.extend(profile.estimates());
    for (kind, column) in profile.columns() {
        let error = profile.total_error(kind);
        if error > 0 {
            let (name, unit) = (column.sample_type, column.unit.name());
            let total = kind.of(&profile.total);
            lines.push(format!(
                "estimated from samples: {name} {total} {unit}, standard error {error}"
            ));
        }
    }
    if profile.is_heap_exact() {
        lines.push("heap: every call counted, no estimates".to_owned());
    }
    let lost = profile.losses.lost();
    lines.extend(lost.map(|(what, count)| format!("lost: {count} {what}")));
    let not_counted = profile.losses.not_counted();
    lines.extend(not_counted.map(|(what, count)| format!("not counted: {count} {what}")));
    lines
}

fn kernel(when: &str, figures: &KernelFigures) -> String {
    let anonymous = match figures.anonymous {
        Some(bytes) => bytes.to_string(),
        None => "(not read)".to_owned(),
    };
    format!(
        "kernel {when} the scan, in bytes: Anonymous {anonymous} RssAnon {} RssShmem {} RssFile {} VmSwap {} \
         VmPTE {}",
        figures.rss_anon, figures.rss_shmem, figures.rss_file, figures.swap, figures.page_tables
    )
}
