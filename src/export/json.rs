//! The `/v1` shapes: the call tree and the short report, in whole KiB.
//!
//! Written without recursion: depth costs no stack.

use std::io::{self, Write};

use serde::Serialize;

use super::{ExportOptions, Exporter, Report, Supports};
use crate::profile::Profile;
use crate::tree::{Amount, CallTree, Names, NodeId, Options};

/// Bytes in a KiB.
const KIB: u64 = 1024;

/// The `/v1` tree as the contract's defaults order it, innermost function first, threshold 0.
pub(super) struct Json;

impl Exporter for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn about(&self) -> &'static str {
        "the call tree of /v1/tree, in KiB"
    }

    fn extension(&self) -> &'static str {
        "json"
    }

    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn supports(&self) -> Supports {
        Supports {
            direction: true,
            threshold: true,
            ..Supports::default()
        }
    }

    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let (profile, symbols) = (&report.profile, &report.symbols);
        let options = Options {
            direction: options.direction.unwrap_or_default(),
            threshold: options.threshold.unwrap_or_default(),
        };
        let tree = CallTree::new(profile, symbols, options);
        write_tree(&tree, Names::new(profile, symbols), out)?;
        out.write_all(b"\n")
    }
}

/// The tree without any memory: what there is to say before a target exists.
pub const EMPTY_TREE: &str = r#"{"value":0,"cacheValue":0,"frames":[]}"#;

/// Totals in KiB, as `/v1/tree?short=true` answers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Short {
    /// Resident anonymous and shared memory and page cache, in KiB.
    pub total: u64,
    /// Page cache, in KiB.
    pub cache: u64,
    /// `total - cache`, in KiB.
    pub anon: u64,
    /// `RssAnon` of `/proc/PID/status`, in KiB; 0 where it could not be read.
    pub system_report_anon: u64,
}

impl From<&Profile> for Short {
    fn from(profile: &Profile) -> Short {
        let total = Kib::from(Amount::from(&profile.total));
        Short {
            total: total.value,
            cache: total.cache,
            anon: total.value - total.cache,
            system_report_anon: profile.kernel_after.rss_anon / KIB,
        }
    }
}

/// A real frame's name.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Name<'a> {
    offset: String,
    executable: &'a str,
    function_name: Option<&'a str>,
    function_category: &'static str,
}

/// An [`Amount`] in whole KiB. Pages are whole KiB, so nothing is lost; of anything finer, parts
/// of a KiB end in the `unknown` of the node that has them all.
#[derive(Clone, Copy, Default)]
struct Kib {
    value: u64,
    cache: u64,
}

impl From<Amount> for Kib {
    fn from(amount: Amount) -> Kib {
        Kib {
            value: amount.value / KIB,
            cache: amount.cache / KIB,
        }
    }
}

impl Kib {
    fn less(self, part: Kib) -> Kib {
        let value = self.value.saturating_sub(part.value);
        let cache = self.cache.saturating_sub(part.cache).min(value);
        Kib { value, cache }
    }
}

/// A node whose opening is written, its end not yet.
struct Open {
    id: NodeId,
    children: usize,
    rest: Kib,
    first: bool,
}

/// Writes the tree as the `/v1` contract shapes it.
pub fn write_tree(tree: &CallTree, names: Names<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut path = vec![open(tree, names, tree.root(), out)?];
    while let Some(top) = path.last_mut() {
        let children = tree.children(top.id);
        if let Some(&child) = children.get(top.children) {
            top.children += 1;
            top.rest = top.rest.less(tree.node(child).amount.into());
            separate(&mut top.first, out)?;
            let child = open(tree, names, child, out)?;
            path.push(child);
        } else if let Some(done) = path.pop() {
            close(tree, done, out)?;
        }
    }
    Ok(())
}

fn open(tree: &CallTree, names: Names<'_>, id: NodeId, out: &mut dyn Write) -> io::Result<Open> {
    let node = tree.node(id);
    out.write_all(b"{")?;
    if let Some(name) = node.frame.and_then(|frame| names.get(frame)) {
        out.write_all(b"\"name\":")?;
        let name = Name {
            offset: format!("{:08x}", name.offset),
            executable: name.executable,
            function_name: name.function,
            function_category: name.category.v1(),
        };
        serde_json::to_writer(&mut *out, &name)?;
        out.write_all(b",")?;
    }
    let rest = Kib::from(node.amount);
    write_amount(rest, out)?;
    out.write_all(b",\"frames\":[")?;
    Ok(Open {
        id,
        children: 0,
        rest,
        first: true,
    })
}

fn close(tree: &CallTree, mut done: Open, out: &mut dyn Write) -> io::Result<()> {
    let under = Kib::from(tree.node(done.id).under_threshold);
    let unknown = done.rest.less(under);
    for (name, amount) in [("underThreshold", under), ("unknown", unknown)] {
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
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::profile::{Frame, Usage};
    use crate::symbol::{Language, Symbols};
    use crate::tree::Direction;
    use crate::tree::testing::{at, kib, profile, symbols};

    fn tree(profile: &Profile, symbols: &Symbols, options: Options) -> String {
        let tree = CallTree::new(profile, symbols, options);
        let mut out = Vec::new();
        write_tree(&tree, Names::new(profile, symbols), &mut out).unwrap();
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
        let options = Options {
            direction: Direction::InnermostFirst,
            threshold: 256 * KIB,
        };
        let found: Value = serde_json::from_str(&tree(&profile, &names, options)).unwrap();
        let wanted = json!({"value": 852, "cacheValue": 104, "frames": [
            {"name": {"offset": "987654321", "executable": "libc-2.31.so",
                      "functionName": null, "functionCategory": "systemLib"},
             "value": 512, "cacheValue": 104, "frames": [
                {"name": {"offset": "0000001a", "executable": "node",
                          "functionName": "a::b::h0011223344556677", "functionCategory": "nodeRust"},
                 "value": 500, "cacheValue": 100, "frames": [
                    {"name": "unknown", "value": 500, "cacheValue": 100}]},
                {"name": "underThreshold", "value": 12, "cacheValue": 4}]},
            {"name": {"offset": "0000003c", "executable": "node",
                      "functionName": null, "functionCategory": "nodeCpp"},
             "value": 300, "cacheValue": 0, "frames": [
                {"name": "unknown", "value": 300, "cacheValue": 0}]},
            {"name": "unknown", "value": 40, "cacheValue": 0}]});
        assert_eq!(found, wanted);
    }

    /// What holds at every node of any tree, whatever the bytes.
    fn check(node: &Value) {
        let part = |node: &Value, key: &str| node[key].as_u64().unwrap();
        assert!(part(node, "value") >= part(node, "cacheValue"), "{node}");
        let Some(frames) = node.get("frames") else {
            assert!(part(node, "value") > 0);
            return;
        };
        let frames = frames.as_array().unwrap();
        for key in ["value", "cacheValue"] {
            let sum: u64 = frames.iter().map(|frame| part(frame, key)).sum();
            assert!(sum <= part(node, key), "{node}");
            // Nothing is lost of values; of cache only what is finer than a KiB.
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
        ) {
            let samples: Vec<_> = samples.into_iter().map(|(frames, anon, cache)| {
                let frames: Vec<_> = frames.into_iter().map(|offset| at(0, offset)).collect();
                (frames, Usage { anon, cache, ..Usage::default() })
            }).collect();
            let samples: Vec<_> = samples.iter().map(|(f, u)| (f.as_slice(), *u)).collect();
            let profile = profile(&samples, &[]);
            let options = Options { threshold: threshold * KIB, ..Options::default() };
            let text = tree(&profile, &Symbols::default(), options);
            let tree: Value = serde_json::from_str(&text).unwrap();
            check(&tree);
            prop_assert_eq!(tree["value"].as_u64(), Some(profile.total.value() / KIB));
        }
    }

    #[test]
    fn no_memory_is_the_empty_tree() {
        let text = tree(&profile(&[], &[]), &Symbols::default(), Options::default());
        assert_eq!(text, EMPTY_TREE);
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep: Vec<Frame> = (0..100_000).map(|n| at(0, n)).collect();
        let profile = profile(&[(&deep, kib(4, 0))], &[]);
        let text = tree(&profile, &Symbols::default(), Options::default());
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
