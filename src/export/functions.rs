//! Functions as comma-separated values: what each holds itself and with all it calls.
//!
//! One row per function of a file, largest total first; code of a file without symbols is one row
//! with an empty name. Memory that no function holds stands in rows at the end,
//! `[not observed: MAPPING]` and `[unknown]` (stacks that are empty or end in code of no known file),
//! so that `self_bytes` add up to the whole. A difference has the baseline's bytes in two more columns.
//! A cell that a spreadsheet could take for a formula begins with an apostrophe.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::paths::labels;
use super::{ExportOptions, Exporter, Report, Supports, cells, kinds, printable};
use crate::profile::{Kind, Profile};
use crate::symbol::Symbols;
use crate::tree::{self, Category};

pub(super) struct Functions;

impl Exporter for Functions {
    fn name(&self) -> &'static str {
        "functions"
    }

    fn about(&self) -> &'static str {
        "one row per function: what it holds itself, and with all it calls"
    }

    fn extension(&self) -> &'static str {
        "functions.csv"
    }

    fn content_type(&self) -> &'static str {
        "text/csv; charset=utf-8"
    }

    fn supports(&self) -> Supports {
        Supports {
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
        let mut table = Table::default();
        table.add(report, options.kind, |row| &mut row.now);
        if let Some(baseline) = &options.baseline {
            table.add(baseline, options.kind, |row| &mut row.before);
        }
        table.cut(options.threshold.unwrap_or_default());
        table.write(options.baseline.is_some(), out)
    }
}

/// What tells one row from another, in the order of rows of one size.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Function {
        file: String,
        name: String,
        whose: &'static str,
        /// Tells two files of one path apart.
        dev_ino: (u64, u64),
    },
    NotObserved(String),
    Unknown,
    UnderThreshold,
}

/// Bytes of a row.
#[derive(Clone, Copy, Default)]
struct Held {
    own: u64,
    total: u64,
}

impl Held {
    fn add(&mut self, other: Held) {
        self.own += other.own;
        self.total += other.total;
    }
}

#[derive(Clone, Copy, Default)]
struct Row {
    now: Held,
    before: Held,
}

#[derive(Default)]
struct Table(BTreeMap<Key, Row>);

impl Table {
    fn add(&mut self, report: &Report, kind: Kind, side: impl Fn(&mut Row) -> &mut Held) {
        let profile = kinds::only(&report.profile, kind);
        for (key, held) in held(&profile, &report.symbols) {
            side(self.0.entry(key).or_default()).add(held);
        }
    }

    /// Sums up the functions that held less both now and before.
    fn cut(&mut self, threshold: u64) {
        let mut rest = Row::default();
        self.0.retain(|key, row| {
            let keep = !matches!(key, Key::Function { .. })
                || row.now.total.max(row.before.total) >= threshold;
            if !keep {
                // Their totals hold each other's bytes: there is no sum of them.
                rest.now.own += row.now.own;
                rest.before.own += row.before.own;
            }
            keep
        });
        if rest.now.own + rest.before.own > 0 {
            self.0.insert(Key::UnderThreshold, rest);
        }
    }

    fn write(&self, difference: bool, out: &mut dyn Write) -> io::Result<()> {
        let mut rows: Vec<_> = self.0.iter().collect();
        // Stable: rows of one size stay in the order of their keys.
        rows.sort_by_key(|(key, row)| {
            let function = matches!(key, Key::Function { .. });
            (!function, Reverse((row.now.total, row.now.own)))
        });
        let mut cells = cells::writer(out);
        let before: &[&str] = match difference {
            true => &["self_before_bytes", "total_before_bytes"],
            false => &[],
        };
        let heads = ["self_bytes", "total_bytes"]
            .into_iter()
            .chain(before.iter().copied());
        cells
            .write_record(heads.chain(["function", "file", "category"]))
            .map_err(cells::failed)?;
        for (key, row) in rows {
            let mut bytes = vec![row.now.own, row.now.total];
            if difference {
                bytes.extend([row.before.own, row.before.total]);
            }
            let bytes = bytes.iter().map(u64::to_string);
            let words = key.words();
            let words = words.iter().map(|word| cells::text(word).into_owned());
            cells
                .write_record(bytes.chain(words))
                .map_err(cells::failed)?;
        }
        cells.flush()
    }
}

impl Key {
    /// Function, file, category.
    fn words(&self) -> [Cow<'_, str>; 3] {
        match self {
            Key::Function {
                file, name, whose, ..
            } => [printable(name), printable(file), Cow::Borrowed(whose)],
            Key::NotObserved(name) => [printable(name), "".into(), "".into()],
            Key::Unknown => ["[unknown]".into(), "".into(), "".into()],
            Key::UnderThreshold => ["[under threshold]".into(), "".into(), "".into()],
        }
    }
}

/// What every row of a profile holds.
fn held(profile: &Profile, symbols: &Symbols) -> Vec<(Key, Held)> {
    let found = tree::functions(profile, symbols);
    let mut unknown = found.unknown.value;
    let mut held: Vec<_> = found
        .rows
        .into_iter()
        .map(|row| {
            let module = profile.module(row.module);
            let key = Key::Function {
                file: module.map_or_else(String::new, |m| m.path.to_string_lossy().into_owned()),
                name: row.function.unwrap_or_default().to_owned(),
                whose: category(row.category),
                dev_ino: module.map_or((0, 0), |m| m.dev_ino),
            };
            let (own, total) = (row.own.value, row.total.value);
            (key, Held { own, total })
        })
        .collect();
    let alone = |bytes| Held {
        own: bytes,
        total: bytes,
    };
    for row in &profile.not_observed {
        let bytes = row.usage.value();
        if bytes > 0 {
            unknown -= bytes;
            held.push((Key::NotObserved(labels::not_observed(row)), alone(bytes)));
        }
    }
    if unknown > 0 {
        held.push((Key::Unknown, alone(unknown)));
    }
    held
}

fn category(category: Category) -> &'static str {
    match category {
        Category::OwnOther => "own",
        Category::OwnRust => "own, Rust",
        Category::Library => "library",
    }
}
