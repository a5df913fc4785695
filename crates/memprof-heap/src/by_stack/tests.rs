use std::collections::HashMap;

use super::super::all_heaps::AllHeaps;
use super::super::memory::overlapping;
use super::super::source::Source;
use super::super::types::Census;
use super::super::{glibc, ledger, reach, synthetic};
use super::testing::*;
use super::*;
use memprof_sys::residency::Category;

const SMALL: HeapParameters = HeapParameters {
    chunks: 200,
    stacks: 5,
    free: 30,
    absent: 15,
    lost: 10,
    size: 2000,
    jemalloc: true,
};

pub(super) fn name(stack: StackId) -> String {
    format!("main;f{}", stack.0)
}

pub(super) fn samples(kept: Vec<HeapSample>, from_start: bool) -> HeapSamples {
    HeapSamples {
        kept,
        origin: Origin {
            from_start,
            interval: None,
        },
        lost: 0,
        unsent: 0,
    }
}

/// Reachable, unreachable and pinned bytes of each stack, counted chunk by chunk and page by page. Pinned bytes are
/// not rounded.
fn truth(made: &SyntheticHeap) -> HashMap<String, (u64, u64, f64)> {
    let pages: Vec<_> = made
        .snapshot
        .pages
        .readable
        .iter()
        .filter(|run| run.resident)
        .copied()
        .collect();
    let within = |start, end| -> u64 { overlapping(&pages, start, end).map(|run| run.len()).sum() };
    let mut on_page: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
    let mut held: HashMap<String, (u64, u64, f64)> = HashMap::new();
    for (index, owned) in made.owned.iter().enumerate() {
        let start = owned.start - owned.header;
        let resident = within(start, owned.end);
        let row = held.entry(name(owned.stack)).or_default();
        *if owned.lost { &mut row.1 } else { &mut row.0 } += resident;
        for page in start / PAGE..owned.end.div_ceil(PAGE) {
            let (from, to) = (start.max(page * PAGE), owned.end.min((page + 1) * PAGE));
            let bytes = within(from, to);
            if bytes > 0 {
                on_page.entry(page).or_default().push((index, bytes));
            }
        }
    }
    let mut free_on: HashMap<u64, u64> = HashMap::new();
    for (start, end) in free(made) {
        for page in start / PAGE..end.div_ceil(PAGE) {
            *free_on.entry(page).or_default() +=
                within(start.max(page * PAGE), end.min((page + 1) * PAGE));
        }
    }
    for (page, owners) in on_page {
        let live: u64 = owners.iter().map(|(_, bytes)| bytes).sum();
        let free = free_on.get(&page).copied().unwrap_or(0) as f64;
        for (index, bytes) in owners {
            held.get_mut(&name(made.owned[index].stack)).unwrap().2 +=
                free * bytes as f64 / live as f64;
        }
    }
    held
}

/// The free contents of a heap.
fn free(made: &SyntheticHeap) -> Vec<(u64, u64)> {
    let mut free = Vec::new();
    let mut next = made.heaps.first();
    while let Some(place) = next {
        let kind = made.heaps.kind(place);
        if !kind.is_live() {
            free.push(made.heaps.contents(place));
        }
        next = made.heaps.next(place);
    }
    let extents = made
        .heaps
        .jemalloc
        .iter()
        .flat_map(|heap| &heap.regions.extents);
    free.extend(extents.filter(|e| e.count == 0).map(|e| (e.start, e.end)));
    free
}

/// If every allocation is sampled, nothing is estimated.
#[test]
fn a_complete_list_gives_what_is_counted() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let made = SyntheticHeap::new(&SMALL, &mut random);
        for from_start in [true, false] {
            let list = samples(made.samples(0, &mut random), from_start);
            let joint = made.join(&list);
            let shown = joint.by_stack(name, &[], 1000);
            assert_eq!(
                (shown.samples.joined, shown.samples.gone),
                (made.owned.len() as u64, 0)
            );
            let truth = truth(&made);
            assert_eq!(shown.rows.len(), truth.len());
            for row in &shown.rows {
                let (reachable, lost, pinned) = truth[&row.stack];
                let found = (row.resident.bytes, row.unreachable.bytes);
                assert_eq!(found, (reachable, lost), "{seed} {row:?}");
                // The shares of each page are rounded to whole bytes.
                let most = 2.0 * made.owned.len() as f64;
                assert!(
                    (row.pinned.bytes as f64 - pinned).abs() < most.min(1.0 + pinned * 0.02),
                    "{pinned} {row:?}"
                );
                let of = made
                    .owned
                    .iter()
                    .filter(|owned| name(owned.stack) == row.stack);
                assert_eq!(row.live.bytes, of.map(|owned| owned.requested).sum::<u64>());
                let errors =
                    [row.live, row.resident, row.unreachable].map(|estimate| estimate.error);
                assert_eq!(errors, [0; 3], "{row:?}");
            }
            assert_eq!(
                (shown.sum(), shown.total),
                (made.resident(), made.resident())
            );
        }
    }
}

/// For any samples, no byte is lost or counted twice.
#[test]
fn all_rows_add_up() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..4000 {
        let mut random = Random(seed + 1_000_000);
        let wanted = HeapParameters {
            chunks: random.below(120),
            stacks: 1 + random.below(9),
            free: random.below(100),
            absent: random.below(100),
            lost: random.below(60),
            size: 16 << random.below(9),
            jemalloc: random.below(2) == 0,
        };
        let made = SyntheticHeap::new(&wanted, &mut random);
        let interval = 1 << random.below(20);
        let mut kept = made.samples(interval, &mut random);
        for _ in 0..random.below(20) {
            let near = made
                .owned
                .get(random.below(made.owned.len() as u64) as usize);
            let near = near.map_or(0, |owned| owned.start);
            kept.push(HeapSample {
                address: near.wrapping_add(random.below(300)),
                size: random.below(400) << random.below(20),
                weight: random.next() >> random.below(64),
                stack: StackId(random.below(20) as u32),
            });
        }
        let given = kept.len() as u64;
        let list = HeapSamples {
            kept,
            origin: Origin {
                from_start: random.below(3) > 0,
                interval: [None, Some(0), Some(interval)][random.below(3) as usize],
            },
            lost: random.below(4) / 3,
            unsent: random.below(2),
        };
        let joint = made.join(&list);
        let owners = [
            (Some("a".to_owned()), random.below(1000)),
            (None, random.below(2)),
        ];
        let top = random.below(12) as usize;
        let shown = joint.by_stack(name, &owners[..random.below(3) as usize], top);
        assert_eq!(
            (shown.sum(), shown.total),
            (made.resident(), made.resident()),
            "{seed} {wanted:?}"
        );
        let counts = shown.samples;
        assert_eq!(counts.joined + counts.gone + counts.empty, given);
        assert!(
            shown
                .rows
                .iter()
                .all(|row| row.overhead <= row.resident.bytes)
        );
        kinds.extend(shown.rest.iter().map(|row| row.kind));
        let mut text = Vec::new();
        shown.write_text(&mut text, top).unwrap();
        assert!(
            !String::from_utf8(text)
                .unwrap()
                .contains("which the rows are not")
        );
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

/// Chunks that only unreachable chunks lead to are listed under their own stacks, with their head.
#[test]
fn what_leads_to_unreachable_chunks_is_named() {
    let (snapshot, first) = synthetic::chain(4);
    let heap = glibc::read(&snapshot).unwrap();
    let mut heaps = AllHeaps::new(heap, None);
    let of = |number: u64, stack| HeapSample {
        address: first + 32 * number,
        size: 20,
        weight: 20,
        stack: StackId(stack),
    };
    let list = samples(
        [(4, 0), (5, 1), (6, 1), (7, 0), (8, 1)]
            .map(|(n, stack)| of(n, stack))
            .to_vec(),
        true,
    );
    let mut census = Census::new(Source::Nothing, &snapshot, 3);
    census.heads = Heads::new(&place(&heaps, None, &list).0);
    let lost = reach::search(&snapshot, &mut heaps, &mut census, 3);
    assert_eq!((lost.chunks, lost.heads.len()), (5, 1));
    let heads = std::mem::take(&mut census.heads);
    let categories = vec![Category::Heap; snapshot.vmas.len()];
    let shown = ledger::join(&snapshot, &heaps, &categories, &list, heads).by_stack(name, &[], 9);
    let leaks: Vec<_> = shown
        .leaks
        .iter()
        .map(|row| {
            (
                row.stack.as_str(),
                row.head.clone(),
                row.unreachable.bytes,
                row.samples,
            )
        })
        .collect();
    let f0 = || HeadOf::Stack("main;f0".to_owned());
    assert_eq!(
        leaks,
        [
            ("main;f1", f0(), 96, 3),
            ("main;f0", HeadOf::Itself, 32, 1),
            ("main;f0", f0(), 32, 1),
        ]
    );
    assert!(shown.leaks.iter().all(|row| row.example == first + 4 * 32));
    // None of the five samples is of a reachable chunk, and the heap has reachable ones.
    assert!(
        shown
            .rest
            .iter()
            .any(|row| row.kind == RestKind::TooFewSamples && !row.unreachable)
    );
    // With fewer samples than shares need, the samples are listed, and no bytes are claimed.
    let (snapshot, _) = synthetic::chain(4);
    let mut heaps = AllHeaps::new(glibc::read(&snapshot).unwrap(), None);
    let list = samples(vec![of(6, 1)], true);
    let mut census = Census::new(Source::Nothing, &snapshot, 3);
    census.heads = Heads::new(&place(&heaps, None, &list).0);
    reach::search(&snapshot, &mut heaps, &mut census, 3);
    let heads = std::mem::take(&mut census.heads);
    let shown = ledger::join(&snapshot, &heaps, &categories, &list, heads).by_stack(name, &[], 9);
    assert_eq!(
        (shown.leaks[0].head.clone(), shown.leaks[0].unreachable),
        (HeadOf::NotSampled, Estimated::default())
    );
    assert_eq!(
        (shown.rows[0].unreachable_samples, shown.rows[0].total()),
        (1, 0)
    );
}
