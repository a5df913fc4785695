//! Finds tcmalloc's table of size classes, its central lists, and the root of its tree of pages, in a module's data.

use super::super::memory::Memory;
use super::super::module_data::module_data;
use memprof_sys::residency::Vma;

/// Maximum number of size classes, for which the tables have room.
pub(super) const CLASSES: u64 = 128;
/// Minimum number of size classes.
const FEWEST: u64 = 30;
/// Size of the largest class, in bytes.
const LARGEST: u32 = 256 << 10;
/// Offset of the table of sizes from the number of classes behind it, and of the table of pages between them. The
/// latter is aligned.
const SIZES: [u64; 2] = [12 * CLASSES + 4, 12 * CLASSES];
const PAGES: u64 = 8 * CLASSES;
/// Sizes of a central list, of releases with different padding.
const STRIDES: [u64; 3] = [1216, 1152, 1280];

/// The tables.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    /// Name of the file that contains the allocator.
    pub module: &'a str,
    /// Range of its data.
    pub data: (u64, u64),
    /// Size of the blocks of each class, in bytes.
    pub sizes: Vec<u64>,
    /// Number of pages of the spans of each class.
    pub pages: Vec<u64>,
    /// Address of each class's central list.
    pub central: Vec<u64>,
}

/// Finds the tables in all modules.
pub(super) fn find<'a>(memory: &Memory, vmas: &'a [Vma]) -> Vec<Tables<'a>> {
    let mut found: Vec<Tables> = Vec::new();
    for (start, end, module) in module_data(vmas) {
        let sizes = memory
            .words_in(start, end)
            .filter(|(_, word)| (FEWEST..=CLASSES).contains(word));
        let sizes: Vec<_> = sizes
            .filter_map(|(at, count)| sizes_before(memory, at, count))
            .collect();
        for (sizes, pages) in sizes {
            let lists = memory
                .words_in(start, end)
                .filter(|(_, word)| *word == 0)
                .find_map(|(at, _)| central(memory, at, sizes.len() as u64));
            found.extend(lists.map(|central| Tables {
                module,
                data: (start, end),
                sizes,
                pages,
                central,
            }));
        }
    }
    found
}

/// The tables of sizes and pages, if the word at `at` is their number of classes.
fn sizes_before(memory: &Memory, at: u64, count: u64) -> Option<(Vec<u64>, Vec<u64>)> {
    let pages = at.checked_sub(PAGES)?;
    let pages = (0..count).map(|class| memory.word(pages + 8 * class));
    let read = |sizes: u64| {
        if memory.half(sizes + 4)? != 8 || memory.half(sizes + 4 * (count - 1))? != LARGEST {
            return None;
        }
        let sizes = (0..count).map(|class| memory.half(sizes + 4 * class).map(u64::from));
        let sizes = sizes.collect::<Option<Vec<u64>>>()?;
        let ascend = sizes[0] == 0 && sizes.windows(2).all(|pair| pair[0] < pair[1]);
        ascend.then_some(sizes)
    };
    let sizes = SIZES
        .into_iter()
        .filter_map(|offset| at.checked_sub(offset));
    let sizes = sizes.filter_map(read).next()?;
    let pages = pages.collect::<Option<Vec<u64>>>()?;
    let fits = pages[1..].iter().all(|pages| (1..=256).contains(pages));
    fits.then_some((sizes, pages))
}

/// The central lists of all classes, if the first one's class, which is 0, is at `at`.
fn central(memory: &Memory, at: u64, count: u64) -> Option<Vec<u64>> {
    // The class follows a lock.
    let start = at.checked_sub(8)?;
    STRIDES.into_iter().find_map(|stride| {
        let class = |class: u64| memory.word(at.checked_add(stride * class)?);
        let fits = (1..count).all(|number| class(number) == Some(number));
        fits.then(|| (0..count).map(|class| start + stride * class).collect())
    })
}
