//! Folded stacks: one line per stack, `outermost;…;innermost BYTES`, for flame graph tools.
//!
//! Counts [`Usage::value`](crate::profile::Usage::value) in bytes. Memory without a stack stands
//! in lines of one frame, `[not observed: MAPPING]`. In names, `;`, backslashes and control
//! characters are escaped as in a string literal, so that a line has as many frames as its stack.

use std::io::{self, Write};

use super::{ExportOptions, Exporter, Report, Supports};
use crate::profile::{Frame, Sample};
use crate::tree::{Direction, Names};

pub(super) struct Folded;

impl Exporter for Folded {
    fn name(&self) -> &'static str {
        "folded"
    }

    fn extension(&self) -> &'static str {
        "folded"
    }

    fn content_type(&self) -> &'static str {
        "text/plain; charset=utf-8"
    }

    fn supports(&self) -> Supports {
        Supports {
            direction: true,
            kind: true,
            ..Supports::default()
        }
    }

    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let names = Names::new(&report.profile, &report.symbols);
        let mut samples: Vec<&Sample> = report.profile.samples.iter().collect();
        samples.retain(|sample| options.kind.of(&sample.usage) > 0);
        samples.sort_by(|a, b| outermost_first(a).cmp(outermost_first(b)));
        let mut line = String::new();
        for sample in samples {
            line.clear();
            match options.direction {
                Some(Direction::InnermostFirst) => {
                    fold(sample.stack.frames.iter(), names, &mut line)
                }
                _ => fold(outermost_first(sample), names, &mut line),
            }
            writeln!(out, "{line} {}", options.kind.of(&sample.usage))?;
        }
        for row in &report.profile.not_observed {
            let bytes = options.kind.of(&row.usage);
            if bytes > 0 {
                line.clear();
                escape(&row.mapping, &mut line);
                writeln!(out, "[not observed: {line}] {bytes}")?;
            }
        }
        Ok(())
    }
}

fn outermost_first(sample: &Sample) -> impl Iterator<Item = &Frame> {
    sample.stack.frames.iter().rev()
}

fn fold<'a>(frames: impl Iterator<Item = &'a Frame>, names: Names<'_>, line: &mut String) {
    for (depth, frame) in frames.enumerate() {
        if depth > 0 {
            line.push(';');
        }
        match names.get(*frame) {
            None => line.push_str("[unknown]"),
            Some(name) => match name.function {
                Some(function) => escape(function, line),
                None => {
                    escape(name.executable, line);
                    line.push_str(&format!("+{:#x}", name.offset));
                }
            },
        }
    }
    if line.is_empty() {
        line.push_str("[no stack]");
    }
}

fn escape(name: &str, line: &mut String) {
    for c in name.chars() {
        match c {
            ';' => line.push_str("\\x3b"),
            '\\' => line.push_str("\\\\"),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
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
        let total = profile.total.value();
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&[(at(0, 1), "evil;na\nme\x1b", Language::Other)])),
            sequence: 1,
        };
        let text = written("folded", &report);
        let wanted = "[no stack] 4096\n\
            libc-2.31.so+0x10;[unknown];evil\\x3bna\\nme\\u{1b} 12288\n\
            [not observed: [heap]] 16384\n";
        assert_eq!(text, wanted);
        let sum: u64 = text
            .lines()
            .map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, total);
    }
}
