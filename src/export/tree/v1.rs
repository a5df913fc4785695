//! The `/v1` formats: the call tree and the short report, in whole KiB.
//!
//! The writer does not recurse, so memprof's own stack does not limit the depth.

use std::io::{self, Write};

use serde::Serialize;

use crate::export::{ExportOptions, Exporter, Supports};
use memprof_profile::tree::{Code, Descent, Direction, Label, Merge, Naming, Paths};
use memprof_profile::{Amounts, FrameFilter, Profile, Report};

/// Bytes in a KiB.
const KIB: u64 = 1024;

/// The default number of levels of frames below the root. JSON of this depth nests no deeper than 120, with an object and
/// an array per level. Common JSON parsers, serde_json among them, reject more than 127.
pub(crate) const DEPTH: usize = 59;

/// The `/v1` tree with the contract's defaults, but threshold 0.
pub(crate) const FORMAT: Exporter = Exporter {
    name: "json",
    about: "the call tree of /v1/tree, in KiB",
    extension: "json",
    content_type: "application/json",
    supports: Supports {
        direction: true,
        threshold: true,
        ..Supports::NOTHING
    },
    usual_frames: Some(FrameFilter::All),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let shape = TreeShape {
        direction: options.direction.unwrap_or_default(),
        threshold: options.threshold.unwrap_or_default(),
        depth: DEPTH,
    };
    write_tree(report, shape, out)?;
    out.write_all(b"\n")
}

/// An empty tree: the reply before a target exists.
pub(crate) const EMPTY_TREE: &str = r#"{"value":0,"cacheValue":0,"frames":[]}"#;

/// Totals in KiB: the reply to `/v1/tree?short=true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Short {
    /// Resident anonymous and shared memory and page cache, in KiB.
    pub total: u64,
    /// Page cache, in KiB.
    pub cache: u64,
    /// `total - cache`, in KiB.
    pub anon: u64,
    /// `RssAnon` of `/proc/PID/status`, in KiB; 0 if it could not be read.
    pub system_report_anon: u64,
}

impl From<&Profile> for Short {
    fn from(profile: &Profile) -> Short {
        let total = Kib::from(columns(&profile.total));
        Short {
            total: total.value,
            cache: total.cache,
            anon: total.value - total.cache,
            system_report_anon: profile.kernel_after.rss_anon / KIB,
        }
    }
}

/// The name of a real frame, as opposed to a pseudo-frame.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Name<'a> {
    offset: String,
    executable: &'a str,
    function_name: Option<&'a str>,
    function_category: &'static str,
}

impl<'a> From<&Code<'a>> for Name<'a> {
    fn from(code: &Code<'a>) -> Name<'a> {
        Name {
            offset: format!("{:08x}", code.offset.unwrap_or_default()),
            executable: code.file,
            function_name: code.function,
            function_category: code.category.0.v1(),
        }
    }
}

/// A node's columns, in bytes: all resident anonymous memory, shared memory and page cache, and page cache alone.
fn columns(of: &Amounts) -> [u64; 2] {
    [of.usage.value(), of.usage.cache]
}

/// A node's bytes in whole KiB. Page sizes are whole KiB, so rounding loses nothing. Fractions of finer figures count in
/// the parent's `unknown`.
#[derive(Clone, Copy, Default)]
struct Kib {
    value: u64,
    cache: u64,
}

impl From<[u64; 2]> for Kib {
    fn from(bytes: [u64; 2]) -> Kib {
        let [value, cache] = bytes.map(|bytes| bytes / KIB);
        Kib { value, cache }
    }
}

impl Kib {
    fn less(self, part: Kib) -> Kib {
        let value = self.value.saturating_sub(part.value);
        let cache = self.cache.saturating_sub(part.cache).min(value);
        Kib { value, cache }
    }
}

/// A node whose start is written and whose end is not.
struct Open {
    row: u32,
    /// The bytes of the node minus those of the children written so far.
    rest: Kib,
    below_threshold: Kib,
    first: bool,
}

/// Parameters of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeShape {
    /// The end of a stack at the root.
    pub direction: Direction,
    /// Nodes smaller than this, in bytes, are aggregated.
    pub threshold: u64,
    /// Maximum number of levels of frames below the root. Deeper memory counts for the last frame shown.
    pub depth: usize,
}

/// Writes the tree in the format of the `/v1` contract.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write_tree(report: &Report, shape: TreeShape, out: &mut dyn Write) -> io::Result<()> {
    let naming = Naming {
        merge: Merge::Frame,
        inlined: false,
    };
    let mut paths = Paths::columns(report.side(), shape.direction, naming, columns);
    paths.cut_below(shape.depth);
    let rows = Descent::new(&mut paths, shape.threshold);
    let labels = rows.labels();
    let mut path: Vec<Open> = Vec::new();
    for (at, row) in (0..).zip(rows) {
        while let Some(done) = path.pop_if(|open| open.row != row.parent) {
            close(done, out)?;
        }
        let (label, amount) = (labels.get(row.label), Kib::from(row.total));
        if let Some(parent) = path.last_mut() {
            if label.is_rest() {
                parent.below_threshold = amount;
                continue;
            }
            parent.rest = parent.rest.less(amount);
            separate(&mut parent.first, out)?;
        }
        open(label, amount, out)?;
        path.push(Open {
            row: at,
            rest: amount,
            below_threshold: Kib::default(),
            first: true,
        });
    }
    while let Some(done) = path.pop() {
        close(done, out)?;
    }
    Ok(())
}

fn open(label: &Label<'_>, amount: Kib, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{")?;
    if let Label::Code(code) = label {
        out.write_all(b"\"name\":")?;
        serde_json::to_writer(&mut *out, &Name::from(code))?;
        out.write_all(b",")?;
    }
    write_amount(amount, out)?;
    out.write_all(b",\"frames\":[")
}

fn close(mut done: Open, out: &mut dyn Write) -> io::Result<()> {
    let below = done.below_threshold;
    let mut unknown = done.rest.less(below);
    if done.row != 0 && done.first && below.value == 0 {
        // For a leaf, `unknown` would only repeat the value.
        unknown = Kib::default();
    }
    for (name, amount) in [("underThreshold", below), ("unknown", unknown)] {
        if amount.value > 0 {
            separate(&mut done.first, out)?;
            write!(out, "{{\"name\":\"{name}\",")?;
            write_amount(amount, out)?;
            out.write_all(b"}")?;
        }
    }
    out.write_all(b"]}")
}

fn write_amount(amount: Kib, out: &mut dyn Write) -> io::Result<()> {
    let Kib { value, cache } = amount;
    write!(out, "\"value\":{value},\"cacheValue\":{cache}")
}

fn separate(first: &mut bool, out: &mut dyn Write) -> io::Result<()> {
    if !std::mem::replace(first, false) {
        out.write_all(b",")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::Frame;
    use memprof_profile::symbol::{Function, Language, Location, Symbol, Symbols};
    use memprof_sys::usage::Usage;

    fn tree(profile: Profile, symbols: Symbols, threshold: u64, depth: usize) -> String {
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols),
            sequence: 1,
        };
        let shape = TreeShape {
            direction: Direction::InnermostFirst,
            threshold,
            depth,
        };
        let mut out = Vec::new();
        write_tree(&report, shape, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_shape_is_the_contracts() {
        let profile = profile(
            &[
                (&[at(1, 0x9_8765_4321), at(0, 0x1a)], kib(400, 100)),
                (&[at(1, 0x9_8765_4321), at(0, 0x2b)], kib(8, 4)),
                (&[at(0, 0x3c), Frame::unmapped(1)], kib(300, 0)),
            ],
            &[kib(40, 0)],
        );
        let names = symbols(&[(at(0, 0x1a), "a::b::h0011223344556677", Language::Rust)]);
        let found: Value = serde_json::from_str(&tree(profile, names, 256 * KIB, DEPTH)).unwrap();
        let wanted = json!({"value": 852, "cacheValue": 104, "frames": [
            {"name": {"offset": "987654321", "executable": "libc-2.31.so",
                      "functionName": null, "functionCategory": "systemLib"},
             "value": 512, "cacheValue": 104, "frames": [
                {"name": {"offset": "0000001a", "executable": "node",
                          "functionName": "a::b::h0011223344556677", "functionCategory": "nodeRust"},
                 "value": 500, "cacheValue": 100, "frames": []},
                {"name": "underThreshold", "value": 12, "cacheValue": 4}]},
            {"name": {"offset": "0000003c", "executable": "node",
                      "functionName": null, "functionCategory": "nodeCpp"},
             "value": 300, "cacheValue": 0, "frames": []},
            {"name": "unknown", "value": 40, "cacheValue": 0}]});
        assert_eq!(found, wanted);
    }

    /// The nesting depth of JSON: arrays and objects, as parsers count them.
    fn nesting(text: &str) -> usize {
        let mut open = 0usize;
        let depths = text.bytes().map(|byte| {
            match byte {
                b'{' | b'[' => open += 1,
                b'}' | b']' => open -= 1,
                _ => {}
            }
            open
        });
        depths.max().unwrap_or(0)
    }

    #[test]
    fn frames_below_the_depth_count_in_the_last_one_shown() {
        let deep: Vec<Frame> = (0..500).map(|n| at(0, n)).collect();
        let stacks: [(&[Frame], Usage); 3] = [
            (&deep, kib(400, 100)),
            (&deep[..DEPTH - 1], kib(8, 0)),
            (&deep[..DEPTH + 1], kib(4, 0)),
        ];
        let written = |depth| tree(profile(&stacks, &[]), Symbols::default(), 6 * KIB, depth);
        let text = written(DEPTH);
        assert_eq!(nesting(&text), 120);
        assert_eq!(nesting(&written(DEPTH + 1)), 122);
        let found: Value = serde_json::from_str(&text).unwrap();
        let at_level = |level| (0..level).fold(&found, |node, _| &node["frames"][0]);
        let last = at_level(DEPTH);
        assert_eq!(last["value"], 504);
        assert_eq!(
            (&last["cacheValue"], &last["frames"]),
            (&json!(100), &json!([]))
        );
        let before = json!({"name": "unknown", "value": 8, "cacheValue": 0});
        assert_eq!(at_level(DEPTH - 1)["frames"][1], before);
        let whole = written(usize::MAX);
        assert_eq!(whole.matches("\"offset\"").count(), deep.len());
        assert!(
            serde_json::from_str::<Value>(&whole).is_err(),
            "beyond the parser's limit"
        );
        assert_eq!(
            written(0),
            r#"{"value":512,"cacheValue":100,"frames":[{"name":"unknown","value":512,"cacheValue":100}]}"#
        );
    }

    /// Checks the invariants of every node.
    fn check(node: &Value) {
        let part = |node: &Value, key: &str| node[key].as_u64().unwrap();
        assert!(part(node, "value") >= part(node, "cacheValue"), "{node}");
        let Some(frames) = node.get("frames") else {
            assert!(part(node, "value") > 0);
            return;
        };
        let frames = frames.as_array().unwrap();
        if frames.is_empty() {
            return; // a leaf
        }
        for key in ["value", "cacheValue"] {
            let sum: u64 = frames.iter().map(|frame| part(frame, key)).sum();
            assert!(sum <= part(node, key), "{node}");
            // No part of `value` is lost. Of `cacheValue`, only fractions of a KiB are lost.
            assert!(key == "cacheValue" || sum == part(node, key), "{node}");
        }
        frames.iter().for_each(check);
    }

    proptest! {
        #[test]
        fn every_node_holds_its_children(
            samples in proptest::collection::vec(
                (proptest::collection::vec(0u64..5, 0..5), 0u64..5000, 0u64..5000), 0..30),
            threshold in 0u64..8,
            depth in 0usize..6,
        ) {
            let samples: Vec<_> = samples.into_iter().map(|(frames, anon, cache)| {
                let frames: Vec<_> = frames.into_iter().map(|offset| at(0, offset)).collect();
                (frames, Usage { anon, cache, ..Usage::default() })
            }).collect();
            let samples: Vec<_> = samples.iter().map(|(f, u)| (f.as_slice(), *u)).collect();
            let profile = profile(&samples, &[]);
            let total = profile.total.usage.value();
            let text = tree(profile, Symbols::default(), threshold * KIB, depth);
            let tree: Value = serde_json::from_str(&text).unwrap();
            check(&tree);
            prop_assert_eq!(tree["value"].as_u64(), Some(total / KIB));
        }
    }

    /// Two functions of a Python file may be on the same line. Clients identify a frame by file name and offset.
    #[test]
    fn functions_of_one_file_have_offsets_of_their_own() {
        let (outer, inner) = (at(0, 12), at(0, 1 << 24 | 12));
        let profile = profile(&[(&[inner, outer], kib(8, 0))], &[]);
        let function = |name: &str| Function {
            name: name.to_owned(),
            language: Language::Python,
            offset_in_function: 0,
            first_line: Some(10),
            inlined: Vec::new(),
            location: Some(Location {
                file: "node".to_owned(),
                line: Some(12),
            }),
        };
        let names = [(outer, function("<module>")), (inner, function("<lambda>"))];
        let names = names.map(|(frame, function)| (frame, Arc::new(Symbol::Known(function))));
        let text = tree(profile, names.into_iter().collect(), 0, DEPTH);
        for name in [
            r#""offset":"0000000c","executable":"node","functionName":"<module>""#,
            r#""offset":"0100000c","executable":"node","functionName":"<lambda>""#,
        ] {
            assert!(text.contains(name), "{name}: {text}");
        }
    }

    #[test]
    fn no_memory_is_the_empty_tree() {
        let text = tree(profile(&[], &[]), Symbols::default(), 0, DEPTH);
        assert_eq!(text, EMPTY_TREE);
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep: Vec<Frame> = (0..100_000).map(|n| at(0, n)).collect();
        let profile = profile(&[(&deep, kib(4, 0))], &[]);
        let text = tree(profile, Symbols::default(), 0, usize::MAX);
        assert_eq!(text.matches("\"offset\"").count(), deep.len());
        assert!(text.ends_with(&"]}".repeat(deep.len() + 1)));
    }

    #[test]
    fn short_is_totals() {
        let mut profile = profile(&[(&[at(0, 1)], kib(8, 4))], &[kib(16, 0)]);
        profile.kernel_after.rss_anon = 20 * KIB;
        let text = serde_json::to_string(&Short::from(&profile)).unwrap();
        let wanted = r#"{"total":28,"cache":4,"anon":24,"systemReportAnon":20}"#;
        assert_eq!(text, wanted);
    }
}
