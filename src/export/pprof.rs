//! pprof's gzip'd `profile.proto`, for `go tool pprof` and other tools that read it.
//!
//! A sample has three values in bytes, `resident_space`, `page_cache_space` and `swapped_space`, and one value for each
//! column of the other measures that were counted. For kernel memory, this is `approximate_kernel_space`; for the heap,
//! `inuse_space`, `inuse_objects`, `alloc_space`, `alloc_objects` and so on. Objects have pprof's unit `count`. pprof shows
//! the value of the requested kind, `resident_space` by default. A kind without one of these values gets its own value if
//! it is requested, for example `anon_space`.
//!
//! Memory without a stack is in a function `[before attach: MAPPING]` with the reason as a label. Stacks have a label with
//! their unwind outcome. Comments contain the target, the kernel's figures, losses, and the kinds of memory without a value
//! type. pprof shows comments above every table unless they begin with `#`, so all comments begin with `#` except those
//! about losses.
//!
//! Functions have no `system_name`. If it equals the name, pprof assumes that the name is mangled and removes `<…>` and
//! `(…)` from it, which merges different functions.
//!
//! Concatenated protobuf messages are merged into one message, so a profile is written in small parts and is never
//! completely in memory.

mod message;
mod strings;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use self::message as proto;
use self::strings::Strings;
use super::mappings::{Known, Mapping, Mappings};
use super::rows::{self, RowFrame};
use super::{ExportOptions, Exporter, Supports};
use memprof_profile::measure::Unit;
use memprof_profile::symbol::Location;
use memprof_profile::tree::{Label, Merge, frame_label};
use memprof_profile::{Amounts, Frame, FrameFilter, Kind, Profile, Report};
use memprof_sys::kernel_figures::KernelFigures;

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
    usual_frames: Some(FrameFilter::All),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let (values, first) = values_with(&report.profile, options.kind);
    let mut writer = Writer::new(report, values, first, Duration::ZERO, out);
    writer.tables.names_all = true;
    writer.write()
}

/// A value type of a sample: its name and its kind of figures.
pub(crate) type Value = (Cow<'static, str>, Kind);

/// The value types of a profile's samples: [`RESIDENT`], then the columns of other measures.
pub(crate) fn all_values(profile: &Profile) -> Vec<Value> {
    let columns = profile.columns();
    let columns = columns.map(|(kind, column)| (column.sample_type, kind));
    let all = RESIDENT.into_iter().chain(columns);
    all.map(|(name, kind)| (Cow::Borrowed(name), kind))
        .collect()
}

/// Writes a report with only these value types. If `lasted` is nonzero, the values count events within this time before the
/// report; otherwise they describe the moment of the report.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write_values(
    report: &Report,
    values: Vec<Value>,
    lasted: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    Writer::new(report, values, 0, lasted, out).write()
}

/// The value types including that of the requested kind, and the latter's index.
fn values_with(profile: &Profile, asked: Kind) -> (Vec<Value>, usize) {
    let mut values = all_values(profile);
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
    (values, first)
}

struct Writer<'a, W: Write> {
    out: GzEncoder<W>,
    report: &'a Report,
    /// The value types of every sample.
    values: Vec<Value>,
    /// The value type that readers show by default.
    first: usize,
    lasted: Duration,
    mappings: Mappings,
    tables: Tables<'a>,
}

/// The tables to which samples refer by number.
struct Tables<'a> {
    report: &'a Report,
    /// Whether code without a symbol gets a substitute name. Without one, pprof requests names from the server of the
    /// profile. Stores look up names by build id, but only for locations without a name.
    names_all: bool,
    strings: Strings,
    locations: HashMap<Frame, u64>,
    pseudo: HashMap<String, u64>,
    functions: HashMap<(i64, i64), u64>,
    last_location: u64,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(
        report: &'a Report,
        values: Vec<Value>,
        first: usize,
        lasted: Duration,
        out: W,
    ) -> Writer<'a, W> {
        Writer {
            out: GzEncoder::new(out, Compression::default()),
            report,
            values,
            first,
            lasted,
            mappings: Mappings::new(&report.profile, &report.symbols),
            tables: Tables {
                report,
                names_all: false,
                strings: Strings::default(),
                locations: HashMap::new(),
                pseudo: HashMap::new(),
                functions: HashMap::new(),
                last_location: 0,
            },
        }
    }

    fn write(mut self) -> io::Result<()> {
        let head = self.head(&self.report.profile);
        self.tables.write(head, &mut self.out)?;
        for row in rows::rows(&self.report.profile, &self.mappings) {
            let Some(value) = values(row.amounts, &self.values) else {
                continue;
            };
            let mut part = proto::Profile::default();
            let places = row.places.iter();
            let location_id = places
                .map(|place| self.tables.location(place, &mut part))
                .collect();
            let (key, text) = row.about;
            let label = vec![proto::Label {
                key: self.tables.strings.number(key),
                str: self.tables.strings.number(text),
            }];
            part.sample.push(proto::Sample {
                location_id,
                value,
                label,
            });
            self.tables.write(part, &mut self.out)?;
        }
        self.out.finish()?;
        Ok(())
    }

    fn head(&mut self, profile: &Profile) -> proto::Profile {
        let strings = &mut self.tables.strings;
        let bytes = strings.number(Unit::Bytes.name());
        let sample_type = self.values.iter().map(|(name, kind)| proto::ValueType {
            r#type: strings.number(name),
            unit: strings.number(kind.unit().pprof()),
        });
        let sample_type: Vec<_> = sample_type.collect();
        let taken = profile.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        let comments = comments(profile, &self.values);
        let mappings = self.mappings.files().into_iter();
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        proto::Profile {
            default_sample_type: sample_type[self.first].r#type,
            period_type: Some(proto::ValueType {
                r#type: strings.number("space"),
                unit: bytes,
            }),
            period: 1,
            sample_type,
            time_nanos: nanos(taken.saturating_sub(self.lasted)),
            duration_nanos: nanos(self.lasted),
            comment: comments.iter().map(|c| strings.number(c)).collect(),
            mapping: mappings.map(|m| mapping(m, strings)).collect(),
            ..proto::Profile::default()
        }
    }
}

impl Tables<'_> {
    /// Writes a part together with its new strings.
    fn write(&mut self, mut part: proto::Profile, out: &mut impl Write) -> io::Result<()> {
        part.string_table = self.strings.take_new();
        out.write_all(&part.encode_to_vec())
    }

    /// The location id of a frame. A new location is added to the part.
    fn location(&mut self, place: &RowFrame<'_>, part: &mut proto::Profile) -> u64 {
        let (frame, mapping_id, address) = match *place {
            RowFrame::Pseudo(label) => return self.pseudo(label, part),
            RowFrame::Code(frame, mapping, address) => (frame, mapping, address),
        };
        if let Some(id) = self.locations.get(&frame) {
            return *id;
        }
        let functions = rows::functions(&self.report.symbols, frame).into_iter();
        let line = functions.map(|(name, location)| self.line(name, location, part));
        let mut line: Vec<_> = line.collect();
        if line.is_empty() && self.names_all {
            let unnamed = frame_label(self.report.side(), frame, Merge::Function).to_string();
            line.push(self.line(&unnamed, None, part));
        }
        let id = self.push(part, mapping_id, address, line);
        self.locations.insert(frame, id);
        id
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
                filename,
            });
            next
        });
        let line = location.and_then(|l| l.line).map_or(0, i64::from);
        proto::Line { function_id, line }
    }
}

fn mapping(file: &Mapping, strings: &mut Strings) -> proto::Mapping {
    let Known {
        functions,
        files,
        lines,
        inlined,
    } = file.known;
    proto::Mapping {
        id: file.number,
        memory_start: 0,
        memory_limit: u64::MAX,
        file_offset: 0,
        filename: strings.number(&file.module.path.to_string_lossy()),
        build_id: strings.number(&file.build_id),
        has_functions: functions,
        has_filenames: files,
        has_line_numbers: lines,
        has_inline_frames: inlined,
    }
}

/// The values of a sample; `None` if all are zero.
fn values(amounts: &Amounts, values: &[Value]) -> Option<Vec<i64>> {
    let value = values.iter().map(|(_, kind)| kind.figure(amounts));
    let value: Vec<i64> = value
        .map(|v| i64::try_from(v).unwrap_or(i64::MAX))
        .collect();
    value.iter().any(|figure| *figure > 0).then_some(value)
}

fn comments(profile: &Profile, values: &[Value]) -> Vec<String> {
    let target = &profile.target;
    let ended = if target.alive { "" } else { ", ended" };
    let mut lines = vec![
        concat!("memprof ", env!("CARGO_PKG_VERSION")).to_owned(),
        format!("target: {} (pid {}{ended})", target.comm, target.pid),
        kernel("before", &profile.kernel_before),
        kernel("after", &profile.kernel_after),
    ];
    if let Some(peak) = profile.peak {
        let kernel = peak.high_water.map(|bytes| format!(" kernel {bytes}"));
        let kernel = kernel.unwrap_or_default();
        lines.push(format!(
            "peak so far, in bytes: resident {}{kernel}",
            peak.rss
        ));
    }
    for kind in [Kind::File, Kind::Hugetlb] {
        let bytes = kind.figure(&profile.total);
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
            let total = kind.figure(&profile.total);
            lines.push(format!(
                "estimated from samples: {name} {total} {unit}, standard error {error}"
            ));
        }
    }
    if profile.is_heap_exact() {
        lines.push("heap: every call counted, no estimates".to_owned());
    }
    let not_counted = profile.losses.not_counted();
    lines.extend(not_counted.map(|(what, count)| format!("not counted: {count} {what}")));
    let mut lines: Vec<_> = lines.iter().map(|line| format!("# {line}")).collect();
    let lost = profile.losses.lost();
    lines.extend(lost.map(|(what, count)| format!("lost: {count} {what}")));
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
