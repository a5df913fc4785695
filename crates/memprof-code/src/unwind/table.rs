//! A file's unwind table, and the packed form that the BPF program searches.

use super::rule::Rule;

/// End (exclusive) of the addresses in a table: 48 bits.
pub(super) const MAX_ADDRESS: u64 = 1 << 48;

/// The unwind rules of all code addresses of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The distinct rules, at most 65,535; rule 0 is [`Rule::NOT_COVERED`].
    pub rules: Vec<Rule>,
    /// The first address of each rule, sorted by address; adjacent rows have different rules. The last
    /// row has rule 0. Addresses before the first row are not covered.
    pub rows: Vec<RuleRow>,
}

/// A rule that applies from an address up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRow {
    /// An address in the file's own addresses (ELF virtual addresses).
    pub pc: u64,
    /// Index in [`Table::rules`].
    pub rule: u16,
}

/// A [`Table`] in the form that the BPF program searches: 4 bytes per row, divided into pages of 64 KiB of
/// addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// `rule << 16 | low 16 bits of the address`, sorted within each page. The first row of each
    /// page is at the page's first address.
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
    /// Number of rows, 1 to 65,536.
    pub count: u32,
}

impl Table {
    /// The rule that applies to an address.
    pub fn rule_at(&self, pc: u64) -> &Rule {
        let after = self.rows.partition_point(|r| r.pc <= pc);
        let row = after.checked_sub(1).and_then(|i| self.rows.get(i));
        row.and_then(|r| self.rules.get(usize::from(r.rule)))
            .unwrap_or(&Rule::NOT_COVERED)
    }

    /// The number of 64 KiB pages in the packed form.
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

    /// The rows whose rule is not 0, each with its end address.
    fn covered(&self) -> impl Iterator<Item = (&RuleRow, u64)> {
        let ends = self.rows.iter().skip(1).map(|r| r.pc);
        let ends = ends.chain(std::iter::once(MAX_ADDRESS));
        self.rows.iter().zip(ends).filter(|(r, _)| r.rule != 0)
    }

    /// Converts the table to the packed form.
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
    fn cover(&mut self, row: RuleRow, end: u64) {
        let mut pc = row.pc;
        while pc < end {
            let number = (pc >> 16) as u32;
            if self.pages.last().is_none_or(|p| p.number != number) {
                if row.rule == 0 {
                    // The rest up to `end` is not covered either.
                    return;
                }
                self.begin_page(number);
                if pc & 0xffff != 0 {
                    self.push(RuleRow {
                        pc: pc & !0xffff,
                        rule: 0,
                    });
                }
            }
            self.push(RuleRow { pc, rule: row.rule });
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

    fn push(&mut self, row: RuleRow) {
        self.rows
            .push(u32::from(row.rule) << 16 | (row.pc & 0xffff) as u32);
        if let Some(page) = self.pages.last_mut() {
            page.count += 1;
        }
    }

    /// The index of the rule that applies to an address, found as the BPF program finds it.
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
