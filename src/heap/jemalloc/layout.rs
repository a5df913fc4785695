//! How the releases of jemalloc lay out what describes an extent.
//!
//! The description has 128 bytes: bits, address, size, links, and at 64 the bitmap of a slab, in which a free region's bit
//! is set. Releases differ in the places of the bits, and in what an element of the tree repeats of them.

/// Offsets in the description of an extent.
pub(super) const ADDRESS: u64 = 8;
pub(super) const SIZE: u64 = 16;
pub(super) const BITMAP: u64 = 64;
/// Its size, in bytes.
pub(super) const DESCRIPTION: u64 = 128;
/// Bits of an address.
pub(super) const ADDRESS_BITS: u32 = 48;

/// Where the bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Position and number of the bits of the state.
    state: (u32, u32),
    /// Position of the size class (8 bits).
    class: u32,
    /// Position of the number of free regions (10 bits).
    free: u32,
    /// Alignment of descriptions: the lower bits of an element of the tree are others.
    align: u64,
    /// How threads' caches look.
    pub caches: Caches,
}

/// How threads' caches look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caches {
    /// Stacks that grow downwards, each described by its head and the lowest bits of its ends (5.3).
    Heads,
    /// Stacks that are described by their number of regions and their end (5.1, 5.2).
    Counts,
}

/// Those that are known.
pub(super) const ALL: [Layout; 2] = [
    // 5.3
    Layout {
        state: (17, 3),
        class: 20,
        free: 28,
        align: 128,
        caches: Caches::Heads,
    },
    // 5.2
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
    /// What an extent is used for: see [`super::tree::State`].
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

    /// The arena's index.
    pub(super) fn arena(&self, bits: u64) -> u64 {
        field(bits, 0, 12)
    }

    /// Whether it is a slab.
    pub(super) fn is_slab(&self, bits: u64) -> bool {
        field(bits, 12, 1) == 1
    }

    /// An element of the tree.
    pub(super) fn element(&self, word: u64) -> Element {
        let low = word & ((1 << ADDRESS_BITS) - 1);
        Element {
            description: low & !(self.align - 1),
            class: word >> ADDRESS_BITS,
            is_slab: low & 1 == 1,
            state: (self.caches == Caches::Heads).then_some(field(low, 2, 3)),
        }
    }
}

/// What the tree says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// The address of its extent's description; 0 if it has none.
    pub description: u64,
    /// The size class of its extent's regions.
    pub class: u64,
    /// Whether it is part of a slab.
    pub is_slab: bool,
    /// The state of its extent, if it is repeated here.
    pub state: Option<u64>,
}
