//! Formats that a report can be written in: one file per format, with one [`Exporter`] that describes it,
//! and one line in the registry.

mod cells;
mod clean;
mod csv;
mod folded;
mod functions;
pub mod json;
mod names;
mod options;
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

/// A profile with the names of its frames: what every view and every format is made from.
#[derive(Clone, Debug)]
pub struct Report {
    /// The memory.
    pub profile: Arc<Profile>,
    /// The names.
    pub symbols: Arc<Symbols>,
    /// Number of the report; two reports of one number are the same report.
    pub sequence: u64,
}

impl Report {
    /// What a tree or a table of functions is made from.
    pub(crate) fn side(&self) -> (&Profile, &Symbols) {
        (&self.profile, &self.symbols)
    }
}

/// A format: what it is called, what it can hold, and how it is written.
#[derive(Clone, Copy, Debug)]
pub struct Exporter {
    /// Name on the command line and in addresses: short, lower-case.
    pub name: &'static str,
    /// What a file of it is, or is for, in a few words.
    pub about: &'static str,
    /// Usual ending of a file of this format, without the dot.
    pub extension: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// What it can hold beside the whole of one report.
    pub supports: Supports,
    /// Whether it has a place for source lines and inlined functions, which take time to look up.
    pub wants_lines: bool,
    /// Writes a report; [`write()`] checks the options first.
    write: fn(&Report, &ExportOptions, &mut dyn Write) -> io::Result<()>,
}

/// Writes the report in a format.
///
/// # Errors
/// [`Unsupported`] inside an `io::Error` of kind `InvalidInput` for options that the format cannot
/// hold ([`ExportOptions::check`] finds these beforehand); else those of `out`.
pub fn write(
    format: &Exporter,
    report: &Report,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let checked = options.check(format);
    checked.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    (format.write)(report, options, out)
}

/// Every format, in the order in which they are offered.
pub static EXPORTERS: &[Exporter] = &[
    json::FORMAT,
    profile::FORMAT,
    folded::FORMAT,
    svg::FORMAT,
    pprof::FORMAT,
    speedscope::FORMAT,
    csv::FORMAT,
    functions::FORMAT,
    text::FORMAT,
];

/// The format of that name.
pub fn by_name(name: &str) -> Option<&'static Exporter> {
    EXPORTERS.iter().find(|e| e.name == name)
}

/// The format with the longest extension that the file's name ends in, else the first format.
pub fn by_ending(path: &Path) -> &'static Exporter {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |e: &&Exporter| {
        let rest = name.strip_suffix(e.extension);
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    let fitting = EXPORTERS.iter().filter(ends);
    fitting
        .max_by_key(|e| e.extension.len())
        .unwrap_or(&EXPORTERS[0])
}

/// The names of all formats.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPORTERS.iter().map(|e| e.name)
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
            assert_eq!(by_name(name).unwrap().name, name);
        }
        assert!(by_name("JSON").is_none());
    }
}
