//! The tree's other reading: functions, wherever they stand.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::{Amount, Category, Names};
use crate::profile::{Frame, FrameKind, ModuleId, Profile};
use crate::symbol::Symbols;

/// A function with the bytes it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRow<'a> {
    /// The file that holds the function.
    pub module: ModuleId,
    /// Base name of that file.
    pub executable: &'a str,
    /// Demangled name; `None` gathers the file's code without a symbol.
    pub function: Option<&'a str>,
    /// Whose code it is.
    pub category: Category,
    /// Bytes of stacks whose innermost frame is in the function.
    pub own: Amount,
    /// Bytes of stacks that pass through the function; a recursive one counts each byte once.
    pub total: Amount,
}

/// Every function of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions<'a> {
    /// Functions by `total` descending, then `own` descending, then executable and name.
    pub rows: Vec<FunctionRow<'a>>,
    /// Bytes that no function owns: stacks that were not observed, are empty, or whose innermost
    /// frame resolves to nothing. The sum of all `own` and this is the profile's total.
    pub unknown: Amount,
}

/// Merges the profile by (module, function name).
///
/// Inlined functions count with the function whose code holds them.
pub fn functions<'a>(profile: &'a Profile, symbols: &'a Symbols) -> Functions<'a> {
    let mut table = Table::new(Names::new(profile, symbols));
    let mut unknown = Amount::default();
    for row in &profile.not_observed {
        unknown += Amount::from(&row.usage);
    }
    for (number, sample) in profile.samples.iter().enumerate() {
        let amount = Amount::from(&sample.usage);
        if amount.value == 0 {
            continue;
        }
        match sample.stack.frames.first().and_then(|f| table.row(*f)) {
            Some(row) => table.rows[row].own += amount,
            None => unknown += amount,
        }
        for frame in &sample.stack.frames {
            table.pass(*frame, number, amount);
        }
    }
    let mut rows = table.rows;
    rows.sort_by(|a, b| order(a).cmp(&order(b)));
    Functions { rows, unknown }
}

type Order<'a> = (
    Reverse<u64>,
    Reverse<u64>,
    &'a str,
    Option<&'a str>,
    ModuleId,
);

fn order<'a>(row: &FunctionRow<'a>) -> Order<'a> {
    (
        Reverse(row.total.value),
        Reverse(row.own.value),
        row.executable,
        row.function,
        row.module,
    )
}

struct Table<'a> {
    names: Names<'a>,
    rows: Vec<FunctionRow<'a>>,
    /// Per row, the last sample that was counted in its total.
    counted: Vec<Option<usize>>,
    by_frame: HashMap<Frame, Option<usize>>,
    by_function: HashMap<(ModuleId, Option<&'a str>), usize>,
}

impl<'a> Table<'a> {
    fn new(names: Names<'a>) -> Table<'a> {
        Table {
            names,
            rows: Vec::new(),
            counted: Vec::new(),
            by_frame: HashMap::new(),
            by_function: HashMap::new(),
        }
    }

    /// The row of the frame's function; `None` when the frame resolves to nothing.
    fn row(&mut self, frame: Frame) -> Option<usize> {
        if let Some(row) = self.by_frame.get(&frame) {
            return *row;
        }
        let row = self.new_row(frame);
        self.by_frame.insert(frame, row);
        row
    }

    fn new_row(&mut self, frame: Frame) -> Option<usize> {
        let FrameKind::Code(module, _) = frame.kind() else {
            return None;
        };
        let name = self.names.get(frame)?;
        let (rows, counted) = (&mut self.rows, &mut self.counted);
        let row = self.by_function.entry((module, name.function));
        Some(*row.or_insert_with(|| {
            rows.push(FunctionRow {
                module,
                executable: name.executable,
                function: name.function,
                category: name.category,
                own: Amount::default(),
                total: Amount::default(),
            });
            counted.push(None);
            rows.len() - 1
        }))
    }

    /// Counts a sample in the total of a function it passes through, once.
    fn pass(&mut self, frame: Frame, sample: usize, amount: Amount) {
        if let Some(row) = self.row(frame)
            && self.counted[row].replace(sample) != Some(sample)
        {
            self.rows[row].total += amount;
        }
    }
}
