//! A report to read: totals beside the kernel's, what was not observed or lost, and the call tree, or
//! what changed in it.

use std::io::{self, Write};

use super::summary::write_head;
use super::{ExportOptions, Exporter, Report, Supports, kinds, printable};
use crate::profile::Kind;
use crate::tree::{
    Amount, CallTree, Direction, Layout, Limits, Names, Naming, NodeId, Options, Paths, Reading,
};

/// Nodes below so small a part of the whole are summed up: one in so many.
const SMALL: u64 = 200;

/// The tree is drawn in KiB and per cent of the whole: unless asked for otherwise, outermost
/// function first, nodes below half a per cent summed up as `under threshold`. A call chain that does not branch is not indented.
pub(super) struct Text;

impl Exporter for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn about(&self) -> &'static str {
        "totals and the call tree, to read"
    }

    fn extension(&self) -> &'static str {
        "txt"
    }

    fn content_type(&self) -> &'static str {
        "text/plain; charset=utf-8"
    }

    fn supports(&self) -> Supports {
        Supports {
            direction: true,
            kind: true,
            threshold: true,
            difference: true,
            ..Supports::default()
        }
    }

    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        write_head(report, out)?;
        let whole = options.kind.of(&report.profile.total);
        let small = options.threshold.unwrap_or(whole / SMALL);
        let direction = options.direction.unwrap_or(Direction::OutermostFirst);
        let of = match options.kind {
            Kind::All => String::new(),
            kind => format!(" of {}", kind.label()),
        };
        let first = match direction {
            Direction::InnermostFirst => "innermost",
            Direction::OutermostFirst => "outermost",
        };
        if let Some(baseline) = &options.baseline {
            writeln!(
                out,
                "\nDifference{of}, {first} function first: now, before, change"
            )?;
            let reading = Reading {
                direction,
                naming: Naming::default(),
                kind: options.kind,
            };
            return write_difference(baseline, report, reading, small, out);
        }
        writeln!(out, "\nCall tree{of}, {first} function first:")?;
        let profile = &kinds::only(&report.profile, options.kind);
        let options = Options {
            direction,
            threshold: small,
        };
        let tree = CallTree::new(profile, &report.symbols, options);
        write_tree(&tree, Names::new(profile, &report.symbols), out)
    }
}

/// Writes the tree of two reports as indented lines, a node per function: KiB now, before and their
/// difference. A call chain that does not branch is not indented.
fn write_difference(
    before: &Report,
    now: &Report,
    reading: Reading,
    threshold: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let sides = [before, now].map(|report| (&*report.profile, &*report.symbols));
    let mut paths = Paths::new(sides, reading);
    let limits = Limits {
        threshold,
        max_nodes: usize::MAX,
    };
    let rows = Layout::new(&mut paths, limits).rows;
    let mut children = vec![0u32; rows.len()];
    rows.iter()
        .skip(1)
        .for_each(|row| children[row.parent as usize] += 1);
    let mut depths: Vec<usize> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let parent = row.parent as usize;
        let branches = parent == 0 || children[parent] > 1;
        let depth = depths.get(parent).map_or(0, |d| d + usize::from(branches));
        depths.push(if at == 0 { 0 } else { depth });
        let [before, now] = row.total.map(|bytes| bytes / 1024);
        let change = i128::from(now) - i128::from(before);
        let label = paths.labels().get(row.label).to_string();
        let (indent, label) = (depths[at] * 2, printable(&label));
        writeln!(
            out,
            "{now:>12} KiB {before:>12} KiB {change:>+12} KiB  {:indent$}{label}",
            ""
        )?;
    }
    Ok(())
}

/// Writes a tree as indented lines: KiB, per cent of the root, function, call site.
fn write_tree(tree: &CallTree, names: Names<'_>, out: &mut dyn Write) -> io::Result<()> {
    let whole = tree.node(tree.root()).amount.value;
    let mut todo = vec![(tree.root(), 0)];
    let mut line = |depth: usize, amount: Amount, what: &str| {
        let percent = amount.value as f64 * 100.0 / whole.max(1) as f64;
        let kib = amount.value / 1024;
        writeln!(
            out,
            "{kib:>12} KiB {percent:>5.1}%  {:1$}{what}",
            "",
            depth * 2
        )
    };
    while let Some((id, depth)) = todo.pop() {
        let node = tree.node(id);
        line(depth, node.amount, &label(tree, names, id))?;
        let children = tree.children(id);
        let rests = [
            ("[under threshold]", node.under_threshold),
            ("[unknown]", node.unknown),
        ];
        let mut rests = rests.into_iter().filter(|(_, a)| a.value > 0).peekable();
        let branches = children.len() > 1 || (children.len() == 1 && rests.peek().is_some());
        let below = depth + usize::from(branches || node.frame.is_none());
        if !children.is_empty() {
            rests.try_for_each(|(name, amount)| line(below, amount, name))?;
        }
        todo.extend(children.iter().rev().map(|child| (*child, below)));
    }
    Ok(())
}

fn label(tree: &CallTree, names: Names<'_>, id: NodeId) -> String {
    match tree.node(id).frame.and_then(|frame| names.get(frame)) {
        None => "all".to_owned(),
        Some(name) => {
            let function = printable(name.function.unwrap_or("[no symbol]"));
            let executable = printable(name.executable);
            format!("{function} ({executable}+{:#x})", name.offset)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::testing::written;
    use crate::symbol::Language;
    use crate::tree::testing::{at, kib, profile, symbols};

    #[test]
    fn the_whole_report() {
        let mut profile = profile(
            &[
                (&[at(1, 3), at(0, 2), at(0, 1)], kib(6000, 0)),
                (&[at(0, 4), at(0, 2), at(0, 1)], kib(2000, 1000)),
                (&[at(0, 5), at(0, 2), at(0, 1)], kib(4, 0)),
            ],
            &[kib(996, 0)],
        );
        profile.losses.counters.push(("events", 3));
        profile.kernel_after.rss_anon -= 4096;
        let names = [
            (at(0, 1), "main", Language::Other),
            (at(1, 3), "mal\x1b]0;loc", Language::Other),
        ];
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&names)),
            sequence: 1,
        };
        let wanted = "\
node (pid 42)

resident            9000 KiB  kernel: 9000 KiB before, 8996 KiB after; between
page cache          1000 KiB

Memory without a stack:
         996 KiB  [heap] (before attach)

Stacks:
        9004 KiB  3 stacks complete

Losses:
           3      events

Call tree, outermost function first:
       10000 KiB 100.0%  all
         996 KiB  10.0%    [unknown]
        9004 KiB  90.0%    main (node+0x1)
        9004 KiB  90.0%    [no symbol] (node+0x2)
           4 KiB   0.0%      [under threshold]
        6000 KiB  60.0%      mal\u{fffd}]0;loc (libc-2.31.so+0x3)
        3000 KiB  30.0%      [no symbol] (node+0x4)
";
        assert_eq!(written("text", &report), wanted);
    }
}
