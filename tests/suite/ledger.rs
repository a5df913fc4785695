//! The page ledger's size: empty chunks and those of ended processes are freed.
//!
//! Needs root and `cc`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::common::workload::{Workload, program};
use ::memprof::probe::event::Event;
use ::memprof::probe::{Probe, ProbeConfig, Sweep};
use memprof_sys::ids::{MmId, StackId};

const CHUNK: u64 = 2 << 20;
const CHUNKS: u64 = 100;

fn follow(probe: &mut Probe, workload: &Workload) -> MmId {
    probe.follow(&[workload.pid()]).unwrap();
    let found = |event: Event| match event {
        Event::Process(e) if e.pid == workload.pid() => Some(e.mm),
        _ => None,
    };
    let events = probe.take_events().unwrap();
    events.into_iter().find_map(found).expect("it is followed")
}

/// A running program, and a probe that follows it.
fn followed(name: &str) -> (Workload, Probe) {
    let mut workload = Workload::start(&program(name));
    assert_eq!(workload.lines.line(), "ok");
    let mut probe = Probe::load(&ProbeConfig::default()).unwrap();
    probe.follow(&[workload.pid()]).unwrap();
    (workload, probe)
}

/// A complete sweep; returns the number of empty chunks.
fn sweep(probe: &Probe, sweep: &mut Sweep) -> usize {
    // The deadline has passed, so each call is one step.
    while !probe.sweep(sweep, Instant::now()).unwrap() {}
    sweep.empty()
}

fn reclaim(probe: &Probe) {
    assert!(probe.reclaim(Instant::now() + Duration::from_secs(30)));
}

/// The stacks whose records have come since the last call.
fn stacks(probe: &mut Probe) -> HashSet<StackId> {
    let events = probe.take_events().unwrap().into_iter();
    let seen = events.filter_map(|event| match event {
        Event::Stack(seen) => Some(seen.id),
        _ => None,
    });
    seen.collect()
}

/// Frees the stacks that no ledger refers to.
fn collect(probe: &mut Probe) -> HashSet<StackId> {
    let mut used = probe.begin_collection().unwrap();
    probe.mark_used(&mut used).unwrap();
    let mut freed = HashSet::new();
    probe.end_collection(Some(&used), |id| {
        freed.insert(id);
    });
    freed
}

/// Their records have more than the stack's id.
#[test]
fn stacks_of_pages_stay_as_long_as_the_pages() {
    let (mut workload, mut probe) = followed("moves");
    workload.lines.tell(&format!("anon 0 {CHUNK}"));
    stacks(&mut probe);
    workload.lines.tell(&format!("touch 0 0 {CHUNK}"));
    let touched = stacks(&mut probe);
    assert!(!touched.is_empty());
    assert_eq!(collect(&mut probe).intersection(&touched).count(), 0);
    workload.lines.tell(&format!("unmap 0 0 {CHUNK}"));
    assert_ne!(collect(&mut probe).intersection(&touched).count(), 0);
}

#[test]
fn memory_given_back_piece_by_piece_leaves_the_ledger() {
    let (mut workload, probe) = followed("moves");
    workload.lines.tell(&format!("anon 0 {}", CHUNKS * CHUNK));
    let mut each = |command: &str, rest: &str| {
        for n in 0..CHUNKS {
            workload
                .lines
                .tell(&format!("{command} 0 {} 8192{rest}", n * CHUNK + 4096));
        }
    };
    let mut search = Sweep::default();
    each("touch", "");
    let full = sweep(&probe, &mut search);
    let (chunks, _) = probe.page_chunks();
    each("advise", " 4");
    let mut search = Sweep::default();
    let empty = sweep(&probe, &mut search);
    assert!(
        empty as u64 >= full as u64 + CHUNKS - 1,
        "{empty} chunks are empty, {full} were"
    );
    assert_eq!(probe.page_chunks().0, chunks);
    // One chunk is in use again and stays; the others are freed.
    workload.lines.tell("touch 0 4096 4096");
    assert_eq!(sweep(&probe, &mut search), 0);
    assert_eq!(probe.page_chunks().0, chunks - (empty as u64 - 1));
    assert_eq!(sweep(&probe, &mut search), 0);
    let losses = probe.losses().counters;
    assert!(losses.is_empty(), "{losses:?}");
    workload.end();
}

/// Only the ended address space's entries are removed.
#[test]
fn an_ended_address_space_leaves_nothing_behind() {
    let mut probe = Probe::load(&ProbeConfig::default()).unwrap();
    let mut start = || {
        let mut workload = Workload::start(&program("spawner"));
        assert_eq!(workload.lines.line(), "ok");
        let mm = follow(&mut probe, &workload);
        (workload, mm)
    };
    let ((mut one, first), (mut other, second)) = (start(), start());
    // 40 GiB, a page every 8 MiB: 5,120 chunks.
    let sparse = format!("sparse {} {}", 40u64 << 30, 8 << 20);
    one.lines.tell(&sparse);
    other.lines.tell(&sparse);
    let (both, nodes) = (probe.page_chunks().0, probe.directory_nodes());
    assert!(both >= 2 * 5120, "{both} chunks");
    assert!(nodes >= 2 * 43, "{nodes} nodes");
    one.end();
    probe.forget_space(first);
    reclaim(&probe);
    let left = probe.page_chunks().0;
    assert!(both - left >= 5120, "{both} chunks, {left} left");
    assert!(left >= 5120, "{both} chunks, {left} left");
    assert_eq!(left, probe.count_page_chunks());
    other.end();
    probe.forget_space(second);
    reclaim(&probe);
    assert_eq!((probe.page_chunks().0, probe.count_page_chunks()), (0, 0));
    assert_eq!(probe.directory_nodes(), 0);
}

/// Memory that is mapped at new addresses and unmapped leaves nothing in the ledger or its directory.
#[test]
fn the_directory_does_not_grow_with_what_is_gone() {
    let (mut workload, probe) = followed("spawner");
    let mut held = |n: u32| {
        workload.lines.tell(&format!("scatter {n}"));
        (probe.page_chunks().0, probe.directory_nodes())
    };
    let few = held(3);
    let many = held(2000);
    assert!(
        many.0 <= few.0 + 2 && many.1 <= few.1 + 4,
        "{few:?}, after 2,000 more {many:?}"
    );
    workload.end();
}

/// The cost of a huge reservation depends on its resident pages. Its records move with it, and are removed when it is
/// unmapped.
#[test]
fn a_large_reservation_is_gone_through_by_what_it_holds() {
    const RESERVED: u64 = 1 << 43;
    const TOUCHED: u64 = 64;
    let (mut workload, probe) = followed("moves");
    let mut chunks = |commands: &[String]| {
        commands.iter().for_each(|c| workload.lines.tell(c));
        (probe.page_chunks().0, probe.directory_nodes())
    };
    let before = chunks(&[format!("reserve 0 {RESERVED}")]);
    let touch = |n| format!("touch 0 {} 4096", n * (RESERVED / TOUCHED));
    let touches: Vec<String> = (0..TOUCHED).map(touch).collect();
    let full = chunks(&touches);
    assert!(full.0 >= before.0 + TOUCHED, "{before:?}, {full:?}");
    let moved = chunks(&["move 0".into()]);
    // The stack may have grown into another chunk.
    assert!(moved.0 - full.0 <= 2, "{full:?}, {moved:?}");
    assert!(moved.1 <= full.1 + 4, "{full:?}, {moved:?}");
    let gone = chunks(&[format!("unmap 0 0 {RESERVED}")]);
    assert!(moved.0 - gone.0 >= TOUCHED, "{moved:?}, {gone:?}");
    assert!(moved.1 - gone.1 >= TOUCHED as usize, "{moved:?}, {gone:?}");
    workload.end();
}
