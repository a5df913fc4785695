//! Export formats. Each format is one file with an [`Exporter`] that describes it, and one line in the
//! registry.

mod cells;
mod clean;
mod csv;
mod folded;
mod functions;
mod heaptrack;
mod html;
pub mod json;
pub(crate) mod mappings;
mod names;
mod options;
pub(crate) mod pprof;
mod profile;
pub(crate) mod rows;
mod sizes;
mod speedscope;
mod summary;
mod svg;
mod text;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::profile::{Frames, Profile};
use crate::symbol::Symbols;

pub(crate) use clean::printable;
pub(crate) use folded::lines as folded_lines;
pub(crate) use html::write_heap_html;
pub use options::{ExportOptions, Supports, Unsupported};
pub(crate) use profile::{Faults, Target};
pub(crate) use sizes::write_sizes;
pub(crate) use summary::write_summary;

/// Bytes as lower-case hexadecimal digits.
pub(crate) use crate::saved::hex;

/// A profile with its symbols: the input of every view and every format.
#[derive(Clone, Debug)]
pub struct Report {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The names of its frames.
    pub symbols: Arc<Symbols>,
    /// Number of the report; two reports with the same number are the same report.
    pub sequence: u64,
}

impl Report {
    /// The same report with these frames of an interpreted program; as recorded, it has all of them.
    pub(crate) fn showing(&self, frames: Frames) -> Cow<'_, Report> {
        if !self.profile.has_source() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Report {
            profile: Arc::new(self.profile.showing(frames)),
            symbols: Arc::clone(&self.symbols),
            sequence: self.sequence,
        })
    }

    /// The input of a tree or a function table.
    pub(crate) fn side(&self) -> (&Profile, &Symbols) {
        (&self.profile, &self.symbols)
    }
}

/// A format: its name, the options that it supports, and its writer.
#[derive(Clone, Copy, Debug)]
pub struct Exporter {
    /// Name on the command line and in URLs: short, lower-case.
    pub name: &'static str,
    /// A short description of the format or of its use.
    pub about: &'static str,
    /// Usual file extension of this format, without the dot.
    pub extension: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// The options that it supports beyond exporting one complete report.
    pub supports: Supports,
    /// Whether it can represent source lines and inlined functions, which take time to look up.
    pub wants_lines: bool,
    /// Whether it has all frames as recorded, so that readers can choose.
    pub keeps_all_frames: bool,
    /// Whether it says at which addresses the process has mapped what.
    pub has_addresses: bool,
    /// Writes a report; [`write()`] checks the options first.
    write: fn(&Report, &ExportOptions, &mut dyn Write) -> io::Result<()>,
}

/// Writes the report in this format.
///
/// # Errors
/// [`Unsupported`] inside an `io::Error` of kind `InvalidInput` for options that the format does not
/// support ([`ExportOptions::check`] finds these beforehand); otherwise those of `out`.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, SystemTime};
///
/// use memprof::event::{Outcome, Pid};
/// use memprof::export::{self, ExportOptions, Report};
/// use memprof::measure::RESIDENCY;
/// use memprof::profile::{
///     Faults, Frame, FreezeOutcome, KernelFigures, Losses, Places, Profile, Sample, Stack, TargetInfo, Usage,
/// };
/// use memprof::symbol::Symbols;
///
/// let usage = Usage { anon: 4096, ..Usage::default() };
/// let stack = Stack { frames: [Frame::unmapped(0x7f00)].into(), outcome: Outcome::Complete };
/// let profile = Profile {
///     taken: SystemTime::now(),
///     taken_ns: 0,
///     observed: Duration::ZERO,
///     target: TargetInfo { pid: Pid(1), comm: "node".into(), pids: vec![Pid(1)], alive: true },
///     samples: vec![Sample { stack: Arc::new(stack), amounts: usage.into() }],
///     not_observed: Vec::new(),
///     total: usage.into(),
///     uncertainties: Vec::new(),
///     kernel_before: KernelFigures::default(),
///     kernel_after: KernelFigures::default(),
///     losses: Losses::default(),
///     faults: Some(Faults::default()),
///     modules: Arc::new([]),
///     places: Arc::new(Places::default()),
///     processes: Vec::new(),
///     ended: Default::default(),
///     oom_kills: Default::default(),
///     freeze: FreezeOutcome::Ran,
///     measures: vec![&RESIDENCY],
///     cgroup: None,
/// };
/// let symbols = Arc::new(Symbols::default());
/// let report = Report { profile: Arc::new(profile), symbols, sequence: 1 };
///
/// let mut out = Vec::new();
/// let folded = export::by_name("folded").unwrap();
/// export::write(folded, &report, &ExportOptions::default(), &mut out).unwrap();
/// assert_eq!(out, b"[unknown] 4096\n");
/// ```
pub fn write(
    format: &Exporter,
    report: &Report,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let checked = options.check(format);
    checked.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    if format.keeps_all_frames {
        return (format.write)(report, options, out);
    }
    let baseline = options.baseline.as_ref();
    let baseline = baseline.map(|b| Arc::new(b.showing(options.frames).into_owned()));
    let options = ExportOptions {
        baseline,
        ..options.clone()
    };
    (format.write)(&report.showing(options.frames), &options, out)
}

/// Every format, in display order.
pub static EXPORTERS: &[Exporter] = &[
    json::FORMAT,
    profile::FORMAT,
    folded::FORMAT,
    svg::FORMAT,
    html::FORMAT,
    pprof::FORMAT,
    speedscope::FORMAT,
    heaptrack::FORMAT,
    csv::FORMAT,
    functions::FORMAT,
    text::FORMAT,
];

/// Looks up a format by name.
pub fn by_name(name: &str) -> Option<&'static Exporter> {
    EXPORTERS.iter().find(|e| e.name == name)
}

/// The format with the longest extension that matches the file name.
pub(crate) fn by_ending(path: &Path) -> Option<&'static Exporter> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |e: &&Exporter| {
        let rest = name.strip_suffix(e.extension);
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    let fitting = EXPORTERS.iter().filter(ends);
    fitting.max_by_key(|e| e.extension.len())
}

/// The names of all formats.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPORTERS.iter().map(|e| e.name)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::profile::Frame;
    use crate::symbol::Language;
    use crate::tree::testing::symbols;

    /// A report of a profile; the functions' language is unknown.
    pub(crate) fn report(profile: Profile, names: &[(Frame, &str)]) -> Report {
        let names: Vec<_> = names
            .iter()
            .map(|(f, n)| (*f, *n, Language::Other))
            .collect();
        Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&names)),
            sequence: 1,
        }
    }

    pub(crate) fn bytes(name: &str, report: &Report, options: &ExportOptions) -> Vec<u8> {
        let mut out = Vec::new();
        write(by_name(name).unwrap(), report, options, &mut out).unwrap();
        out
    }

    pub(crate) fn written_with(name: &str, report: &Report, options: &ExportOptions) -> String {
        String::from_utf8(bytes(name, report, options)).unwrap()
    }

    pub(crate) fn written(name: &str, report: &Report) -> String {
        written_with(name, report, &ExportOptions::default())
    }

    #[test]
    fn names_are_unique_and_found() {
        for (at, name) in names().enumerate() {
            assert_eq!(names().position(|n| n == name), Some(at));
            assert_eq!(by_name(name).unwrap().name, name);
        }
        assert!(by_name("JSON").is_none());
    }
}
