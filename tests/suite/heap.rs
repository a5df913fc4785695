//! Heap snapshots against the allocator's own figures (`mallinfo2`) and the kernel's.
//!
//! Needs root, and a compiler.

mod busy_targets;
mod by_stack;
mod chroots;
mod command;
mod command_signals;
mod cores;
mod declared;
mod disturbed;
mod fork;
pub mod glibc;
mod headroom;
mod http;
mod jemalloc;
mod memory_not_forked;
mod mimalloc;
mod namespaces;
mod other_allocators;
mod page_owners;
mod python;
mod python_holders;
mod seccomp;
mod spans;
mod types;
mod unreachable;
mod verdict;
mod zeroes;

use memprof_heap::{Cell, Heap, RegionRow, SnapshotOptions};
use memprof_sys::ids::Pid;

/// A snapshot, for which memprof's guard stops the process.
fn measure(pid: Pid, options: &SnapshotOptions, top: usize) -> anyhow::Result<Heap> {
    memprof_sys::freeze::guards_run(crate::common::binary::MEMPROF.into());
    memprof_heap::measure(pid, options, top)
}

/// The heap by address has the bytes of the heap's rows, each where it is said to be.
#[track_caller]
fn map_adds_up(heap: &Heap) {
    let sum = |of: fn(&RegionRow) -> u64, wanted: fn(&RegionRow) -> bool| -> u64 {
        heap.rows.iter().filter(|row| wanted(row)).map(of).sum()
    };
    let cells = || heap.map.ranges.iter().flat_map(|range| &range.cells);
    let own = |row: &RegionRow| row.what.is_overhead();
    let live = |row: &RegionRow| row.what.is_live();
    let resident = |row: &RegionRow| row.resident;
    assert_eq!(
        cells().map(|c| c.bytes).sum::<u64>(),
        sum(|row| row.bytes, |_| true)
    );
    assert_eq!(cells().map(|c| c.live).sum::<u64>(), sum(resident, live));
    assert_eq!(cells().map(|c| c.own).sum::<u64>(), sum(resident, own));
    let free = sum(resident, |row| {
        !row.what.is_live() && !row.what.is_overhead()
    });
    assert_eq!(cells().map(|c| c.free).sum::<u64>(), free);
    let within =
        |cell: &Cell| cell.live + cell.free + cell.own <= cell.bytes && cell.bytes <= heap.map.cell;
    assert!(cells().all(within), "{:?}", heap.map);
    let mut ranges = heap.map.ranges.windows(2);
    assert!(
        ranges.all(|two| two[0].start + two[0].cells.len() as u64 * heap.map.cell < two[1].start)
    );
}
