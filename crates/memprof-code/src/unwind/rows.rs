//! Assembles rules, in address order, into a table.

use std::collections::HashMap;

use super::TableError;
use super::rule::Rule;
use super::spans::Span;
use super::table::{RuleRow, Table};

/// Maximum number of rows of a table.
const MAX_ROWS: usize = 16 << 20;
/// Maximum number of distinct rules of a table; real files have a few hundred.
const MAX_RULES: usize = u16::MAX as usize;
/// Slots of the small cache in front of the map of rules.
const RECENT: usize = 256;

const NOT_COVERED: u16 = 0;
const UNSUPPORTED: u16 = 1;

/// Builder of a table. Spans must be added in address order.
#[derive(Debug)]
pub struct Rows {
    table: Table,
    numbers: HashMap<Rule, u16>,
    recent: Box<[(Rule, u16); RECENT]>,
    /// Start and end of the current span.
    start: u64,
    end: u64,
}

impl Default for Rows {
    fn default() -> Self {
        Rows {
            table: Table {
                rules: vec![Rule::NOT_COVERED, Rule::UNSUPPORTED],
                rows: Vec::new(),
            },
            numbers: HashMap::from([(Rule::NOT_COVERED, 0), (Rule::UNSUPPORTED, UNSUPPORTED)]),
            recent: Box::new([(Rule::NOT_COVERED, 0); RECENT]),
            start: 0,
            end: 0,
        }
    }
}

impl Rows {
    /// Starts a span, whose rules follow.
    pub fn begin_span(&mut self, span: &Span) {
        if span.start > self.end {
            self.row(self.end, NOT_COVERED);
        }
        self.start = span.start;
        self.end = span.end;
    }

    /// Sets one rule for the whole span.
    pub fn cover(&mut self, span: &Span, rule: Rule) {
        let rule = self.number(rule);
        self.row(span.start, rule);
    }

    /// Adds a rule that applies from address `pc` of the span on; a `pc` before the span's start counts as the
    /// start. Returns whether more rules may be added to the span.
    pub fn push(&mut self, pc: u64, rule: Rule, end: u64) -> bool {
        if pc >= end {
            return false;
        }
        let rule = self.number(rule);
        self.row(pc.max(self.start), rule);
        self.table.rows.len() <= MAX_ROWS
    }

    /// Adds a row unless its rule equals that of the previous row; replaces a row at the same address.
    fn row(&mut self, pc: u64, rule: u16) {
        let rows = &mut self.table.rows;
        rows.pop_if(|last| last.pc == pc);
        let before = rows.last().map_or(NOT_COVERED, |r| r.rule);
        if before != rule {
            rows.push(RuleRow { pc, rule });
        }
    }

    fn number(&mut self, rule: Rule) -> u16 {
        let slot = slot(&rule);
        let (recent, number) = self.recent[slot];
        if recent == rule {
            return number;
        }
        let number = match self.numbers.get(&rule) {
            Some(number) => *number,
            None if self.table.rules.len() >= MAX_RULES => return UNSUPPORTED,
            None => {
                let number = self.table.rules.len() as u16;
                self.table.rules.push(rule);
                self.numbers.insert(rule, number);
                number
            }
        };
        self.recent[slot] = (rule, number);
        number
    }

    /// The table, and the number of code bytes with rule [`Rule::UNSUPPORTED`].
    pub fn finish(mut self) -> Result<(Table, u64), TableError> {
        self.row(self.end, NOT_COVERED);
        let rows = &self.table.rows;
        if rows.len() > MAX_ROWS {
            return Err(TableError::TooLarge("the number of rows"));
        }
        if rows.is_empty() {
            return Err(TableError::NoUnwindInformation);
        }
        let pairs = rows.windows(2).filter(|w| w[0].rule == UNSUPPORTED);
        let unsupported = pairs.map(|w| w[1].pc - w[0].pc).sum();
        self.table.rows.shrink_to_fit();
        Ok((self.table, unsupported))
    }
}

fn slot(rule: &Rule) -> usize {
    let fields = [
        u32::from(rule.cfa) << 8 | u32::from(rule.fp),
        rule.cfa_offset as u32,
        rule.fp_offset as u32,
    ];
    let mixed = fields.iter().fold(0u32, |h, f| {
        (h.rotate_left(5) ^ f).wrapping_mul(0x9e37_79b1)
    });
    (mixed >> 24) as usize
}
