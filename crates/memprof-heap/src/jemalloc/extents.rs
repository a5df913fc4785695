//! Reads all extents from the tree. Each page's entry in the tree must match the descriptor of the page's extent.

use super::super::chunks::ChunkKind;
use super::super::memory::Memory;
use super::base::{self, Block};
use super::layout::{ADDRESS, BITMAP, DESCRIPTION, Element, Layout, SIZE};
use super::tree::Tree;
use super::{Extent, ExtentState, Regions};
use super::{PAGE, Refusal, classes, is_mapped};
use memprof_sys::residency::Vma;

/// Maximum number of regions of a slab.
const MAX_REGIONS: u64 = 512;

/// Reads all extents.
pub(super) fn read(tree: &Tree, vmas: &[Vma], root: u64) -> Result<Regions, Refusal> {
    let mut walk = Walk {
        memory: tree.memory,
        layout: tree.layout,
        blocks: tree.blocks,
        regions: Regions::default(),
        current: None,
    };
    let lowest = tree.shape.levels - 1;
    for (first, table) in tree.tables(root).ok_or(Refusal::NoTree)? {
        for (index, word, second) in tree.entries(lowest, table) {
            if word == 0 {
                continue;
            }
            let page = tree.shape.address(lowest, first, index);
            walk.page(page, &tree.layout.element(&tree.shape, word, second))?;
        }
    }
    walk.finish()?;
    let extents = &walk.regions.extents;
    if let Some(outside) = extents.iter().find(|e| !is_mapped(vmas, e.start, e.end)) {
        return Err(Refusal::Extent(outside.start));
    }
    Ok(walk.regions)
}

/// The extent whose pages are being read.
#[derive(Clone, Copy, Debug)]
struct Current {
    description: u64,
    start: u64,
    end: u64,
    class: u64,
    state: u64,
    is_slab: bool,
    /// Number of its pages seen in the tree so far.
    pages: u64,
}

struct Walk<'a> {
    memory: &'a Memory,
    layout: &'a Layout,
    blocks: &'a [Block],
    regions: Regions,
    current: Option<Current>,
}

impl Walk<'_> {
    /// Checks a page. Addresses must ascend.
    fn page(&mut self, page: u64, element: &Element) -> Result<(), Refusal> {
        if element.description == 0 {
            return Ok(());
        }
        let current = match &mut self.current {
            Some(current) if page < current.end => current,
            _ => {
                self.finish()?;
                let extent = self.extent(page, element.description)?;
                self.current.insert(extent)
            }
        };
        current.pages += 1;
        let is_boundary = page == current.start || page == current.end - PAGE;
        // Class and slab flag of an entry are valid for all pages of a slab and for the first page of a large region;
        // elsewhere they are stale. Inner pages are registered for slabs only, without their state.
        let says = current.state == 0 && (current.is_slab || page == current.start);
        let same = (element.is_slab, element.class) == (current.is_slab, current.class);
        let same_state = element.state.is_none_or(|state| state == current.state);
        let fits = element.description == current.description
            && (same || !says)
            && if is_boundary {
                same_state
            } else {
                current.is_slab
            };
        match fits {
            true => Ok(()),
            false => Err(Refusal::Page(page)),
        }
    }

    /// Reads the extent that begins with a page.
    fn extent(&mut self, page: u64, description: u64) -> Result<Current, Refusal> {
        let wrong = || Refusal::Extent(page);
        if !base::contain(self.blocks, description, DESCRIPTION) {
            return Err(wrong());
        }
        let word = |at| self.memory.word(description + at).ok_or_else(wrong);
        let (bits, address, size) = (word(0)?, word(ADDRESS)?, word(SIZE)? / PAGE * PAGE);
        let (start, class) = (address / PAGE * PAGE, self.layout.class(bits));
        let state = self.layout.state(bits);
        // The flag of a free extent is stale.
        let is_slab = state == 0 && self.layout.is_slab(bits);
        let end = page.checked_add(size).filter(|end| *end > page);
        let end = end.filter(|_| start == page).ok_or_else(wrong)?;
        let mut extent = Extent {
            start,
            end,
            state: ExtentState::Active,
            arena: self.layout.arena(bits),
            at: address,
            size,
            first: self.regions.kinds.len(),
            count: 0,
        };
        match (state, is_slab) {
            (0, true) => {
                if class >= classes::SMALL || address != page {
                    return Err(wrong());
                }
                extent.size = classes::size(class);
                let count = size / extent.size;
                if !(1..=MAX_REGIONS).contains(&count) {
                    return Err(wrong());
                }
                extent.count = count as u32;
                self.slab(description, count, self.layout.free(bits))?;
            }
            (0, false) => {
                // Large regions begin anywhere in their first page.
                extent.size = if class < classes::COUNT {
                    classes::size(class)
                } else {
                    0
                };
                extent.count = 1;
                if extent.size == 0 || extent.size > end - address {
                    return Err(wrong());
                }
                self.regions.kinds.push(ChunkKind::Live);
            }
            (1, _) => extent.state = ExtentState::Dirty,
            (2, _) => extent.state = ExtentState::Muzzy,
            (3, _) => extent.state = ExtentState::Retained,
            // The state is being changed.
            _ => return Err(wrong()),
        }
        self.regions.extents.push(extent);
        Ok(Current {
            description,
            start,
            end,
            class,
            state,
            is_slab,
            pages: 0,
        })
    }

    /// Reads the bitmap of a slab. Set bits are free regions, and their number must equal the slab's counter.
    fn slab(&mut self, description: u64, count: u64, free: u64) -> Result<(), Refusal> {
        let mut found = 0;
        // Words beyond the last region are unused.
        for index in 0..count.div_ceil(64) {
            let word = self.memory.word(description + BITMAP + 8 * index);
            let word = word.ok_or(Refusal::Slab(description))?;
            found += u64::from(word.count_ones());
            let here = (count - 64 * index).min(64);
            if here < 64 && word >> here != 0 {
                return Err(Refusal::Slab(description));
            }
            let kinds = (0..here).map(|bit| match word >> bit & 1 {
                1 => ChunkKind::Small,
                _ => ChunkKind::Live,
            });
            self.regions.kinds.extend(kinds);
        }
        match found == free {
            true => Ok(()),
            false => Err(Refusal::Slab(description)),
        }
    }

    /// Checks that all pages of the current extent were in the tree.
    fn finish(&mut self) -> Result<(), Refusal> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let all = (current.end - current.start) / PAGE;
        let wanted = if current.is_slab { all } else { all.min(2) };
        match current.pages == wanted {
            true => Ok(()),
            false => Err(Refusal::Extent(current.start)),
        }
    }
}
