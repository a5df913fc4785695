//! Layouts of jemalloc's extent descriptors and tree, by release.
//!
//! A descriptor has 128 bytes: a bit field, address, size, links, and at offset 64 the bitmap of a slab, in which set
//! bits are free regions. Releases differ in the positions of the bits, and in which of them the tree's elements
//! repeat.

use super::PAGE;

/// Offsets in an extent descriptor.
pub(super) const ADDRESS: u64 = 8;
pub(super) const SIZE: u64 = 16;
pub(super) const BITMAP: u64 = 64;
/// Size of an extent descriptor, in bytes.
pub(super) const DESCRIPTION: u64 = 128;

/// Bit positions in an extent descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Position and width of the state.
    state: (u32, u32),
    /// Position of the size class (8 bits).
    class: u32,
    /// Position of the number of free regions (10 bits).
    free: u32,
    /// Alignment of descriptors. The lower bits of a tree element have other meanings.
    align: u64,
    /// Layout of thread caches.
    pub caches: Caches,
}

/// Layout of thread caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caches {
    /// Stacks that grow downwards, each described by its head and the low bits of its ends (5.3).
    Heads,
    /// Stacks that are described by their number of regions and their end (5.1, 5.2).
    Counts,
}

/// The known layouts.
pub(super) const ALL: [Layout; 2] = [
    // 5.3
    Layout {
        state: (17, 3),
        class: 20,
        free: 28,
        align: 128,
        caches: Caches::Heads,
    },
    // 5.1 and 5.2
    Layout {
        state: (16, 2),
        class: 18,
        free: 26,
        align: 64,
        caches: Caches::Counts,
    },
];

fn field(bits: u64, at: u32, width: u32) -> u64 {
    bits >> at & ((1 << width) - 1)
}

impl Layout {
    /// The state of an extent; see [`super::ExtentState`].
    pub(super) fn state(&self, bits: u64) -> u64 {
        field(bits, self.state.0, self.state.1)
    }

    /// The size class of its regions.
    pub(super) fn class(&self, bits: u64) -> u64 {
        field(bits, self.class, 8)
    }

    /// Number of a slab's free regions.
    pub(super) fn free(&self, bits: u64) -> u64 {
        field(bits, self.free, 10)
    }

    /// Index of its arena.
    pub(super) fn arena(&self, bits: u64) -> u16 {
        field(bits, 0, 12) as u16
    }

    /// Whether the extent is a slab.
    pub(super) fn is_slab(&self, bits: u64) -> bool {
        field(bits, 12, 1) == 1
    }

    /// Decodes an element of the tree: its first word and, if it has two, the second one.
    pub(super) fn element(&self, shape: &Shape, word: u64, second: u64) -> Element {
        let has_state = self.caches == Caches::Heads;
        if shape.is_wide() {
            let (class, is_slab) = match has_state {
                true => (field(second, 5, 27), second & 1 == 1),
                false => (field(second, 0, 32), field(second, 32, 8) == 1),
            };
            return Element {
                description: word,
                class,
                is_slab,
                state: has_state.then_some(field(second, 2, 3)),
            };
        }
        Element {
            description: field(word, 0, 48) & !(self.align - 1),
            class: word >> 48,
            is_slab: word & 1 == 1,
            state: has_state.then_some(field(word, 2, 3)),
        }
    }
}

/// Shape of the tree, which depends on the virtual address width of the CPU that jemalloc was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of levels.
    pub levels: u32,
    /// Number of address bits that each level decodes.
    bits: u32,
}

/// The known shapes.
pub(super) const SHAPES: [Shape; 2] = [
    // For addresses of 48 bits.
    Shape {
        levels: 2,
        bits: 18,
    },
    // For addresses of 57 bits, which leave no bits of the word for other fields.
    Shape {
        levels: 3,
        bits: 15,
    },
];

impl Shape {
    /// Whether an element of the lowest level has two words.
    fn is_wide(&self) -> bool {
        self.levels > 2
    }

    /// Size of an entry of a level in bytes; the root is level 0.
    pub(super) fn entry(&self, level: u32) -> u64 {
        match self.is_wide() && level + 1 == self.levels {
            true => 16,
            false => 8,
        }
    }

    /// Size of a table of a level, in bytes.
    pub(super) fn table(&self, level: u32) -> u64 {
        self.entry(level) << self.bits
    }

    /// Position of the address bits that a level decodes.
    fn shift(&self, level: u32) -> u32 {
        PAGE.ilog2() + self.bits * (self.levels - 1 - level)
    }

    /// The index of an address in a table of a level.
    pub(super) fn index(&self, level: u32, addr: u64) -> u64 {
        field(addr, self.shift(level), self.bits)
    }

    /// First address that an entry covers, in a table that begins at address `first`.
    pub(super) fn address(&self, level: u32, first: u64, index: u64) -> u64 {
        first + (index << self.shift(level))
    }

    /// End of user-space addresses.
    pub(super) fn end(&self) -> u64 {
        1 << (self.shift(0) + self.bits - 1)
    }
}

/// The tree's entry for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Address of the extent's descriptor; 0 if the page has none.
    pub description: u64,
    /// Size class of the extent's regions.
    pub class: u64,
    /// Whether the page belongs to a slab.
    pub is_slab: bool,
    /// State of the extent, if the element repeats it.
    pub state: Option<u64>,
}
