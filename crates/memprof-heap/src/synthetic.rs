//! Synthetic heaps made from arbitrary bytes, for fuzzing the heap readers.

pub(crate) mod of_core;
mod of_jemalloc;
mod of_mimalloc;

use std::ops::Range;

use super::all_heaps::AllHeaps;
use super::by_stack::{self, Heads, HeapSample, HeapSamples, Origin};
use super::memory::{Memory, Run};
use super::snapshot::Snapshot;
use super::source::Source;
use super::types::Census;
use super::{glibc, ledger, reach};
use memprof_sys::freeze::Registers;
use memprof_sys::ids::{Addr, StackId};
use memprof_sys::residency::{Backing, Category, Perms, Vma};
pub use of_core::examine as examine_core;
pub use of_jemalloc::examine as examine_jemalloc;
pub use of_mimalloc::examine as examine_mimalloc;

/// Addresses of the parts: a library's code and constants, its data, the heap, a thread's arena, other memory.
const CONSTANTS: u64 = 0x7f00_0000_0000;
const DATA: u64 = CONSTANTS + 0x1000;
const HEAP: u64 = 0x5555_0000_0000;
const ARENA: u64 = 0x7e00_0000_0000;
const OTHER: u64 = 0x7e10_0000_0000;
/// Addresses in the data: the main arena, and malloc's parameters.
const MAIN: u64 = DATA + 0x100;
const PARAMETERS: u64 = DATA + 0xa00;
/// Bytes of an arena in front of its bins, and offsets relative to the bins.
const BINS: u64 = 112;
const NEXT: u64 = 2048;
const SYSTEM_MEM: u64 = 2072;
/// Offset of a thread's arena in its memory.
const HEAP_INFO: u64 = 48;
/// Maximum number of chunks.
const MAX_CHUNKS: usize = 256;
/// Bytes of the encoding of one change.
const CHANGE: usize = 12;

/// A process's memory, in parts.
#[derive(Debug)]
struct Image(Vec<(u64, Vec<u8>)>);

impl Image {
    fn set(&mut self, at: u64, word: u64) {
        let part = self.0.iter_mut().find_map(|(start, bytes)| {
            let from = usize::try_from(at.checked_sub(*start)?).ok()?;
            bytes.get_mut(from..from.checked_add(8)?)
        });
        if let Some(bytes) = part {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Writes an arena with empty bins.
    fn arena(&mut self, at: u64, next: u64, top: u64, size: u64) {
        for list in 0..127 {
            let links = at + BINS + 16 * list;
            self.set(links, links - 16);
            self.set(links + 8, links - 16);
        }
        self.set(at + BINS - 16, top);
        self.set(at + BINS + NEXT, next);
        self.set(at + BINS + SYSTEM_MEM, size);
    }

    /// Writes chunks of these sizes, and a top chunk with the rest. Returns the address of the top chunk.
    fn chunks(&mut self, Range { start, end }: Range<u64>, flags: u64, sizes: &[u8]) -> u64 {
        let mut at = start;
        for size in sizes {
            let size = 32 + 16 * u64::from(*size);
            if at + size + 64 > end {
                break;
            }
            self.set(at + 8, size | flags | 1);
            // Each chunk refers to the next one.
            self.set(at + 16, at + size + 16);
            at += size;
        }
        self.set(at + 8, (end - at) | flags | 1);
        at
    }

    /// A valid heap with two arenas, and a class and a trait object.
    fn new(sizes: &[u8]) -> Image {
        let parts = [
            (CONSTANTS, 0x1000),
            (DATA, 0x1000),
            (HEAP, 0x8000),
            (ARENA, 0x4000),
            (OTHER, 0x3000),
        ];
        let mut image = Image(parts.map(|(start, len)| (start, vec![0; len])).to_vec());
        let top = image.chunks(HEAP..HEAP + 0x8000, 0, sizes);
        let own = ARENA + HEAP_INFO;
        image.arena(MAIN, own, top, 0x8000);
        image.set(ARENA, own);
        image.set(ARENA + 16, 0x4000);
        let first = (own + BINS + 2088).next_multiple_of(16);
        let top = image.chunks(first..ARENA + 0x4000, 4, sizes);
        image.arena(own, MAIN, top, 0x4000);
        for (at, word) in [
            (0, HEAP),
            (8, 64),
            (16, 1032),
            (24, 7),
            (-16_i64, 0x1000),
            (-8, 0x1000),
        ] {
            image.set(PARAMETERS.wrapping_add_signed(at), word);
        }
        image.set(PARAMETERS - 40, 1 << 32);
        // A chunk with a mapping of its own.
        image.set(OTHER + 0x1000 + 8, 0x1000 | 2);
        image.set(OTHER, OTHER + 0x1010);
        // A class: its type_info is an object of a C++ runtime class, which has a type_info itself.
        let name = |at: u64, name: &[u8], image: &mut Image| {
            let bytes = &mut image.0[0].1;
            bytes[at as usize..at as usize + name.len()].copy_from_slice(name);
        };
        name(0x800, b"N10__cxxabiv117__class_type_infoE\0", &mut image);
        name(0x900, b"3Foo\0", &mut image);
        for (at, to) in [
            (0x108, 0x200),
            (0x208, 0x800),
            (0x308, 0x400),
            (0x400, 0x110),
            (0x408, 0x900),
            (0x310, 0xf00),
        ] {
            image.set(CONSTANTS + at, CONSTANTS + to);
        }
        image.set(HEAP + 16, CONSTANTS + 0x310);
        // A trait object in the other memory.
        for (at, word) in [(0x500, CONSTANTS + 0xf00), (0x508, 24), (0x510, 8)] {
            image.set(CONSTANTS + at, word);
        }
        image.set(OTHER + 0x100, first + 16);
        image.set(OTHER + 0x108, CONSTANTS + 0x500);
        image.set(DATA, HEAP + 16);
        image
    }

    /// Changes a word: to a number, to an address in a part, or by a bit.
    fn change(&mut self, change: &[u8; CHANGE]) {
        let [part, kind, a, b, word @ ..] = *change;
        let (start, bytes) = &self.0[usize::from(part) % self.0.len()];
        let offset = u64::from(u16::from_le_bytes([a, b])) * 8 % bytes.len() as u64;
        let (at, word) = (start + offset, u64::from_le_bytes(word));
        let old = bytes[offset as usize..].first_chunk::<8>();
        let old = old.map_or(0, |old| u64::from_le_bytes(*old));
        let (other, _) = &self.0[usize::from(kind >> 4) % self.0.len()];
        self.set(
            at,
            match kind % 5 {
                0 => word,
                1 => word & 0xffff,
                2 => other + word % 0x8000 / 8 * 8,
                3 => old.wrapping_add_signed(word.cast_signed() >> 48),
                _ => old ^ 1 << (word % 64),
            },
        );
    }

    fn change_all(&mut self, changes: &[u8]) {
        let changes = changes.as_chunks::<CHANGE>().0;
        changes.iter().for_each(|change| self.change(change));
    }

    fn snapshot(&self) -> Snapshot {
        let mut vmas = Vec::new();
        for (start, bytes) in &self.0 {
            let of_file = [CONSTANTS, DATA].contains(start);
            vmas.push(Vma {
                start: Addr(*start),
                end: Addr(start + bytes.len() as u64),
                perms: Perms {
                    read: true,
                    write: *start != CONSTANTS,
                    exec: *start == CONSTANTS,
                    shared: false,
                },
                file_offset: start - CONSTANTS.min(*start),
                dev: (0, u32::from(of_file)),
                ino: u64::from(of_file),
                name: String::new(),
                deleted: false,
                backing: if of_file {
                    Backing::File
                } else {
                    Backing::Anon
                },
            });
        }
        vmas.sort_by_key(|vma| vma.start);
        let mut parts: Vec<(u64, &[u8])> = Vec::new();
        for (start, bytes) in &self.0 {
            parts.push((*start, bytes));
        }
        parts.sort_by_key(|part| part.0);
        let thread = Registers {
            tid: 1,
            words: vec![OTHER + 0x200, HEAP + 64],
            stack_pointer: OTHER + 0x80,
            thread_pointer: OTHER + 0x2800,
        };
        Snapshot::synthetic(vmas, Memory::synthetic(&parts), vec![thread])
    }
}

/// Makes and changes a heap according to the bytes, reads it and adds it up. Returns whether it could be read.
///
/// # Panics
/// Sums that must be equal are not.
pub fn examine(bytes: &[u8]) -> bool {
    let (sizes, changes) = split(bytes);
    let mut image = Image::new(sizes);
    image.change_all(changes);
    let snapshot = image.snapshot();
    let Ok(Some(heap)) = glibc::read(&snapshot) else {
        return false;
    };
    add_up(&snapshot, AllHeaps::new(Some(heap), None));
    true
}

/// Splits the bytes into sizes and changes.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.split_first() {
        Some((number, rest)) => rest.split_at(usize::from(*number).min(rest.len()).min(MAX_CHUNKS)),
        None => (bytes, bytes),
    }
}

/// Adds up a heap in two ways, and compares the sums.
fn add_up(snapshot: &Snapshot, mut heap: AllHeaps) {
    let samples = some(&heap);
    let mut census = Census::new(Source::Nothing, snapshot, 3);
    census.heads = Heads::new(&by_stack::place(&heap, None, &samples).0);
    let lost = reach::search(snapshot, &mut heap, &mut census, 3);
    let heads = std::mem::take(&mut census.heads);
    let categories = vec![Category::Heap; snapshot.vmas.len()];
    let joint = ledger::join(snapshot, &heap, &categories, &samples, heads);
    let by_stack = joint.by_stack(|stack| stack.0.to_string(), &[], 3);
    let resident: u64 = snapshot.pages.readable.iter().map(Run::len).sum();
    assert_eq!((by_stack.sum(), by_stack.total), (resident, resident));
    assert_eq!(by_stack.samples.gone, 0);
    let (types, retained, _) = census.finish();
    let (count, bytes) = ledger::live(snapshot, &heap);
    assert_eq!(types.rows.iter().map(|row| row.count).sum::<u64>(), count);
    assert_eq!(types.bytes, bytes);
    let reached: u64 = retained.roots.iter().map(|root| root.count).sum();
    assert_eq!(reached + lost.chunks, count);
}

/// Samples of every second chunk.
fn some(heap: &AllHeaps) -> HeapSamples {
    let sample = |(number, (start, end)): (u64, (u64, u64))| HeapSample {
        address: start + number % 9,
        size: end - start - number % 9,
        weight: (end - start) << (number % 20),
        stack: StackId(number as u32 % 5),
    };
    HeapSamples {
        kept: (0..).zip(heap.live()).map(sample).step_by(2).collect(),
        origin: Origin {
            from_start: true,
            interval: None,
        },
        lost: 0,
        unsent: 0,
    }
}

/// A heap of 32-byte chunks of which each refers to the next, except the one before the chunk at index `cut`. Also
/// returns the address of the first chunk's contents.
#[cfg(test)]
pub(super) fn chain(cut: u64) -> (Snapshot, u64) {
    let mut image = Image::new(&[0; 9]);
    image.set(HEAP + 32 * (cut - 1) + 16, 0);
    (image.snapshot(), HEAP + 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::RootKind;
    use crate::types::TypeKind;

    #[test]
    fn a_heap_that_is_made_is_read() {
        assert!(examine(&[]) && examine(&[4, 1, 0, 37, 200]));
        // A change without effect.
        assert!(examine(&[1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn its_types_are_known() {
        let snapshot = Image::new(&[0; 9]).snapshot();
        let heap = glibc::read(&snapshot).unwrap().unwrap();
        assert_eq!((heap.arenas, heap.mmapped.len()), (2, 1));
        let mut heap = AllHeaps::new(Some(heap), None);
        let mut census = Census::new(Source::Nothing, &snapshot, 3);
        reach::search(&snapshot, &mut heap, &mut census, 3);
        let (types, retained, _) = census.finish();
        let named = |kind| types.rows.iter().filter(move |row| row.kind == kind);
        let class: Vec<_> = named(TypeKind::Class)
            .map(|row| (&*row.name, row.count))
            .collect();
        assert_eq!(class, [("Foo", 1)]);
        assert_eq!(
            named(TypeKind::TraitObject)
                .map(|row| row.count)
                .sum::<u64>(),
            1
        );
        assert!(!retained.roots.is_empty());
    }

    /// More chunks than the queue of the search holds (4 in tests): all are found, the ones that did not fit without
    /// a root.
    #[test]
    fn chunks_without_room_in_the_queue_are_found() {
        let mut image = Image::new(&[0; 40]);
        for index in 0..40 {
            // No chunk refers to another one.
            image.set(HEAP + 32 * index + 16, 0);
            image.set(OTHER + 0x300 + 8 * index, HEAP + 32 * index + 16);
        }
        let snapshot = image.snapshot();
        let heap = glibc::read(&snapshot).unwrap().unwrap();
        let mut heap = AllHeaps::new(Some(heap), None);
        let mut census = Census::new(Source::Nothing, &snapshot, 3);
        let lost = reach::search(&snapshot, &mut heap, &mut census, 3);
        let (_, retained, _) = census.finish();
        let count = ledger::live(&snapshot, &heap).0;
        let found: u64 = retained.roots.iter().map(|root| root.count).sum();
        assert_eq!((lost.chunks, found), (0, count), "{lost:?} {retained:#?}");
        let others = retained
            .roots
            .iter()
            .filter(|root| root.kind == RootKind::Other);
        assert!(
            others.map(|root| root.count).sum::<u64>() > 20,
            "{retained:#?}"
        );
    }

    /// Each single word of the image, changed in several ways.
    #[test]
    fn one_wrong_word_is_no_harm() {
        let (mut read, mut refused) = (0, 0);
        for part in 0..5 {
            for place in 0..512_u16 {
                let [a, b] = place.to_le_bytes();
                for (kind, word) in [
                    (0, u64::MAX),
                    (0, u64::MAX - 15),
                    (1, 0),
                    (2, 0x40),
                    (3, 16 << 48),
                    (4, 63),
                ] {
                    let mut change = vec![2, 3, 50, part, kind, a, b];
                    change.extend(word.to_le_bytes());
                    match examine(&change) {
                        true => read += 1,
                        false => refused += 1,
                    }
                }
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} {refused}");
    }
}
