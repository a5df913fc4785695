use std::ops::Range;

use proptest::prelude::*;

use super::*;

const SPACE: usize = 64;

/// The naive model: a value per address.
type Model = Vec<Option<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Insert(Range<u64>, u8),
    Remove(Range<u64>),
    Move(Range<u64>, u64),
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..SPACE as u64, 0..24u64).prop_map(|(start, len)| start..(start + len).min(SPACE as u64))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (range(), 0..3u8).prop_map(|(r, v)| Op::Insert(r, v)),
        2 => range().prop_map(Op::Remove),
        1 => (range(), 0..SPACE as u64).prop_map(|(r, to)| {
            let room = SPACE as u64 - to;
            let len = (r.end - r.start).min(room);
            Op::Move(r.start..r.start + len, to)
        }),
    ]
}

fn fill(model: &mut Model, range: Range<u64>, value: Option<u8>) {
    for addr in range {
        model[addr as usize] = value;
    }
}

fn apply_to_model(model: &mut Model, op: &Op) {
    match op.clone() {
        Op::Insert(r, v) => fill(model, r, Some(v)),
        Op::Remove(r) => fill(model, r, None),
        Op::Move(from, to) => {
            let content: Model = model[from.start as usize..from.end as usize].to_vec();
            fill(model, from, None);
            for (i, value) in content.into_iter().enumerate() {
                model[to as usize + i] = value;
            }
        }
    }
}

fn apply(map: &mut RangeMap<u8>, op: &Op) -> Result<(), Full> {
    match op.clone() {
        Op::Insert(r, v) => map.insert(r, v),
        Op::Remove(r) => map.remove(r),
        Op::Move(from, to) => map.move_range(from, to),
    }
}

fn apply_to_set(set: &mut RangeSet, op: &Op) -> Result<(), Full> {
    match op.clone() {
        Op::Insert(r, _) => set.insert(r),
        Op::Remove(r) => set.remove(r),
        Op::Move(from, to) => set.move_range(from, to),
    }
}

/// Maximal runs of equal values: the expected content of the map.
fn runs(model: &Model) -> Vec<(Range<u64>, u8)> {
    let mut runs: Vec<(Range<u64>, u8)> = Vec::new();
    for (addr, value) in model.iter().enumerate() {
        let (addr, Some(value)) = (addr as u64, *value) else {
            continue;
        };
        match runs.last_mut() {
            Some((r, v)) if r.end == addr && *v == value => r.end += 1,
            _ => runs.push((addr..addr + 1, value)),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn map_equals_a_value_per_address(
        ops in proptest::collection::vec(op(), 0..40), cut in range(),
    ) {
        let (mut map, mut model) = (RangeMap::new(SPACE), vec![None; SPACE]);
        for op in &ops {
            prop_assert_eq!(apply(&mut map, op), Ok(()));
            apply_to_model(&mut model, op);
            let content: Vec<_> = map.iter().map(|(r, v)| (r, *v)).collect();
            prop_assert_eq!(content, runs(&model), "after {:?}", op);
        }
        prop_assert_eq!((map.iter().count(), map.dropped()), (runs(&model).len(), 0));
        for addr in 0..SPACE as u64 {
            let got = map.get(addr);
            prop_assert_eq!(got.as_ref().map(|(_, v)| **v), model[addr as usize]);
            prop_assert!(got.is_none_or(|(r, _)| r.contains(&addr)));
        }
        let mut part = vec![None; SPACE];
        fill(&mut part, cut.clone(), Some(0));
        for (slot, value) in part.iter_mut().zip(&model) {
            *slot = slot.and(*value);
        }
        let content: Vec<_> = map.overlapping(cut).map(|(r, v)| (r, *v)).collect();
        prop_assert_eq!(content, runs(&part));
    }

    #[test]
    fn a_full_map_forgets_and_says_so_but_is_never_wrong(
        ops in proptest::collection::vec(op(), 0..40), max in 0usize..6,
    ) {
        let (mut map, mut model) = (RangeMap::new(max), vec![None; SPACE]);
        let mut dropped = 0;
        for op in &ops {
            if let Err(full) = apply(&mut map, op) {
                prop_assert!(full.dropped > 0);
                dropped += full.dropped;
            }
            apply_to_model(&mut model, op);
            prop_assert!(map.iter().count() <= max);
            prop_assert_eq!(map.dropped(), dropped);
            for addr in 0..SPACE as u64 {
                match map.get(addr) {
                    Some((_, v)) => prop_assert_eq!(Some(*v), model[addr as usize]),
                    None if dropped == 0 => prop_assert_eq!(None, model[addr as usize]),
                    None => {}
                }
            }
        }
    }

    #[test]
    fn set_equals_a_bit_per_address(ops in proptest::collection::vec(op(), 0..40)) {
        let (mut set, mut model) = (RangeSet::new(SPACE), vec![None; SPACE]);
        for op in &ops {
            prop_assert_eq!(apply_to_set(&mut set, op), Ok(()));
            apply_to_model(&mut model, op);
        }
        let bits: Model = model.iter().map(|v| v.map(|_| 0)).collect();
        let content: Vec<_> = set.overlapping(0..u64::MAX).map(|r| (r, 0)).collect();
        prop_assert_eq!(content, runs(&bits));
        for addr in 0..SPACE as u64 {
            prop_assert_eq!(set.contains(addr), bits[addr as usize].is_some());
        }
    }
}

#[test]
fn the_ends_of_the_address_space() {
    let mut map = RangeMap::new(10);
    map.insert(0..u64::MAX, 1).unwrap();
    map.insert(u64::MAX - 4..u64::MAX, 2).unwrap();
    map.move_range(u64::MAX - 4..u64::MAX, u64::MAX - 2)
        .unwrap();
    assert_eq!(map.get(u64::MAX - 1), Some((u64::MAX - 2..u64::MAX, &2)));
    assert_eq!(map.get(u64::MAX), None);
    map.remove(0..u64::MAX).unwrap();
    assert_eq!(map.iter().count(), 0);
    #[allow(clippy::reversed_empty_ranges)]
    map.insert(5..3, 1).unwrap();
    assert_eq!(map.iter().count(), 0);
}

#[test]
fn a_full_set_keeps_the_longer_part() {
    let mut set = RangeSet::new(1);
    set.insert(0..100).unwrap();
    assert_eq!(set.insert(200..300), Err(Full { dropped: 1 }));
    assert_eq!(set.remove(10..20), Err(Full { dropped: 1 }));
    assert!(set.overlapping(0..u64::MAX).eq(std::iter::once(20..100)));
    assert_eq!(set.dropped(), 2);
    set.insert(100..120).unwrap();
    assert!(set.overlapping(0..u64::MAX).eq(std::iter::once(20..120)));
    assert_eq!(set.dropped(), 2);
}

#[test]
fn a_cleared_map_keeps_the_count_of_dropped_ranges() {
    let mut map = RangeMap::new(1);
    map.insert(0..100, 1).unwrap();
    assert_eq!(map.insert(200..300, 2), Err(Full { dropped: 1 }));
    map.clear();
    assert_eq!((map.iter().count(), map.dropped()), (0, 1));
}
