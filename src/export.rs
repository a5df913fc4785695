//! Export formats. Each format is one file with an [`Exporter`] that describes it, and one line in `FORMATS`.

mod cells;
mod csv;
mod folded;
mod functions;
mod grown_by;
pub mod growth;
mod heaptrack;
mod label_text;
pub(crate) mod mappings;
mod names;
mod options;
pub mod overview;
pub(crate) mod pprof;
mod profile;
pub mod push;
pub(crate) mod rows;
mod sizes;
mod speedscope;
mod stack_names;
mod summary;
mod svg;
mod text;
pub mod tree;

use std::io::{self, Write};
use std::sync::Arc;

use memprof_profile::{FrameFilter, Report};

pub(crate) use grown_by::grown_by;
pub use options::{ExportOptions, Supports, Unsupported};
pub(crate) use sizes::write_sizes;
pub(crate) use stack_names::stack_names;
pub(crate) use summary::{write_peak, write_summary};

/// A format: its name, its supported options, and its writer.
#[derive(Clone, Copy, Debug)]
pub struct Exporter {
    /// The name on the command line and in URLs: short, lower-case.
    pub name: &'static str,
    /// A short description of the format or of its use.
    pub about: &'static str,
    /// The usual file extension of the format, without the dot.
    pub extension: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// The supported options beyond the export of one complete report.
    pub supports: Supports,
    /// The frames of interpreted programs to show unless the options say otherwise. `None` for all frames as recorded, so that
    /// readers can select.
    pub usual_frames: Option<FrameFilter>,
    /// Whether the format contains the addresses of mappings in the process.
    pub has_addresses: bool,
    /// Writes a report; [`write()`] checks the options first.
    pub(crate) write: fn(&Report, &ExportOptions, &mut dyn Write) -> io::Result<()>,
}

/// Writes the report in this format.
///
/// # Errors
/// [`Unsupported`] inside an `io::Error` of kind `InvalidInput` for options that the format does not support
/// ([`ExportOptions::check`] finds these beforehand), or an error of writing to `out`.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, SystemTime};
///
/// use memprof::export::{self, ExportOptions};
/// use memprof::http::exporters;
/// use memprof_profile::measure::RESIDENCY;
/// use memprof_profile::{
///     Faults, Frame, FreezeOutcome, Losses, Outcome, Places, Profile, Report, Sample, Stack, TargetInfo,
/// };
/// use memprof_profile::symbol::Symbols;
/// use memprof_sys::ids::Pid;
/// use memprof_sys::kernel_figures::KernelFigures;
/// use memprof_sys::usage::Usage;
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
///     peak: None,
///     own_peak: None,
/// };
/// let symbols = Arc::new(Symbols::default());
/// let report = Report { profile: Arc::new(profile), symbols, sequence: 1 };
///
/// let mut out = Vec::new();
/// let folded = exporters::by_name("folded").unwrap();
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
    let Some(usual) = format.usual_frames else {
        return (format.write)(report, options, out);
    };
    let frames = options.frames.unwrap_or(usual);
    let baseline = options.baseline.as_ref();
    let baseline = baseline.map(|b| Arc::new(b.showing(frames).into_owned()));
    let options = ExportOptions {
        baseline,
        ..options.clone()
    };
    (format.write)(&report.showing(frames), &options, out)
}

/// Every format of this wing, in display order. `http::exporters` adds the page.
pub(crate) const FORMATS: &[Exporter] = &[
    tree::v1::FORMAT,
    profile::FORMAT,
    folded::FORMAT,
    svg::FORMAT,
    pprof::FORMAT,
    speedscope::FORMAT,
    heaptrack::FORMAT,
    csv::FORMAT,
    functions::FORMAT,
    text::FORMAT,
];

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Looks up a format by name.
    pub(crate) fn by_name(name: &str) -> Option<&'static Exporter> {
        FORMATS.iter().find(|e| e.name == name)
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
}
