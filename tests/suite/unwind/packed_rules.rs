//! The packed form contains the same rules as the table.

use std::collections::BTreeMap;

use proptest::prelude::*;

use memprof_code::unwind::{Rule, RuleRow, Table};

/// A table whose rules differ in their offset; rule 0 is "not covered".
fn table(starts: BTreeMap<u64, u16>) -> Table {
    let mut rows: Vec<RuleRow> = Vec::new();
    for (pc, rule) in starts {
        if rows.last().map_or(0, |r| r.rule) != rule {
            rows.push(RuleRow { pc, rule });
        }
    }
    let end = rows.last().map_or(0, |r| r.pc) + 0x23456;
    if rows.last().is_some_and(|r| r.rule != 0) {
        rows.push(RuleRow { pc: end, rule: 0 });
    }
    let rule = |n| Rule {
        cfa: u8::from(n > 0),
        cfa_offset: n,
        ..Rule::default()
    };
    Table {
        rules: (0..6).map(rule).collect(),
        rows,
    }
}

fn tables() -> impl Strategy<Value = Table> {
    // Gaps from one byte to several pages, so that there are full, sparse, single-rule and absent pages.
    let gap = prop_oneof![1u64..64, 60_000u64..70_000, Just(0x10000), 1u64..1_000_000];
    let steps = prop::collection::vec((gap, 0u16..6), 0..60);
    (0u64..0x30000, steps).prop_map(|(first, steps)| {
        let mut at = first;
        let rows = steps.into_iter().map(|(gap, rule)| {
            at += gap;
            (at, rule)
        });
        table(rows.collect())
    })
}

proptest! {
    #[test]
    fn the_packed_form_finds_the_same_rule(t in tables(), more in prop::collection::vec(0u64..1 << 26, 50)) {
        let packed = t.pack();
        let near = t.rows.iter().flat_map(|r| [r.pc.wrapping_sub(1), r.pc, r.pc + 1]);
        let pages = t.rows.iter().flat_map(|r| [r.pc & !0xffff, (r.pc | 0xffff) + 1]);
        for pc in near.chain(pages).chain(more) {
            let rule = &t.rules[usize::from(packed.rule_at(pc))];
            prop_assert_eq!(rule, t.rule_at(pc), "at {:#x}", pc);
        }
    }

    #[test]
    fn pages_have_the_promised_shape(t in tables()) {
        let packed = t.pack();
        prop_assert_eq!(packed.pages.len(), t.pages());
        let mut next = 0;
        for page in &packed.pages {
            prop_assert_eq!(page.first, next);
            next += page.count;
            let rows = &packed.rows[page.first as usize..next as usize];
            prop_assert_eq!(rows[0] & 0xffff, 0, "a page begins with its first address");
            prop_assert!(rows.windows(2).all(|w| w[0] & 0xffff < w[1] & 0xffff), "sorted");
            prop_assert!(rows.windows(2).all(|w| w[0] >> 16 != w[1] >> 16), "no rule twice");
            prop_assert!(rows.iter().any(|r| r >> 16 != 0), "absent if nothing is covered");
        }
        prop_assert_eq!(next as usize, packed.rows.len());
        prop_assert!(packed.pages.is_sorted_by(|a, b| a.number < b.number));
    }
}

#[test]
fn a_page_of_one_rule_has_one_row() {
    let t = table(BTreeMap::from([(0x8000, 1), (0x48000, 0)]));
    let packed = t.pack();
    let counts: Vec<u32> = packed.pages.iter().map(|p| p.count).collect();
    assert_eq!(counts, [2, 1, 1, 1, 2]);
    assert_eq!(packed.rows[0], 0);
    assert_eq!(packed.rows[1], 1 << 16 | 0x8000);
}
