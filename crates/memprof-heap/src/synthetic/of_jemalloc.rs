//! Synthetic jemalloc heaps made from arbitrary bytes.

use super::super::all_heaps::AllHeaps;
use super::super::jemalloc;
use super::super::memory::Memory;
use super::super::snapshot::Snapshot;
use super::{Image, add_up, split};
use memprof_sys::freeze::Registers;
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Backing, Perms, Vma};

/// Addresses: a library's data with the tree's root, a block, its table, the heap, a thread's variables.
const ROOT: u64 = 0x7f00_0000_0000;
const BLOCK: u64 = 0x7e00_0020_0000;
const TABLE: u64 = BLOCK + (2 << 20);
const HEAP: u64 = 0x7e40_0000_0000;
const LOCAL: u64 = 0x7d00_0000_0000;
/// The part of the root table that contains the heap's entry, and that entry.
const ENTRIES: u64 = ROOT + 0xf_c000;
const ENTRY: u64 = ROOT + (HEAP >> 30) * 8;
/// Sizes of the mappings.
const SIZES: [(u64, u64); 4] = [
    (ROOT, 0x20_0000),
    (BLOCK, 6 << 20),
    (HEAP, 0x4_0000),
    (LOCAL, 0x2000),
];
/// The stack descriptors of a thread cache, and its link to other caches.
const STACKS: u64 = LOCAL + 0x1008;
const LINK: u64 = LOCAL + 0x100;
/// Extents of the heap: slabs for 32 and 128 regions, a large region, the stacks of a cache, free pages.
const EXTENTS: [(u64, u64, u64, u64); 6] = [
    // Pages, class, number of regions, state.
    (1, 8, 32, 0),
    (5, 9, 128, 0),
    (5, 36, 0, 0),
    (5, 36, 0, 0),
    (3, 232, 0, 1),
    (4, 232, 0, 3),
];

/// A valid heap. The first bytes select the free regions.
fn image(free: &[u8]) -> Image {
    let parts = [
        (ENTRIES, 0x1000),
        (BLOCK, 0x2000),
        (TABLE, 0x1000),
        (HEAP, 0x1_7000),
        (LOCAL, 0x2000),
    ];
    let mut image = Image(parts.map(|(start, len)| (start, vec![0; len])).to_vec());
    let none = 0xfff | 232 << 20 | 1 << 13 | 1 << 15;
    for (at, word) in [
        (0, 6 << 20),
        (16, none),
        (24, BLOCK + (4 << 20)),
        (32, 2 << 20),
    ] {
        image.set(BLOCK + at, word);
    }
    image.set(ENTRY, TABLE);
    let (mut page, mut bytes) = (HEAP, free.iter().copied());
    for (index, (pages, class, count, state)) in EXTENTS.into_iter().enumerate() {
        let description = BLOCK + 0x200 + 128 * index as u64;
        let is_slab = u64::from(count > 0);
        let mut all = 0;
        for word in 0..count.div_ceil(64) {
            let mask = if count < 64 {
                (1 << count) - 1
            } else {
                u64::MAX
            };
            let bits = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            let bits = u64::from_le_bytes(bits) & mask;
            // The first regions stay in use, so that the cache can contain some.
            let bits = bits & !7;
            image.set(description + 64 + 8 * word, bits);
            all += u64::from(bits.count_ones());
        }
        image.set(
            description,
            is_slab << 12 | state << 17 | class << 20 | all << 28,
        );
        image.set(description + 8, page);
        image.set(description + 16, pages << 12);
        for number in 0..pages {
            if count > 0 || number == 0 || number + 1 == pages {
                let element = description | is_slab | state << 2 | class << 48;
                image.set(TABLE + ((page - HEAP) >> 12) * 8 + 8 * number, element);
            }
        }
        page += pages << 12;
    }
    // A cache with one region of the first slab, and stacks for ten classes.
    let mut stack = HEAP + (11 << 12) + 8;
    image.set(STACKS - 8, LINK - 16);
    for (at, word) in [(0, LINK), (8, LINK), (16, STACKS)] {
        image.set(LINK + at, word);
    }
    for class in 0..10 {
        let (first, end) = (stack, stack + 64);
        let head = if class == 8 { end - 8 } else { end };
        image.set(STACKS + 24 * class, head);
        let low = |at: u64| at & 0xffff;
        image.set(STACKS + 24 * class + 16, low(first) << 16 | low(end) << 32);
        if class == 8 {
            image.set(head, HEAP + 128);
        }
        stack = end;
    }
    // A thread's variable refers to a region, which refers to another one.
    image.set(LOCAL, HEAP);
    image.set(HEAP, HEAP + 0x1000);
    image
}

fn snapshot(image: &Image) -> Snapshot {
    let mut vmas = SIZES.map(|(start, len)| {
        let of_file = start == ROOT;
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
        words: vec![HEAP + 0x1000 + 160],
        stack_pointer: 0,
        thread_pointer: LOCAL + 0x1f00,
    };
    Snapshot::synthetic(vmas.to_vec(), Memory::synthetic(&parts), vec![thread])
}

/// Makes and changes a jemalloc heap according to the bytes, reads it and adds it up. Returns whether it could be
/// read.
///
/// # Panics
/// Sums that must be equal are not.
pub fn examine(bytes: &[u8]) -> bool {
    let (free, changes) = split(bytes);
    let mut image = image(free);
    image.change_all(changes);
    let snapshot = snapshot(&image);
    match jemalloc::read(&snapshot) {
        Ok(Some(heap)) => {
            add_up(&snapshot, AllHeaps::new(None, Some(heap)));
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_that_is_made_is_read() {
        let heap = jemalloc::read(&snapshot(&image(&[0xff; 24])))
            .unwrap()
            .unwrap();
        let figures = heap.figures();
        assert_eq!(heap.caches, 1);
        assert_eq!(figures.cached, 128);
        // Three regions of the first slab, three per 64 of the second one, and two large ones.
        assert_eq!(figures.allocated, 3 * 128 + 6 * 160 + 2 * (16 << 10));
        assert_eq!((figures.active, figures.dirty), (16 << 12, 3 << 12));
        assert_eq!((figures.retained, figures.metadata), (4 << 12, 4 << 20));
        assert!(examine(&[]) && examine(&[9, 1, 2, 3]));
    }

    /// Each nonzero word of the image, and some others, changed in several ways.
    #[test]
    fn one_wrong_word_is_no_harm() {
        let (mut read, mut refused) = (0, 0);
        let words = image(&[]);
        for part in 0..5 {
            for place in 0..1024_u16 {
                let at = 8 * usize::from(place);
                let word = words.0[part].1.get(at..at + 8);
                if word.is_none_or(|word| word == [0; 8]) && place % 64 != 0 {
                    continue;
                }
                let [a, b] = place.to_le_bytes();
                for (kind, word) in [
                    (0, u64::MAX),
                    (0, u64::MAX - 15),
                    (1, 0),
                    (2, 0x40),
                    (3, 16 << 48),
                    (4, 63),
                ] {
                    let mut change = vec![2, 3, 50, part as u8, kind, a, b];
                    change.extend(word.to_le_bytes());
                    match examine(&change) {
                        true => read += 1,
                        false => refused += 1,
                    }
                }
            }
        }
        assert!(read > 100 && refused > 100, "{read} {refused}");
    }
}
