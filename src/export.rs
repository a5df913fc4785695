//! Formats a report can be written in: one file per format, one line in the registry.

mod clean;
mod folded;
pub mod json;
mod summary;
mod text;

use std::io::{self, Write};
use std::sync::Arc;

use crate::profile::Profile;
use crate::symbol::Symbols;

pub use clean::printable;
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

    /// Usual ending of a file of this format, without the dot.
    fn extension(&self) -> &'static str;

    /// MIME type.
    fn content_type(&self) -> &'static str;

    /// Writes the report; the only errors are those of `out`.
    fn write(&self, report: &Report, out: &mut dyn Write) -> io::Result<()>;
}

/// Every format, in the order in which they are offered.
pub static EXPORTERS: &[&dyn Exporter] = &[&json::Json, &folded::Folded, &text::Text];

/// The format of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.iter().copied().find(|e| e.name() == name)
}

/// The names of all formats.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPORTERS.iter().map(|e| e.name())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn written(name: &str, report: &Report) -> String {
        let mut out = Vec::new();
        by_name(name).unwrap().write(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
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
