//! A file's unwind table, and the form of it that is searched in the kernel.

use super::rule::Rule;

/// The end of the addresses a table can hold: 48 bits.
pub(super) const MAX_ADDRESS: u64 = 1 << 48;

/// How every code address of an ELF file is unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The distinct rules, at most 65,535; rule 0 is [`Rule::NOT_COVERED`].
    pub rules: Vec<Rule>,
    /// Where each rule begins to hold: sorted by address, no two neighbours with the same rule. The
    /// last row is one of rule 0. Addresses before the first row are not covered.
    pub rows: Vec<Row>,
}

/// From this address on, up to the next row, this rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// An address in the file's own addresses (ELF virtual addresses).
    pub pc: u64,
    /// Index in [`Table::rules`].
    pub rule: u16,
}

/// A [`Table`] in the form that is searched in the kernel: 4 bytes a row, cut into pages of 64 KiB
/// of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// `rule << 16 | low 16 bits of the address`, sorted inside each page. The first row of each
    /// page stands at the page's first address.
    pub rows: Vec<u32>,
    /// The pages, sorted by number. A page that is absent is not covered at all.
    pub pages: Vec<Page>,
}

/// 64 KiB of addresses and the rows that cover them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Address divided by 65,536.
    pub number: u32,
    /// Index in [`Packed::rows`] of its first row.
    pub first: u32,
    /// How many rows it has; at least 1, at most 65,536.
    pub count: u32,
}

impl Table {
    /// The rule that holds at an address.
    pub fn rule_at(&self, pc: u64) -> &Rule {
        let after = self.rows.partition_point(|r| r.pc <= pc);
        let row = after.checked_sub(1).and_then(|i| self.rows.get(i));
        row.and_then(|r| self.rules.get(usize::from(r.rule)))
            .unwrap_or(&Rule::NOT_COVERED)
    }

    /// How many 64 KiB pages [`Table::pack`] makes.
    pub fn pages(&self) -> usize {
        let mut pages = 0;
        let mut next = 0;
        for (row, end) in self.covered() {
            let (first, last) = (row.pc >> 16, (end - 1) >> 16);
            let from = first.max(next);
            pages += (last + 1).saturating_sub(from);
            next = last + 1;
        }
        pages as usize
    }

    /// The rows that cover something, each with the address it ends at.
    fn covered(&self) -> impl Iterator<Item = (&Row, u64)> {
        let ends = self.rows.iter().skip(1).map(|r| r.pc);
        let ends = ends.chain(std::iter::once(MAX_ADDRESS));
        self.rows.iter().zip(ends).filter(|(r, _)| r.rule != 0)
    }

    /// The form that is searched in the kernel.
    pub fn pack(&self) -> Packed {
        let mut packed = Packed {
            rows: Vec::with_capacity(self.rows.len() + self.rows.len() / 8 + 16),
            pages: Vec::new(),
        };
        let ends = self.rows.iter().skip(1).map(|r| r.pc);
        let ends = ends.chain(std::iter::once(MAX_ADDRESS));
        for (row, end) in self.rows.iter().zip(ends) {
            packed.cover(*row, end);
        }
        packed
    }
}

impl Packed {
    fn cover(&mut self, row: Row, end: u64) {
        let mut pc = row.pc;
        while pc < end {
            let number = (pc >> 16) as u32;
            if self.pages.last().is_none_or(|p| p.number != number) {
                if row.rule == 0 {
                    // What follows up to the end is not covered either.
                    return;
                }
                self.begin_page(number);
                if pc & 0xffff != 0 {
                    self.push(Row {
                        pc: pc & !0xffff,
                        rule: 0,
                    });
                }
            }
            self.push(Row { pc, rule: row.rule });
            pc = (pc & !0xffff) + 0x1_0000;
        }
    }

    fn begin_page(&mut self, number: u32) {
        self.pages.push(Page {
            number,
            first: self.rows.len() as u32,
            count: 0,
        });
    }

    fn push(&mut self, row: Row) {
        self.rows
            .push(u32::from(row.rule) << 16 | (row.pc & 0xffff) as u32);
        if let Some(page) = self.pages.last_mut() {
            page.count += 1;
        }
    }

    /// The index of the rule that holds at an address, found as the kernel finds it.
    pub fn rule_at(&self, pc: u64) -> u16 {
        let Ok(page) = self
            .pages
            .binary_search_by_key(&(pc >> 16), |p| u64::from(p.number))
        else {
            return 0;
        };
        let page = self.pages[page];
        let rows = &self.rows[page.first as usize..][..page.count as usize];
        let after = rows.partition_point(|r| u64::from(r & 0xffff) <= pc & 0xffff);
        after.checked_sub(1).map_or(0, |i| (rows[i] >> 16) as u16)
    }

    /// Size of the rows and pages, in bytes.
    pub fn size(&self) -> usize {
        size_of_val(self.rows.as_slice()) + size_of_val(self.pages.as_slice())
    }
}
