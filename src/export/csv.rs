//! Comma-separated values, one row per stack: bytes of each kind (a column `NAME_bytes` for each of
//! [`Kind::SINGLE`]), how the walk ended (`outcome`), and the frames.
//!
//! `frames` is one cell, outermost function first unless asked
//! for otherwise, in the manner of folded stacks. Memory without a stack has `[not observed: MAPPING]`
//! there and the reason as its outcome. A cell that a spreadsheet could take for a formula begins
//! with an apostrophe.

use std::collections::HashMap;
use std::io::{self, Write};

use super::paths::labels;
use super::{ExportOptions, Exporter, Report, Supports, cells, folded};
use crate::profile::{Frame, Kind, Usage};
use crate::tree::{Direction, Names};

pub(super) struct Csv;

impl Exporter for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn extension(&self) -> &'static str {
        "csv"
    }

    fn content_type(&self) -> &'static str {
        "text/csv; charset=utf-8"
    }

    fn supports(&self) -> Supports {
        Supports {
            direction: true,
            instead: "Its columns and rows can be chosen from by whoever reads it.",
            ..Supports::default()
        }
    }

    fn write(
        &self,
        report: &Report,
        options: &ExportOptions,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let profile = &report.profile;
        let mut names = Cells::new(Names::new(profile, &report.symbols));
        let mut rows = cells::writer(out);
        let heads = Kind::SINGLE.map(|kind| format!("{}_bytes", kind.name()));
        let heads = heads.iter().map(String::as_str);
        rows.write_record(heads.chain(["outcome", "frames"]))
            .map_err(cells::failed)?;
        let mut row = |usage: &Usage, outcome: &str, frames: &str| {
            let bytes = Kind::SINGLE.map(|kind| kind.of(usage).to_string());
            let frames = cells::text(frames);
            let cells = bytes.iter().map(String::as_str).chain([outcome, &*frames]);
            rows.write_record(cells).map_err(cells::failed)
        };
        for sample in &profile.samples {
            let frames = names.frames(&sample.stack.frames, options.direction);
            row(&sample.usage, sample.stack.outcome.label(), frames)?;
        }
        for lost in &profile.not_observed {
            let name = labels::not_observed(lost);
            row(&lost.usage, lost.reason.label(), names.escaped(&name))?;
        }
        rows.flush()
    }
}

/// Makes the cells of stacks; each frame's name is looked up and escaped once.
struct Cells<'a> {
    names: Names<'a>,
    escaped: HashMap<Frame, String>,
    cell: String,
}

impl<'a> Cells<'a> {
    fn new(names: Names<'a>) -> Cells<'a> {
        Cells {
            names,
            escaped: HashMap::new(),
            cell: String::new(),
        }
    }

    fn escaped(&mut self, name: &str) -> &str {
        self.cell.clear();
        folded::escape(name, &mut self.cell);
        &self.cell
    }

    fn frames(&mut self, stack: &[Frame], direction: Option<Direction>) -> &str {
        if stack.is_empty() {
            return self.escaped(labels::NO_STACK);
        }
        self.cell.clear();
        match direction {
            Some(Direction::InnermostFirst) => stack.iter().for_each(|f| self.push(*f)),
            _ => stack.iter().rev().for_each(|f| self.push(*f)),
        }
        &self.cell
    }

    fn push(&mut self, frame: Frame) {
        if !self.cell.is_empty() {
            self.cell.push(';');
        }
        let names = self.names;
        let name = self.escaped.entry(frame).or_insert_with(|| {
            let mut escaped = String::new();
            folded::escape(&labels::frame(frame, names), &mut escaped);
            escaped
        });
        self.cell.push_str(name);
    }
}
