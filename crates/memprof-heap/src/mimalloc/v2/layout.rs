//! Layouts of the description of a page, by release.

/// Offsets of fields that all releases have in common.
pub(super) const SLICE_COUNT: u64 = 0;
pub(super) const SLICE_OFFSET: u64 = 4;
pub(super) const CAPACITY: u64 = 8;
pub(super) const FREE: u64 = 16;

/// Size of a slice, in bytes.
pub(super) const SLICE: u64 = 64 << 10;
/// Alignment of segments, and size of those with several pages, in bytes.
pub(super) const SEGMENT: u64 = 32 << 20;
/// Slices of a segment of that size.
pub(super) const SLICES: u64 = SEGMENT / SLICE;
/// From this block size on, a page has one block that fills it (where the size has 32 bits).
pub(super) const HUGE_BLOCK: u64 = 2 << 30;

/// Offsets in the description of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Size of a description, in bytes.
    pub size: u64,
    /// Number of blocks in use, 16 bits at least.
    pub used: u64,
    /// Size of the blocks.
    pub block_size: BlockSize,
    pub local_free: u64,
    pub thread_free: u64,
    /// The page's heap.
    pub heap: u64,
    /// Where the first block begins.
    pub start: Start,
    /// The keys of encoded lists.
    pub keys: Option<u64>,
}

/// The field with the size of a page's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockSize {
    /// 32 bits at this offset.
    Half(u64),
    /// 64 bits at this offset.
    Word(u64),
}

/// Where the first block of a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// After 384 bytes if blocks have at most 1024 bytes, else at the page's beginning.
    Fixed,
    /// After three blocks of at most 64 bytes, after one of at most 512, else at the page's beginning.
    After,
    /// At the address in the field at this offset.
    Field(u64),
}

const OLD: Layout = Layout {
    size: 80,
    used: 24,
    block_size: BlockSize::Half(28),
    local_free: 32,
    thread_free: 40,
    heap: 48,
    start: Start::Fixed,
    keys: None,
};

const NEW: Layout = Layout {
    size: 96,
    used: 32,
    block_size: BlockSize::Word(40),
    local_free: 24,
    thread_free: 56,
    heap: 64,
    start: Start::Field(48),
    keys: None,
};

const OLD_ENCODED: Layout = Layout {
    size: 96,
    thread_free: 56,
    heap: 64,
    keys: Some(40),
    ..OLD
};

const NEW_ENCODED: Layout = Layout {
    size: 112,
    thread_free: 72,
    heap: 80,
    keys: Some(56),
    ..NEW
};

/// The known layouts: 2.0, 2.1.2, that release in free-threaded CPython, and later releases, without keys, with keys for encoded
/// lists, with keys for padding alone.
pub(super) const ALL: [Layout; 9] = [
    OLD,
    Layout {
        start: Start::After,
        ..OLD
    },
    Layout {
        size: 96,
        start: Start::After,
        ..OLD
    },
    NEW,
    OLD_ENCODED,
    Layout {
        start: Start::After,
        ..OLD_ENCODED
    },
    NEW_ENCODED,
    Layout {
        start: Start::After,
        keys: None,
        ..OLD_ENCODED
    },
    Layout {
        keys: None,
        ..NEW_ENCODED
    },
];

/// Maximum size of blocks with [`Start::Fixed`] that begin after [`FIXED`] bytes.
const SMALL: u64 = 1024;
const FIXED: u64 = 384;

impl Start {
    /// Address of the first block of the page at `page`, with blocks of `size` bytes. `None` where a field
    /// has it.
    pub(super) fn address(self, page: u64, size: u64) -> Option<u64> {
        let offset = match self {
            Start::Field(_) => return None,
            Start::Fixed if (8..=SMALL).contains(&size) => FIXED,
            Start::Fixed => 0,
            Start::After => match size {
                8..=64 => 3 * size,
                65..=512 => size,
                _ => 0,
            },
        };
        page.checked_add(offset)
    }
}
