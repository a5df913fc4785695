//! The errors of pages that have the nearest record's stack.

use super::*;
use crate::random;

/// How often a stack's pages are within 1.96 standard errors of its estimate: runs of pages of random stacks, of
/// `length` pages on average, of which one page in `interval` is recorded.
fn share_within_error(stacks: u64, length: u64, interval: u64) -> f64 {
    const PAGES: u64 = 12_000;
    const FIRST: u64 = 1024;
    let mut numbers = random::Random(11);
    let (mut within, mut all) = (0, 0);
    for _ in 0..8 {
        let mut owners = Vec::new();
        while owners.len() < PAGES as usize {
            let owner = 16 + numbers.below(stacks) as u32;
            owners.push(owner);
            while numbers.below(length) > 0 {
                owners.push(owner);
            }
        }
        owners.truncate(PAGES as usize);
        for _ in 0..12 {
            let mut world = World::new();
            world.sampled = true;
            for (page, owner) in (FIRST..).zip(&owners) {
                if numbers.below(interval) == 0 {
                    world.ledger.set(MM, page, *owner);
                }
            }
            let pages = FIRST..FIRST + PAGES;
            let totals = world.join(&[run(pages.clone(), PageKind::Anon, false)], &vma(pages));
            for stack in 16..16 + stacks as u32 {
                let truth = owners.iter().filter(|owner| **owner == stack).count() as f64;
                if truth < PAGES as f64 / 100.0 {
                    continue;
                }
                let is_it = |other: Option<StackId>| other == Some(StackId(stack));
                let borders = totals.borders.iter().filter(|((one, [a, b], _), _)| {
                    is_it(*one) != is_it(*a) && is_it(*a) == is_it(*b)
                });
                let variance: f64 = borders.map(|(_, variance)| variance).sum();
                let error = (stack_pages(&totals, stack) as f64 - truth).abs();
                within += u32::from(error <= 1.96 * variance.sqrt());
                all += 1;
            }
        }
    }
    f64::from(within) / f64::from(all)
}

#[test]
fn estimates_are_within_their_errors() {
    // 95 % in theory; with few borders, the errors are not normally distributed.
    for (stacks, length, interval) in [
        (20, 1, 4),
        (20, 1, 32),
        (2, 1, 8),
        (20, 8, 8),
        (20, 33, 8),
        (20, 33, 32),
        (20, 400, 16),
    ] {
        let share = share_within_error(stacks, length, interval);
        let what = format!("{stacks} stacks, {length} pages, 1/{interval}: {share:.3}");
        println!("{what}");
        assert!((0.91..=0.985).contains(&share), "{what}");
    }
}

#[test]
fn with_all_stacks_walked_nothing_is_uncertain() {
    let mut world = World::new();
    for page in 1000..1100 {
        world.ledger.set(MM, page, 16 + page as u32 % 3);
    }
    let pages = run(1000..1100, PageKind::Anon, false);
    assert_eq!(
        world.join(&[pages], &vma(900..1200)).borders.iter().count(),
        0
    );
    // The same if other faults were not walked.
    world.sampled = true;
    assert_eq!(
        world.join(&[pages], &vma(900..1200)).borders.iter().count(),
        0
    );
}

#[test]
fn the_only_record_of_a_mapping_says_little_of_its_other_pages() {
    let mut world = World::new();
    world.sampled = true;
    world.ledger.set(MM, 1010, 16);
    let totals = world.join(&[run(1000..1100, PageKind::Anon, false)], &vma(900..1200));
    assert_eq!(stack_pages(&totals, 16), 100);
    let borders: Vec<_> = totals.borders.iter().collect();
    let between = (Some(StackId(16)), [None; 2], PageKind::Anon);
    assert_eq!(borders, [(between, 100.0 + 89.0 * 89.0)]);
}
