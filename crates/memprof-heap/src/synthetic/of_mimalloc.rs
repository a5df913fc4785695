//! Synthetic heaps of mimalloc 3 made from arbitrary bytes.

use super::super::all_heaps::AllHeaps;
use super::super::memory::Memory;
use super::super::snapshot::Snapshot;
use super::super::spans::{self, SpanHeap};
use super::{Image, add_up, split};
use memprof_sys::freeze::Registers;
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Backing, Perms, Vma};

/// Addresses: a library's data, the map of pages, its table for the heap, an arena, a page with a mapping of its own.
const DATA: u64 = 0x7f00_0000_0000;
const MAP: u64 = 0x7e00_0000_0000;
const TABLE: u64 = 0x7d00_0000_0000;
const ARENA: u64 = 0x20_0000_0000;
const MAPPED: u64 = ARENA + (64 << 20);
/// Sizes of the mappings.
const SIZES: [(u64, u64); 5] = [
    (DATA, 0x2000),
    (MAP, 0x1_1000),
    (TABLE, 0x1_0000),
    (ARENA, 32 << 20),
    (MAPPED, 0x5_0000),
];
/// Size of the map's first level.
const MAP_SIZE: u64 = 4096;
const SLICE: u64 = 64 << 10;
/// A subprocess, with its list of arenas.
const SUBPROCESS: u64 = DATA + 0x100;
/// Offsets in the arena: its bitmaps of slices, the distance from one to the next, and the descriptions of its pages.
const FREE: u64 = 0x400;
const COMMITTED: u64 = 0x800;
const STRIDE: u64 = 3 * 64;
const DESCRIPTIONS: u64 = 0x2000;
/// Number of blocks of the first page that were handed out, and their size in bytes.
const BLOCKS: u64 = 64;
const SIZE: u64 = 512;
/// The keys of encoded lists.
const KEYS: [u64; 2] = [0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3210];

/// Writes the description of a page: its memory, its first block, and words at offsets.
fn describe(image: &mut Image, page: u64, memory: [u64; 3], first: u64, words: &[(u64, u64)]) {
    let keys = if words.iter().any(|(at, _)| *at == 56) {
        16
    } else {
        0
    };
    for (index, word) in (0..).zip(memory) {
        image.set(page + 88 + keys + 8 * index, word);
    }
    image.set(page + 48, (first - page) / 8);
    for (at, word) in words {
        image.set(page + at, *word);
    }
}

/// A valid heap. The first byte says whether lists are encoded, the next ones select the free blocks.
fn image(free: &[u8]) -> Image {
    let parts = [
        (DATA, 0x1000),
        (MAP, 0x2000),
        (TABLE, 0x4000),
        (ARENA, 0x3000),
        (ARENA + SLICE, 0x9000),
        (MAPPED, 0x1000),
    ];
    let mut image = Image(parts.map(|(start, len)| (start, vec![0; len])).to_vec());
    image.set(DATA + 8, MAP);
    image.set(MAP, MAP + MAP_SIZE);
    image.set(MAP + 8 * (ARENA >> 29), TABLE);
    image.set(SUBPROCESS + 24, 1);
    image.set(SUBPROCESS + 32, ARENA);
    for (at, word) in [(24, SUBPROCESS), (40, 512), (48, 1)] {
        image.set(ARENA + at, word);
    }
    let bitmaps = (1..4).map(|index| COMMITTED + STRIDE * (index - 1));
    for (index, at) in (0..).zip([FREE].into_iter().chain(bitmaps)) {
        image.set(ARENA + 104 + 8 * index, ARENA + at);
        image.set(ARENA + at, 1);
    }
    // Slice 0 describes the arena, slice 1 and slices 2 and 3 are pages, slice 4 has something of mimalloc's own.
    image.set(ARENA + COMMITTED - 64, !0x1f);
    for word in 1..8 {
        image.set(ARENA + COMMITTED - 64 + 8 * word, u64::MAX);
    }
    image.set(ARENA + COMMITTED + 3 * STRIDE, 1);
    image.set(ARENA + COMMITTED + 3 * STRIDE + 128, 0b110);
    // Their descriptions, and the blocks of the first page.
    let encoded = free.first().is_some_and(|byte| byte % 2 == 1);
    let (small, large) = (ARENA + DESCRIPTIONS, ARENA + DESCRIPTIONS + 0x100);
    let first = ARENA + SLICE + SIZE;
    let bits = (0..BLOCKS).filter(|block| {
        let byte = free.get(1 + *block as usize / 8).copied().unwrap_or(0);
        // The first blocks stay in use.
        *block > 4 && byte >> (block % 8) & 1 == 1
    });
    let blocks: Vec<u64> = bits.map(|block| first + SIZE * block).collect();
    let link = |image: &mut Image, list: &[u64]| {
        for (index, block) in list.iter().enumerate() {
            let next = list.get(index + 1).copied();
            image.set(
                *block,
                match encoded {
                    true => (next.unwrap_or(small) ^ KEYS[1])
                        .rotate_left(KEYS[0] as u32 % 64)
                        .wrapping_add(KEYS[0]),
                    false => next.unwrap_or(0),
                },
            );
        }
        list.first().copied().unwrap_or(0)
    };
    let (own, local) = blocks.split_at(blocks.len() / 2);
    let (own, local) = (link(&mut image, own), link(&mut image, local));
    let by_others = link(&mut image, &[first + 3 * SIZE]);
    let used = BLOCKS - blocks.len() as u64;
    let mut words = vec![
        (0, 0x7000_0040),
        (8, own),
        (16, used | BLOCKS << 16 | 120 << 32),
        (24, local),
        (32, by_others | 1),
        (40, SIZE),
    ];
    let alone = [(0, 4), (16, 1 << 32 | 1 << 16 | 1), (40, 100 << 10)];
    let (mut in_arena, mut mapped) = (alone.to_vec(), alone.to_vec());
    mapped[2].1 = 0x3_8000;
    if encoded {
        for words in [&mut words, &mut in_arena, &mut mapped] {
            words.extend([(56, KEYS[0]), (64, KEYS[1])]);
        }
    }
    describe(&mut image, small, [ARENA, 1 | 1 << 32, 7], first, &words);
    describe(
        &mut image,
        large,
        [ARENA, 2 | 2 << 32, 7],
        ARENA + 2 * SLICE,
        &in_arena,
    );
    describe(
        &mut image,
        MAPPED,
        [MAPPED, 0x5_0000, 4],
        MAPPED + SLICE,
        &mapped,
    );
    let entries = [(1, small), (2, large), (3, large)];
    let mapped = (0..5).map(|slice| (1024 + slice, MAPPED));
    for (slice, page) in entries.into_iter().chain(mapped) {
        image.set(TABLE + 8 * slice, page);
    }
    // A block refers to another one.
    image.set(first, first + SIZE);
    image.set(DATA + 16, first);
    image
}

fn snapshot(image: &Image) -> Snapshot {
    let mut vmas = SIZES.map(|(start, len)| {
        let of_file = start == DATA;
        Vma {
            start: Addr(start),
            end: Addr(start + len),
            perms: Perms {
                read: true,
                write: true,
                exec: false,
                shared: false,
            },
            file_offset: 0,
            dev: (0, u32::from(of_file)),
            ino: u64::from(of_file),
            name: String::new(),
            deleted: false,
            backing: if of_file {
                Backing::File
            } else {
                Backing::Anon
            },
        }
    });
    vmas.sort_by_key(|vma| vma.start);
    let mut parts: Vec<(u64, &[u8])> = image.0.iter().map(|(at, bytes)| (*at, &**bytes)).collect();
    parts.sort_by_key(|part| part.0);
    let thread = Registers {
        tid: 1,
        words: vec![ARENA + SLICE + SIZE],
        stack_pointer: 0,
        thread_pointer: 0,
    };
    Snapshot::synthetic(vmas.to_vec(), Memory::synthetic(&parts), vec![thread])
}

/// Makes and changes a heap according to the bytes, reads it and adds it up. Returns it, if there is one.
fn read(bytes: &[u8]) -> Option<SpanHeap> {
    let (free, changes) = split(bytes);
    let mut image = image(free);
    image.change_all(changes);
    let snapshot = snapshot(&image);
    let (spans, _, mut heaps) = spans::read(&snapshot, None, None, &mut Vec::new());
    if !spans.is_empty() {
        add_up(&snapshot, AllHeaps::new(None, None).with_spans(spans));
    }
    heaps.pop()
}

/// Makes and changes a heap of mimalloc 3 according to the bytes, reads it and adds it up. Returns whether it could be
/// read.
///
/// # Panics
/// Sums that must be equal are not.
pub fn examine(bytes: &[u8]) -> bool {
    read(bytes).is_some_and(|heap| heap.figures().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_that_is_made_is_read() {
        for encoded in [0, 1] {
            let heap = read(&[9, encoded, 0xff, 0xff, 0, 0, 0, 0, 0xf0, 0]).unwrap();
            let figures = heap.figures().unwrap_or_else(|| panic!("{heap:?}"));
            let free = 11 + 4;
            assert_eq!(figures.free, free * SIZE);
            assert_eq!(figures.cached, SIZE);
            assert_eq!(figures.live_blocks, BLOCKS - free - 1 + 2);
            let large = (100 << 10) + 0x3_8000;
            assert_eq!(figures.live, (BLOCKS - free - 1) * SIZE + large);
            let rest = SLICE - SIZE - BLOCKS * SIZE + 2 * SLICE - (100 << 10) + 0x8000;
            assert_eq!(figures.pages, 507 * SLICE + rest);
            // The description of the arena, the slice of mimalloc's own, two tables, the map, and beginnings of pages.
            assert_eq!(figures.overhead, 4 * SLICE + MAP_SIZE + SIZE + SLICE);
            assert!(
                matches!(
                    heap,
                    SpanHeap::Read {
                        caches: 1,
                        spans: 3,
                        ..
                    }
                ),
                "{heap:?}"
            );
        }
    }

    /// What is wrong is named.
    #[test]
    fn contradictions_are_refused() {
        let reason = |changes: &[(u64, u64)]| {
            let mut image = image(&[0, 0xf0]);
            for (at, word) in changes {
                image.set(*at, *word);
            }
            let (_, _, heaps) = spans::read(&snapshot(&image), None, None, &mut Vec::new());
            heaps[0].refused().unwrap_or_default().to_owned()
        };
        assert_eq!(reason(&[]), "");
        let small = ARENA + DESCRIPTIONS;
        for (changes, words) in [
            (
                vec![(small + 16, 50 | BLOCKS << 16 | 120 << 32)],
                "free blocks and 50 in use",
            ),
            (
                vec![(small + 8, ARENA + SLICE + 8)],
                "a list of free blocks",
            ),
            // A ring.
            (
                vec![(ARENA + SLICE + 8 * SIZE, ARENA + SLICE + 8 * SIZE)],
                "a list of free blocks",
            ),
            (
                vec![(small + 88 + 8, 3 | 1 << 32)],
                "the description of the page",
            ),
            (
                vec![(ARENA + COMMITTED - 64, !0x1d)],
                "is not alone on its slices",
            ),
            (
                vec![(ARENA + COMMITTED + 3 * STRIDE + 128, 0b10_0110)],
                "that the map of pages lacks",
            ),
            (vec![(SUBPROCESS + 32, DATA)], "the list of arenas"),
            (vec![(ARENA + 40, 513)], "the arena at"),
        ] {
            let reason = reason(&changes);
            assert!(reason.contains(words), "{words}: {reason}");
        }
    }

    /// Each nonzero word of the image, and some others, changed in several ways.
    #[test]
    fn one_wrong_word_is_no_harm() {
        let (mut read, mut refused) = (0, 0);
        for encoded in [0, 1] {
            let words = image(&[encoded, 0xf0, 3]);
            for part in 0..6 {
                for place in 0..0x1200_u16 {
                    let at = 8 * usize::from(place);
                    let word = words.0[part].1.get(at..at + 8);
                    let is_zero = word.is_none_or(|word| word == [0; 8]);
                    if is_zero && place % 64 != 0 {
                        continue;
                    }
                    let [a, b] = place.to_le_bytes();
                    let kinds = [
                        (0, u64::MAX),
                        (4, 63),
                        (0, u64::MAX - 15),
                        (1, 0),
                        (2, 0x40),
                        (3, 16 << 48),
                    ];
                    let some = if is_zero || encoded == 1 {
                        1
                    } else {
                        kinds.len()
                    };
                    for (kind, word) in kinds.into_iter().take(some) {
                        let mut change = vec![3, encoded, 0xf0, 3, part as u8, kind, a, b];
                        change.extend(word.to_le_bytes());
                        match examine(&change) {
                            true => read += 1,
                            false => refused += 1,
                        }
                    }
                }
            }
        }
        assert!(read > 100 && refused > 100, "{read} {refused}");
    }
}
