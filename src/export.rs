//! Formats a report can be written in: one file per format, one line in the registry.

mod cells;
mod clean;
mod csv;
mod folded;
mod functions;
pub mod json;
mod kinds;
mod options;
mod paths;
mod pprof;
mod profile;
mod speedscope;
mod summary;
mod svg;
mod text;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::profile::Profile;
use crate::symbol::Symbols;

pub use clean::printable;
pub use options::{ExportOptions, Supports, Unsupported};
pub use summary::write_summary;

/// A profile with the names of its frames: what everything that shows something starts from.
#[derive(Clone, Debug)]
pub struct Report {
    /// The memory.
    pub profile: Arc<Profile>,
    /// The names.
    pub symbols: Arc<Symbols>,
    /// Number of the report; two reports of one number are the same report.
    pub sequence: u64,
}

/// A format.
pub trait Exporter: Sync {
    /// Name on the command line and in addresses: short, lower-case.
    fn name(&self) -> &'static str;

    /// What a file of it is, or is for, in a few words.
    fn about(&self) -> &'static str;

    /// Usual ending of a file of this format, without the dot.
    fn extension(&self) -> &'static str;

    /// MIME type.
    fn content_type(&self) -> &'static str;

    /// What it can hold beside the whole of one report.
    fn supports(&self) -> Supports;

    /// Whether it has a place for source lines and inlined functions, which take time to look up.
    fn wants_lines(&self) -> bool {
        false
    }

    /// Writes the report, as the options say. [`write()`] is what to call: it checks them first.
    ///
    /// # Errors
    /// Those of `out`.
    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()>;
}

/// Writes the report in a format.
///
/// # Errors
/// [`Unsupported`] inside an `io::Error` of kind `InvalidInput` for options that the format cannot
/// hold ([`ExportOptions::check`] says so beforehand); else those of `out`.
pub fn write(
    format: &dyn Exporter,
    report: &Report,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let checked = options.check(format);
    checked.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    format.write(report, options, out)
}

/// Every format, in the order in which they are offered.
pub static EXPORTERS: &[&dyn Exporter] = &[
    &json::Json,
    &profile::Complete,
    &folded::Folded,
    &svg::Svg,
    &pprof::Pprof,
    &speedscope::Speedscope,
    &csv::Csv,
    &functions::Functions,
    &text::Text,
];

/// The format of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.iter().copied().find(|e| e.name() == name)
}

/// The format that a file's name ends like; of several the longest ending, of none the first format.
pub fn by_ending(path: &Path) -> &'static dyn Exporter {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |e: &&dyn Exporter| {
        let rest = name.strip_suffix(e.extension());
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    let fitting = EXPORTERS.iter().copied().filter(ends);
    fitting
        .max_by_key(|e| e.extension().len())
        .unwrap_or(EXPORTERS[0])
}

/// The names of all formats.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPORTERS.iter().map(|e| e.name())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::profile::Frame;
    use crate::symbol::Language;
    use crate::tree::testing::symbols;

    /// A report of a profile, with functions of no known language.
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
            assert_eq!(by_name(name).unwrap().name(), name);
        }
        assert!(by_name("JSON").is_none());
    }
}
