//! The tree of all extents, by address: a table with an entry for each GiB, which lies among the data of the module that
//! contains jemalloc, and below it tables with an element for each page, in jemalloc's own blocks.

use super::super::chunks::Kind;
use super::super::memory::Memory;
use super::base::{self, Block};
use super::layout::{ADDRESS, BITMAP, DESCRIPTION, Layout, SIZE};
use super::regions::{Extent, Regions, State};
use super::{PAGE, Refusal, classes, is_mapped};
use crate::residency::Vma;

/// Bits of an address that the lower table distinguishes, with those within a page.
const GIB: u32 = 30;
/// Number of entries of each table.
const ENTRIES: u64 = 1 << 18;
/// Size of a table, in bytes.
const TABLE: u64 = ENTRIES * 8;
/// Number of elements that are looked at to know for which addresses a table is.
const TRIED: usize = 64;
/// Maximum number of words that are looked at while the tree is looked for.
const MAX_WORDS: u64 = 1 << 28;
/// Maximum number of regions of a slab.
const MAX_REGIONS: u64 = 512;

/// The places of all trees, each with the name of its module.
pub(super) fn find(
    memory: &Memory,
    vmas: &[Vma],
    layout: &Layout,
    blocks: &[Block],
) -> Vec<(u64, String)> {
    let mut found: Vec<(u64, String)> = Vec::new();
    let mut left = MAX_WORDS;
    for (start, end, name) in data(vmas) {
        for run in memory.runs_in(start, end) {
            let bytes = memory.from(run.start).unwrap_or_default();
            let words = bytes[..bytes.len().min(run.len() as usize)]
                .as_chunks::<8>()
                .0;
            for (index, word) in words.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if !base::contain(blocks, word, TABLE) {
                    continue;
                }
                let at = run.start + 8 * index as u64;
                let root = root(memory, layout, blocks, (at, word), &mut left);
                let within = |root: &u64| *root >= start && root.saturating_add(TABLE) <= end;
                let Some(root) = root.filter(within) else {
                    continue;
                };
                if found.iter().all(|(known, _)| *known != root)
                    && tables(memory, blocks, root).is_some()
                {
                    found.push((root, name.to_owned()));
                }
            }
        }
    }
    found
}

/// The writable data of all modules: those of a file, and the anonymous memory behind them.
fn data(vmas: &[Vma]) -> Vec<(u64, u64, &str)> {
    let mut found: Vec<(u64, u64, &str)> = Vec::new();
    // The end of the module before, and its name.
    let mut module: Option<(u64, &str)> = None;
    for vma in vmas {
        let of_file = vma.ino != 0 && !vma.perms.shared;
        let behind = module.filter(|(end, _)| *end == vma.start.0 && vma.ino == 0);
        module = match (of_file, behind) {
            (true, _) => Some((vma.end.0, &vma.name)),
            (_, Some((_, name))) => Some((vma.end.0, name)),
            _ => None,
        };
        let Some((_, name)) = module.filter(|_| vma.perms.write) else {
            continue;
        };
        match found.last_mut() {
            Some((_, end, last)) if *end == vma.start.0 && *last == name => *end = vma.end.0,
            _ => found.push((vma.start.0, vma.end.0, name)),
        }
    }
    found
}

/// Where the tree begins, if this word is its entry for a table.
fn root(
    memory: &Memory,
    layout: &Layout,
    blocks: &[Block],
    (at, table): (u64, u64),
    left: &mut u64,
) -> Option<u64> {
    let mut tried = 0;
    for (index, word) in elements(memory, table, left) {
        let element = layout.element(word);
        if element.description == 0 {
            continue;
        }
        tried += 1;
        if tried > TRIED || !base::contain(blocks, element.description, DESCRIPTION) {
            return None;
        }
        let start = memory.word(element.description + ADDRESS)?;
        // An extent's first page is in the table for its address.
        if start / PAGE % ENTRIES == index {
            return at.checked_sub((start >> GIB) * 8);
        }
    }
    None
}

/// The elements of a table that are not zero, with their indexes.
fn elements<'a>(
    memory: &'a Memory,
    table: u64,
    left: &'a mut u64,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let runs = memory.runs_in(table, table + TABLE);
    let all = runs.flat_map(move |run| {
        let bytes = memory.from(run.start).unwrap_or_default();
        let words = bytes[..bytes.len().min(run.len() as usize)]
            .as_chunks::<8>()
            .0;
        let first = (run.start - table) / 8;
        (first..).zip(words.iter().map(|word| u64::from_le_bytes(*word)))
    });
    all.take_while(move |_| {
        *left = left.saturating_sub(1);
        *left > 0
    })
    .filter(|(_, word)| *word != 0)
}

/// The tables of a tree, with the first addresses that they describe. `None` if an entry is no table.
fn tables(memory: &Memory, blocks: &[Block], root: u64) -> Option<Vec<(u64, u64)>> {
    let mut left = u64::MAX;
    let mut tables = Vec::new();
    for (index, table) in elements(memory, root, &mut left) {
        // Addresses in user space are less than half.
        if index >= ENTRIES / 2 || !base::contain(blocks, table, TABLE) {
            return None;
        }
        tables.push((index << GIB, table));
    }
    (!tables.is_empty()).then_some(tables)
}

/// All extents.
pub(super) fn read(
    memory: &Memory,
    vmas: &[Vma],
    layout: &Layout,
    blocks: &[Block],
    root: u64,
) -> Result<Regions, Refusal> {
    let mut walk = Walk {
        memory,
        layout,
        blocks,
        regions: Regions::default(),
        current: None,
    };
    for (first, table) in tables(memory, blocks, root).ok_or(Refusal::NoTree)? {
        let mut left = u64::MAX;
        for (index, word) in elements(memory, table, &mut left) {
            walk.page(first + index * PAGE, word)?;
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
    /// Number of its pages that the tree has.
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
    /// A page, behind those before.
    fn page(&mut self, page: u64, word: u64) -> Result<(), Refusal> {
        let element = self.layout.element(word);
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
        // Of a page of a slab, and of the first one of a large region, the tree says what is there. Of others these bits
        // are old ones. Pages in the middle are registered of slabs only, without their state.
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

    /// The extent that begins with a page.
    fn extent(&mut self, page: u64, description: u64) -> Result<Current, Refusal> {
        let wrong = || Refusal::Extent(page);
        if !base::contain(self.blocks, description, DESCRIPTION) {
            return Err(wrong());
        }
        let word = |at| self.memory.word(description + at).ok_or_else(wrong);
        let (bits, address, size) = (word(0)?, word(ADDRESS)?, word(SIZE)? / PAGE * PAGE);
        let (start, class) = (address / PAGE * PAGE, self.layout.class(bits));
        let state = self.layout.state(bits);
        // (Of a free extent, the flag is an old one.)
        let is_slab = state == 0 && self.layout.is_slab(bits);
        let end = page.checked_add(size).filter(|end| *end > page);
        let end = end.filter(|_| start == page).ok_or_else(wrong)?;
        let mut extent = Extent {
            start,
            end,
            state: State::Active,
            at: address,
            size,
            first: self.regions.kinds.len(),
            count: 0,
        };
        match (state, is_slab) {
            (0, true) => {
                extent.size = classes::size(class);
                extent.count = (size / extent.size) as u32;
                let count = u64::from(extent.count);
                if class >= classes::SMALL || address != page || !(1..=MAX_REGIONS).contains(&count)
                {
                    return Err(wrong());
                }
                self.slab(description, count, self.layout.free(bits))?;
            }
            (0, false) => {
                // Regions of the large classes begin anywhere in their first page.
                extent.size = if class < classes::COUNT {
                    classes::size(class)
                } else {
                    0
                };
                extent.count = 1;
                if extent.size == 0 || extent.size > end - address {
                    return Err(wrong());
                }
                self.regions.kinds.push(Kind::Live);
            }
            (1, _) => extent.state = State::Dirty,
            (2, _) => extent.state = State::Muzzy,
            (3, _) => extent.state = State::Retained,
            // Its state is being changed.
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

    /// The regions of a slab: those whose bit is set are free, as many as it counts.
    fn slab(&mut self, description: u64, count: u64, free: u64) -> Result<(), Refusal> {
        let mut found = 0;
        // (Words behind the last region's are not used.)
        for index in 0..count.div_ceil(64) {
            let word = self.memory.word(description + BITMAP + 8 * index);
            let word = word.ok_or(Refusal::Slab(description))?;
            found += u64::from(word.count_ones());
            let here = (count - 64 * index).min(64);
            if here < 64 && word >> here != 0 {
                return Err(Refusal::Slab(description));
            }
            let kinds = (0..here).map(|bit| match word >> bit & 1 {
                1 => Kind::Small,
                _ => Kind::Live,
            });
            self.regions.kinds.extend(kinds);
        }
        match found == free {
            true => Ok(()),
            false => Err(Refusal::Slab(description)),
        }
    }

    /// Checks that all pages of the current extent were there.
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
