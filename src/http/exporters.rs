//! All export formats: those of [`export`](crate::export), and the HTML page.

use std::path::Path;

use super::offline;
use crate::export::{Exporter, FORMATS};

/// Position of the HTML page among the formats.
const HTML_AT: usize = 4;

/// Every format, in display order.
pub static EXPORTERS: &[Exporter] = &all();

const fn all() -> [Exporter; FORMATS.len() + 1] {
    let mut all = [offline::FORMAT; FORMATS.len() + 1];
    let mut at = 0;
    while at < FORMATS.len() {
        all[if at < HTML_AT { at } else { at + 1 }] = FORMATS[at];
        at += 1;
    }
    all
}

/// Looks up a format by name.
pub fn by_name(name: &str) -> Option<&'static Exporter> {
    EXPORTERS.iter().find(|e| e.name == name)
}

/// The format with the longest extension that matches the file name.
pub(crate) fn by_extension(path: &Path) -> Option<&'static Exporter> {
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
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (at, name) in names().enumerate() {
            assert_eq!(names().position(|n| n == name), Some(at));
            assert_eq!(by_name(name).unwrap().name, name);
        }
        assert!(by_name("JSON").is_none());
    }
}
