//! Folded stacks: one line per path of names, `outermost;…;innermost BYTES`, for flame graph tools.
//!
//! Memory without a stack is in lines of one frame, `[before attach: MAPPING]`. In names, `;`, backslashes, control and
//! format characters are escaped as in a string literal, so that a line has exactly as many frames as its stack. Names
//! longer than 1,024 characters are truncated with a marker. A diff has two numbers, `STACK BEFORE NOW`, the input format
//! of differential flame graph tools.

use std::io::{self, Write};

use super::names::NameTree;
use super::{ExportOptions, Exporter, Supports};
use memprof_profile::{FrameFilter, Report};
use memprof_sys::text::{cut, is_control_or_format, missing};

pub(super) const FORMAT: Exporter = Exporter {
    name: "folded",
    about: "one line per call path, for flame graph tools",
    extension: "folded",
    content_type: "text/plain; charset=utf-8",
    supports: Supports::EVERYTHING,
    usual_frames: Some(FrameFilter::Source),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let tree = NameTree::new(report, options, options.threshold.unwrap_or_default());
    each_line(&tree, |line, [before, now]| match tree.is_difference {
        true => writeln!(out, "{line} {before} {now}"),
        false => writeln!(out, "{line} {now}"),
    })
}

/// The lines of a report, each with its bytes.
pub(super) fn lines(report: &Report, inlined: bool) -> Vec<(String, u64)> {
    let options = ExportOptions {
        no_inline: !inlined,
        ..ExportOptions::default()
    };
    let tree = NameTree::new(report, &options, 0);
    let mut found = Vec::new();
    // Cannot fail: nothing is written.
    let _ = each_line(&tree, |line, [_, now]| {
        found.push((line.to_owned(), now));
        Ok(())
    });
    found
}

/// Calls `with` for each path that has bytes of its own, with its bytes before and now.
fn each_line(
    tree: &NameTree,
    mut with: impl FnMut(&str, [u64; 2]) -> io::Result<()>,
) -> io::Result<()> {
    let mut line = String::new();
    // The end of each name of the path, as an offset in the line.
    let mut ends = Vec::new();
    tree.visit(|depth, row| {
        ends.truncate(depth);
        line.truncate(ends.last().copied().unwrap_or_default());
        if depth > 0 {
            line.push(';');
        }
        escape(tree.name(row), &mut line);
        ends.push(line.len());
        match row.own {
            [0, 0] => Ok(()),
            own => with(&line, own),
        }
    })
}

/// Appends the escaped name to the line.
pub(super) fn escape(name: &str, line: &mut String) {
    let (shown, more) = cut(name);
    for c in shown.chars() {
        match c {
            ';' => line.push_str("\\x3b"),
            '\\' => line.push_str("\\\\"),
            c if is_control_or_format(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    if more > 0 {
        line.push_str(&missing(more));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::testing::written;
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::Frame;
    use memprof_profile::symbol::Language;

    #[test]
    fn lines_add_up_and_keep_their_frames() {
        let hostile = [at(0, 1), Frame::unmapped(3), at(1, 0x10)];
        let profile = profile(
            &[
                (&hostile, kib(8, 4)),
                (&[], kib(4, 0)),
                (&[at(0, 1)], kib(0, 0)),
            ],
            &[kib(16, 0), kib(0, 0)],
        );
        let total = profile.total.usage.value();
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&[(at(0, 1), "evil;na\nme\x1b", Language::Other)])),
            sequence: 1,
        };
        let text = written("folded", &report);
        let wanted = "[before attach: [heap]] 16384\n\
            [no stack] 4096\n\
            libc-2.31.so+0x10;[unknown];evil\\x3bna\\nme\\u{1b} 12288\n";
        assert_eq!(text, wanted);
        let sum: u64 = text
            .lines()
            .map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, total);
    }
}
