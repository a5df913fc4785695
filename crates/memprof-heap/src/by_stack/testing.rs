//! Synthetic heaps with known owners, and samples of them.

use super::super::all_heaps::AllHeaps;
use super::super::chunks::{ChunkKind, Chunks};
use super::super::glibc::{ArenaPart, Heap, Mallinfo, Mmapped};
use super::super::jemalloc::{self, Extent, ExtentState, Regions};
use super::super::ledger;
use super::super::memory::{Memory, Run};
use super::super::snapshot::Snapshot;
use super::*;
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Backing, Category, Perms, Vma};

pub(super) const PAGE: u64 = 4096;
const MAIN: u64 = 0x5555_0000_0000;
const THREAD: u64 = 0x7e00_0000_0000;
const MAPPED: u64 = 0x7e80_0000_0000;
const JEMALLOC: u64 = 0x7f00_0000_0000;
const OTHER: u64 = 0x7f80_0000_0000;

/// Pseudo-random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A chunk in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub start: u64,
    pub end: u64,
    /// Bytes of its header.
    pub header: u64,
    pub requested: u64,
    pub stack: StackId,
    pub lost: bool,
}

/// A heap with known owners.
pub(super) struct SyntheticHeap {
    pub snapshot: Snapshot,
    pub heaps: AllHeaps,
    pub owned: Vec<Owned>,
}

/// Parameters of a synthetic heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapParameters {
    /// Number of chunks per arena.
    pub chunks: u64,
    /// Number of stacks.
    pub stacks: u64,
    /// Percentage of free chunks; `absent` is the percentage of pages that are not resident.
    pub free: u64,
    pub absent: u64,
    /// Percentage of unreachable chunks.
    pub lost: u64,
    /// Maximum size of most chunks, in bytes.
    pub size: u64,
    pub jemalloc: bool,
}

impl SyntheticHeap {
    pub(super) fn new(wanted: &HeapParameters, random: &mut Random) -> SyntheticHeap {
        let mut owned = Vec::new();
        let parts = vec![
            part(0, MAIN, wanted, random, &mut owned),
            part(1, THREAD, wanted, random, &mut owned),
        ];
        let mut mmapped = Vec::new();
        let mut at = MAPPED;
        for _ in 0..random.below(4) {
            let len = PAGE * (1 + random.below(80));
            let (lost, kind) = in_use(wanted, random);
            mmapped.push(Mmapped {
                start: at,
                len,
                at,
                kind,
            });
            owned.push(owner(at + 16, at + len, 16, lost, wanted, random));
            at += len + PAGE * random.below(2);
        }
        let ends = [parts[0].end, parts[1].end, at];
        let jemalloc = wanted.jemalloc.then(|| regions(wanted, random, &mut owned));
        let ends_of_regions = jemalloc.iter().flat_map(|heap| &heap.regions.extents);
        let last = ends_of_regions
            .map(|extent| extent.end)
            .max()
            .unwrap_or(JEMALLOC);
        let glibc = Heap {
            arenas: 2,
            addresses: vec![MAIN, THREAD],
            main_arena: (0, 0),
            parts,
            mmapped,
            tcaches: 0,
            mallinfo: Mallinfo::default(),
        };
        let ranges = [
            (MAIN, ends[0]),
            (THREAD, ends[1]),
            (MAPPED, ends[2]),
            (JEMALLOC, last),
            (OTHER, OTHER + 7 * PAGE),
        ];
        let vmas = ranges
            .into_iter()
            .filter(|(start, end)| start < end)
            .map(|(start, end)| Vma {
                start: Addr(start),
                end: Addr(end.next_multiple_of(PAGE)),
                perms: Perms {
                    read: true,
                    write: true,
                    exec: false,
                    shared: false,
                },
                file_offset: 0,
                dev: (0, 0),
                ino: 0,
                name: String::new(),
                deleted: false,
                backing: Backing::Anon,
            });
        let mut snapshot = Snapshot::synthetic(vmas.collect(), Memory::default(), Vec::new());
        snapshot.pages.readable = pages(&snapshot.vmas, wanted.absent, random);
        let heaps = AllHeaps::new(Some(glibc), jemalloc);
        SyntheticHeap {
            snapshot,
            heaps,
            owned,
        }
    }

    /// Samples with this mean number of bytes between them; all allocations if it is 0.
    pub(super) fn samples(&self, interval: u64, random: &mut Random) -> Vec<HeapSample> {
        let sample = |owned: &Owned| {
            let p = match interval {
                0 => 1.0,
                _ => -(-(owned.requested as f64) / interval as f64).exp_m1(),
            };
            (random.unit() < p).then(|| HeapSample {
                address: owned.start,
                size: owned.requested,
                weight: (owned.requested as f64 / p).round() as u64,
                stack: owned.stack,
            })
        };
        self.owned.iter().filter_map(sample).collect()
    }

    pub(super) fn join(&self, samples: &HeapSamples) -> Joint {
        let categories = vec![Category::Heap; self.snapshot.vmas.len()];
        ledger::join(
            &self.snapshot,
            &self.heaps,
            &categories,
            samples,
            Heads::default(),
        )
    }

    /// All resident bytes.
    pub(super) fn resident(&self) -> u64 {
        let runs = self
            .snapshot
            .pages
            .readable
            .iter()
            .filter(|run| run.resident);
        runs.map(Run::len).sum()
    }
}

fn in_use(wanted: &HeapParameters, random: &mut Random) -> (bool, ChunkKind) {
    match random.below(100) < wanted.lost {
        true => (true, ChunkKind::Counted),
        false => (false, ChunkKind::Reached),
    }
}

/// The sizes depend on the stack, so that wrong shares of classes are detected.
fn owner(
    start: u64,
    end: u64,
    header: u64,
    lost: bool,
    wanted: &HeapParameters,
    random: &mut Random,
) -> Owned {
    let class = (end - start).ilog2() as u64;
    let skewed = random.below(wanted.stacks).min(random.below(wanted.stacks));
    let stack = StackId(((skewed + class * (random.below(3) / 2)) % wanted.stacks) as u32);
    let requested = (end - start).saturating_sub(random.below(16)).max(1);
    Owned {
        start,
        end,
        header,
        requested,
        stack,
        lost,
    }
}

fn size(wanted: &HeapParameters, random: &mut Random) -> u64 {
    let size = match random.below(20) {
        0 => random.below(wanted.size * 20),
        1..8 => random.below(wanted.size),
        _ => random.below(wanted.size / 8 + 1),
    };
    32 + size / 16 * 16
}

fn part(
    arena: usize,
    start: u64,
    wanted: &HeapParameters,
    random: &mut Random,
    owned: &mut Vec<Owned>,
) -> ArenaPart {
    let mut at = start + 16 * random.below(200);
    let first = at;
    let mut chunks = Vec::new();
    let mut run_of_free = 0;
    for _ in 0..wanted.chunks {
        let size = size(wanted, random);
        // Adjacent free chunks create pages without a chunk in use.
        run_of_free = match random.below(100) {
            0 if wanted.free > 0 => 30,
            _ => run_of_free - run_of_free.min(1),
        };
        let kind = match run_of_free > 0 || random.below(100) < wanted.free {
            true => [
                ChunkKind::Tcache,
                ChunkKind::Fast,
                ChunkKind::Small,
                ChunkKind::Large,
            ][random.below(4) as usize],
            false => {
                let (lost, kind) = in_use(wanted, random);
                owned.push(owner(at + 16, at + size + 8, 8, lost, wanted, random));
                kind
            }
        };
        chunks.push((at, kind));
        at += size;
    }
    chunks.push((at, ChunkKind::Top));
    let end = (at + 64 + PAGE * random.below(40)).next_multiple_of(PAGE);
    let mut found = Chunks::new(first, end).unwrap();
    chunks.iter().for_each(|(at, kind)| found.add(*at, *kind));
    found.close();
    ArenaPart {
        arena,
        start,
        end,
        chunks: found,
    }
}

fn regions(wanted: &HeapParameters, random: &mut Random, owned: &mut Vec<Owned>) -> jemalloc::Heap {
    let mut regions = Regions::default();
    let mut at = JEMALLOC;
    for _ in 0..wanted.chunks / 10 {
        let (state, size, count) = match random.below(6) {
            0 => (ExtentState::Dirty, PAGE * (1 + random.below(5)), 0),
            1 => (ExtentState::Active, PAGE * (1 + random.below(10)), 1),
            _ => (
                ExtentState::Active,
                16 * (1 + random.below(30)),
                8 + random.below(40),
            ),
        };
        let end = (at + size * count.max(1)).next_multiple_of(PAGE);
        let first = regions.kinds.len();
        regions.extents.push(Extent {
            start: at,
            end,
            state,
            arena: 0,
            at,
            size,
            first,
            count: count as u32,
        });
        for number in 0..count {
            let start = at + number * size;
            let is_free = count > 1 && random.below(100) < wanted.free;
            regions.kinds.push(if is_free {
                [ChunkKind::Small, ChunkKind::Tcache][random.below(2) as usize]
            } else {
                let (lost, kind) = in_use(wanted, random);
                owned.push(owner(start, start + size, 0, lost, wanted, random));
                kind
            });
        }
        at = end;
    }
    regions.index();
    jemalloc::Heap {
        module: String::new(),
        regions,
        blocks: Vec::new(),
        counts_muzzy: false,
        caches: 0,
    }
}

/// Runs of pages, some of which are swapped out or were never written to.
fn pages(vmas: &[Vma], absent: u64, random: &mut Random) -> Vec<Run> {
    let mut pages: Vec<Run> = Vec::new();
    for vma in vmas {
        let mut start = vma.start.0;
        while start < vma.end.0 {
            let end = (start + PAGE * (1 + random.below(9))).min(vma.end.0);
            let draw = random.below(100);
            if draw >= absent {
                pages.push(Run {
                    start,
                    end,
                    resident: true,
                });
            } else if draw.is_multiple_of(2) {
                pages.push(Run {
                    start,
                    end,
                    resident: false,
                });
            }
            start = end;
        }
    }
    pages
}
