//! The error of pages that have the nearest record's stack: where between two records one stack's pages end and the
//! other's begin is not known.
//!
//! The error of a sum of stacks (a stack, a function, a node of a tree) depends on where the records go into the sum and
//! out of it, whichever stacks they name. With N pages from one record to the next on average:
//!
//! - A border between a record in the sum and one outside is anywhere between the two: gap² / 12, which is N² / 2 on
//!   average, because a longer gap is more likely to contain a border.
//! - A record that is alone in the sum, or alone outside, stands for pages of which other runs may have had no record by
//!   chance: N² / 2 more.
//! - In each mapping, some stack may have no record at all: N², once, for all that contains the last record's stack.
//!
//! Where each record has another stack, this is the variance 1.5 N² of the size of a random cell; where stacks change
//! rarely, it is that of the borders alone. In simulations (runs of 1 to 4,000 pages of 2 to 60 stacks, each page
//! recorded with probability 1/4 to 1/32), 93 to 97 % of the stacks were within 1.96 standard errors.

use std::collections::VecDeque;
use std::ops::Range;

use crate::event::StackId;
use crate::residency::PageKind;
use crate::source::Borders;

/// On each side, so many gaps are looked at to judge one.
const AROUND: usize = 4;

/// One half, and a little more because the distance is known from few records.
const HALF: f64 = 0.53;

/// Two neighbouring records, and the pages between them that have no record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Their stacks; `None` at the start and at the end of a mapping.
    pub(super) stacks: [Option<StackId>; 2],
    /// What the pages between them count as.
    pub(super) kind: PageKind,
    /// Their number.
    pub(super) pages: u64,
}

impl Gap {
    fn is_border(&self) -> bool {
        self.stacks[0] != self.stacks[1]
    }
}

/// The gaps of one mapping, in order of address; those that can still matter.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    recent: VecDeque<Gap>,
    /// The next of them to be judged.
    next: usize,
    /// The pages before the first record.
    start: Option<Gap>,
    /// If the last judged gap was a border: the stack before it, and the squared distance of records around it.
    before: Option<(Option<StackId>, f64)>,
    /// Number of gaps so far, and the pages in them.
    number: u64,
    pages: u64,
}

impl Gaps {
    /// Adds the next gap.
    pub(super) fn add(&mut self, gap: Gap, to: &mut Borders) {
        if gap.stacks[0].is_none() {
            self.start = Some(gap);
            return;
        }
        self.number += 1;
        self.pages += gap.pages;
        self.recent.push_back(gap);
        if self.recent.len() > self.next + AROUND {
            self.judge_next(to);
        }
        if self.recent.len() > 2 * AROUND {
            self.recent.pop_front();
            self.next -= 1;
        }
    }

    /// Adds neighbouring pages with records of one stack, each of its own fault.
    pub(super) fn add_same(
        &mut self,
        stack: StackId,
        kind: PageKind,
        pages: u64,
        to: &mut Borders,
    ) {
        // More of them would only displace each other.
        for _ in 0..pages.min(2 * AROUND as u64 + 1) {
            let stacks = [Some(stack); 2];
            self.add(
                Gap {
                    stacks,
                    kind,
                    pages: 0,
                },
                to,
            );
        }
    }

    /// Ends the mapping; `end` are the pages after its last record.
    pub(super) fn end(&mut self, end: Gap, to: &mut Borders) {
        self.judge_start(to);
        while self.next < self.recent.len() {
            self.judge_next(to);
        }
        // A stack may have pages here and no record: about as many as there are from one record to the next.
        let pages = self.pages as f64 / self.number.max(1) as f64;
        to.add(end.stacks[0], [None; 2], end.kind, pages * (pages + 1.0));
        let last = self.recent.len().saturating_sub(2 * AROUND);
        self.add_end(end, last..self.recent.len(), to);
        *self = Gaps::default();
    }

    fn judge_start(&mut self, to: &mut Borders) {
        if let Some(start) = self.start.take() {
            self.add_end(start, 0..self.recent.len(), to);
        }
    }

    fn judge_next(&mut self, to: &mut Borders) {
        if self.next == AROUND {
            self.judge_start(to);
        }
        let at = self.next;
        self.next += 1;
        let gap = self.recent[at];
        let before = self.before.take();
        if !gap.is_border() {
            return;
        }
        let around = at.saturating_sub(AROUND)..self.recent.len().min(at + AROUND + 1);
        let around = self.recent.range(around);
        let number = around.len() as f64 - 1.0;
        // N² by the gaps around this one, which is longer because a border is in it. Their squares, which are 2 N² on
        // average, also serve where records are dense in one place and rare in another.
        let square = |gap: &Gap| (gap.pages * (gap.pages + 1)) as f64 / 2.0;
        let squares: f64 = around.clone().map(square).sum();
        let squared = (squares - square(&gap)) / number.max(1.0);
        let variance = match around.filter(|gap| gap.is_border()).count() {
            1 => uniform(gap.pages),
            _ => squared * HALF,
        };
        let [one, other] = gap.stacks;
        to.add(one, [other; 2], gap.kind, variance);
        if let Some((other, squared_before)) = before {
            let squared = (squared + squared_before) / 2.0;
            to.add(one, [other, gap.stacks[1]], gap.kind, squared * HALF);
        }
        self.before = Some((one, squared));
    }

    /// Pages at an end of the mapping have only one record beside them. How often the stacks change there says how
    /// likely they belong to another one: the nearest other stack, or none that is known.
    fn add_end(&self, end: Gap, near: Range<usize>, to: &mut Borders) {
        let is_start = end.stacks[0].is_none();
        let near = self.recent.range(near);
        let (number, pages) = (near.len(), end.pages as f64);
        let mut borders = near.filter(|gap| gap.is_border());
        let (variance, other) = match borders.clone().count() {
            _ if number == 0 => (pages * pages, None),
            many => {
                let share = many as f64 / number as f64;
                let other = match is_start {
                    true => borders.next().and_then(|gap| gap.stacks[1]),
                    false => borders.next_back().and_then(|gap| gap.stacks[0]),
                };
                (pages * (pages + 2.0) / 2.0 * share, other)
            }
        };
        let one = end.stacks[usize::from(is_start)];
        to.add(one, [other; 2], end.kind, variance);
    }
}

/// The variance of a border that is anywhere among so many pages.
fn uniform(pages: u64) -> f64 {
    let pages = pages as f64;
    pages * (pages + 2.0) / 12.0
}
