//! Names with special characters: every format's reader must find them as names, and no additional frames, rows or
//! elements.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::common::{at, kib, report};
use crate::exports::readers::{self, table};
use crate::exports::synthetic::{readers_find_every_byte, written};
use ::memprof::export::ExportOptions;
use ::memprof::http::exporters::EXPORTERS;
use memprof_profile::symbol::Language;
use memprof_profile::{Module, Report};

const NAMES: [&str; 14] = [
    "a\"b'c`d",
    "new\nline\r\nand\ttab",
    "semi;colon;s",
    "</title><script>alert(1)</script>",
    "]]><script>alert(2)</script>&lt;&#0;&amp;",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2,3",
    "@SUM(A1:A9)",
    "\u{1b}]0;owned\u{7}\u{0}\u{9b}",
    "\u{fffd}\u{fffe}\u{ffff}\u{202e}gnp",
    "ends in a number 4096",
    "",
    "[before attach: \"x\"]",
];

fn nasty() -> Arc<Report> {
    let names: Vec<_> = NAMES
        .iter()
        .enumerate()
        .map(|(n, name)| (at(0, n as u64), *name, Language::Other))
        .collect();
    let one = |n: usize| (vec![at(0, n as u64)], kib(4, 0, 0));
    let mut samples: Vec<_> = (0..NAMES.len()).map(one).collect();
    // All names in one stack, so that each is also a caller.
    samples.push((
        (0..NAMES.len()).map(|n| at(0, n as u64)).collect(),
        kib(8, 4, 0),
    ));
    let mut report = Report::clone(&report(&samples, &[kib(16, 0, 0), kib(32, 0, 0)], &names));
    let profile = Arc::make_mut(&mut report.profile);
    profile.target.comm = "</svg>\"\n;=x".to_owned();
    profile.not_observed[0].mapping = "=/tmp/<x>;\"\n\r,\u{1b}[2J".to_owned();
    let mut modules = profile.modules.to_vec();
    let module = &modules[0];
    modules[0] = Arc::new(Module {
        path: OsStr::from_bytes(b"=/tmp/\"<\n\xff\xc3(").into(),
        tree: None,
        name: "-\"<;\n".to_owned(),
        dev_ino: module.dev_ino,
        file: None,
        layout: None,
        functions: None,
        own_executable: true,
    });
    profile.modules = modules.into();
    Arc::new(report)
}

#[test]
fn every_reader_still_finds_every_byte() {
    readers_find_every_byte(&nasty());
}

/// No text format passes a control character of a name on to a terminal. JSON escapes those of ASCII.
#[test]
fn no_control_characters() {
    let report = nasty();
    for format in EXPORTERS.iter().map(|e| e.name).filter(|f| *f != "pprof") {
        let text = String::from_utf8(written(format, &report, &ExportOptions::default())).unwrap();
        let json = text.starts_with('{');
        let bad = |c: &char| match json {
            true => c.is_ascii_control() && *c != '\n',
            false => c.is_control() && !matches!(c, '\n' | '\r'),
        };
        assert_eq!(text.chars().find(bad), None, "{format}:\n{text}");
    }
}

/// Characters that reorder a line or are invisible, and names of any length.
#[test]
fn lines_of_text_are_in_order_and_bounded() {
    let name = |n: usize| format!("{n} \u{202e}gnp\u{2066}\u{200b}\u{feff}") + &"x".repeat(100_000);
    let names: Vec<String> = (0..20).map(name).collect();
    let named: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| (at(0, n as u64), name.as_str(), Language::Other))
        .collect();
    let stack = (0..20).map(|n| at(0, n)).collect();
    let mut report = Report::clone(&report(&[(stack, kib(8, 0, 0))], &[kib(16, 0, 0)], &named));
    let profile = Arc::make_mut(&mut report.profile);
    profile.not_observed[0].mapping = name(21);
    profile.target.comm = name(22);
    let report = Arc::new(report);
    for format in ["folded", "text", "csv", "functions", "svg"] {
        let text = String::from_utf8(written(format, &report, &ExportOptions::default())).unwrap();
        let bad = ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}'];
        assert!(!text.contains(bad), "{format}");
        assert!(
            text.contains("more characters)"),
            "{format}: says that names were cut"
        );
        let longest = text.lines().map(|line| line.chars().count()).max();
        // This many names of at most 1,024 characters, with their escapes.
        assert!(longest < Some(22 * 1_200), "{format}: {longest:?}");
    }
}

#[test]
fn folded_lines_have_as_many_frames_as_their_stacks() {
    let text = String::from_utf8(written("folded", &nasty(), &ExportOptions::default())).unwrap();
    assert_eq!(text.lines().count(), NAMES.len() + 3);
    let longest = text.lines().map(|l| l.matches(';').count() + 1).max();
    assert_eq!(longest, Some(NAMES.len()));
}

#[test]
fn a_picture_has_one_script_and_nothing_from_elsewhere() {
    let text = String::from_utf8(written("svg", &nasty(), &ExportOptions::default())).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let count = |name| {
        document
            .descendants()
            .filter(|n| n.tag_name().name() == name)
            .count()
    };
    assert_eq!(count("script"), 1);
    let names = ["svg", "title", "style", "rect", "text", "script", "g"];
    for node in document.descendants().filter(|n| n.is_element()) {
        assert!(names.contains(&node.tag_name().name()), "{node:?}");
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
            assert!(!attribute.name().contains("href"), "{attribute:?}");
        }
    }
}

#[test]
fn no_cell_is_a_formula() {
    for format in ["csv", "functions"] {
        let rows = table(&written(format, &nasty(), &ExportOptions::default()));
        for cell in rows.iter().flat_map(|row| row.values()) {
            assert!(
                !cell.starts_with(['=', '+', '-', '@', '\t', '\r']),
                "{format}: {cell:?}"
            );
        }
        let all: String = rows.iter().flat_map(|row| row.values()).cloned().collect();
        assert!(all.contains("'=cmd|' /C calc'!A0"), "{format}: {all}");
    }
}

#[test]
fn pprof_reads_every_name() {
    let raw = readers::pprof(&written("pprof", &nasty(), &ExportOptions::default())).raw;
    for name in [
        "semi;colon;s",
        "</title><script>",
        "@SUM(A1:A9)",
        "ends in a number 4096",
    ] {
        assert!(raw.contains(name), "{name}: {raw}");
    }
}
