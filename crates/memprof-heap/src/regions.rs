//! Regions of equal size in extents of consecutive pages, by address: the common form of the heaps of jemalloc and of
//! the allocators in `spans`.

use super::chunks::ChunkKind;

/// Minimum size of an index window, as a power of two: 64 KiB.
const WINDOW: u32 = 16;
/// Maximum number of index windows.
const MAX_WINDOWS: u64 = 1 << 20;

/// The state of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentState {
    /// Contains regions in use.
    Active,
    /// Free, and written to.
    Dirty,
    /// Free, and the kernel may reclaim its pages (`MADV_FREE`).
    Muzzy,
    /// Free, and its pages were returned to the kernel.
    Retained,
    /// The allocator's own structures.
    Own,
}

/// An extent: consecutive pages in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// End of the extent.
    pub end: u64,
    pub state: ExtentState,
    /// Index of its arena; of the allocator, in a heap of [`super::spans`].
    pub arena: u16,
    /// Address of its first region.
    pub at: u64,
    /// Size of its regions, in bytes.
    pub size: u64,
    /// Index of its first region in [`Regions::kinds`].
    pub first: usize,
    /// Number of its regions.
    pub count: u32,
}

/// A region: index of its extent, and index in the extent.
pub(crate) type Region = (u32, u32);

/// All extents and regions.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// The extents, by address and disjoint.
    pub extents: Vec<Extent>,
    /// The kind of each region.
    pub kinds: Vec<ChunkKind>,
    /// For each index window, the first extent that ends after the window's beginning.
    windows: Vec<u32>,
    /// Size of a window, as a power of two.
    shift: u32,
}

impl Regions {
    /// First address of all extents, and their end.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.extents.first()?.start, self.extents.last()?.end))
    }

    /// Builds the index for [`Regions::containing`] once all extents are added.
    pub(crate) fn index(&mut self) {
        let Some((start, end)) = self.bounds() else {
            return;
        };
        self.shift = WINDOW;
        while (end - start) >> self.shift >= MAX_WINDOWS {
            self.shift += 1;
        }
        let mut index = 0;
        for window in 0..=(end - start) >> self.shift {
            let at = start + (window << self.shift);
            while self.extents.get(index).is_some_and(|e| e.end <= at) {
                index += 1;
            }
            self.windows.push(index as u32);
        }
    }

    /// The region that contains an address.
    pub(crate) fn containing(&self, addr: u64) -> Option<Region> {
        let window = addr.checked_sub(self.extents.first()?.start)? >> self.shift;
        let first = *self.windows.get(window as usize)? as usize;
        let next = self.windows.get(window as usize + 1);
        let last = next.map_or(self.extents.len(), |next| *next as usize + 1);
        let some = &self.extents[first..last.min(self.extents.len())];
        let index = first + some.partition_point(|extent| extent.end <= addr);
        let extent = self.extents.get(index)?;
        let inside = addr.checked_sub(extent.at).filter(|_| extent.count > 0)?;
        let number = match extent.count {
            1 => u64::from(inside >= extent.size),
            // Slabs are smaller than 4 GiB, so a 32-bit division suffices, which is faster.
            _ => u64::from(inside as u32 / extent.size as u32),
        };
        (number < u64::from(extent.count)).then_some((index as u32, number as u32))
    }

    /// First address and end of a region.
    pub(crate) fn place(&self, (extent, index): Region) -> (u64, u64) {
        let extent = &self.extents[extent as usize];
        let at = extent.at + u64::from(index) * extent.size;
        (at, at + extent.size)
    }

    /// The kind of a region.
    pub(crate) fn kind(&self, (extent, index): Region) -> ChunkKind {
        self.kinds[self.extents[extent as usize].first + index as usize]
    }

    /// Sets the kind of a region.
    pub(crate) fn set(&mut self, (extent, index): Region, kind: ChunkKind) {
        self.kinds[self.extents[extent as usize].first + index as usize] = kind;
    }

    /// The first region.
    pub(crate) fn first(&self) -> Option<Region> {
        self.first_from(0)
    }

    fn first_from(&self, extent: usize) -> Option<Region> {
        let rest = self.extents.get(extent..)?;
        let index = rest.iter().position(|extent| extent.count > 0)?;
        Some(((extent + index) as u32, 0))
    }

    /// The region after this one.
    pub(crate) fn next(&self, (extent, index): Region) -> Option<Region> {
        if index + 1 < self.extents[extent as usize].count {
            return Some((extent, index + 1));
        }
        self.first_from(extent as usize + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two slabs with 3 regions of 80 bytes each, and far away a large region that begins inside its extent.
    #[test]
    fn regions_are_found_by_any_of_their_addresses() {
        let mut regions = Regions::default();
        for (start, state, at, size, count) in [
            (0x10000, ExtentState::Active, 0x10000, 80, 3),
            (0x11000, ExtentState::Dirty, 0x11000, 0x1000, 0),
            (0x12000, ExtentState::Active, 0x12000, 80, 3),
            (1 << 46, ExtentState::Active, (1 << 46) + 0x40, 0x800, 1),
        ] {
            regions.extents.push(Extent {
                start,
                end: start + 0x1000,
                state,
                arena: 0,
                at,
                size,
                first: regions.kinds.len(),
                count,
            });
            let more = regions.kinds.len() + count as usize;
            regions.kinds.resize(more, ChunkKind::Live);
        }
        regions.index();
        let mut all = Vec::new();
        let mut next = regions.first();
        while let Some(region) = next {
            let (start, end) = regions.place(region);
            assert_eq!(regions.containing(start), Some(region));
            assert_eq!(regions.containing(end - 1), Some(region));
            all.push(region);
            next = regions.next(region);
        }
        assert_eq!(
            all,
            [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (3, 0)]
        );
        for none in [
            0,
            0xffff,
            0x100f0,
            0x11000,
            0x13000,
            1 << 46,
            (1 << 46) + 0x840,
            1 << 47,
        ] {
            assert_eq!(regions.containing(none), None, "{none:#x}");
        }
    }
}
