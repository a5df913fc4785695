//! Page cache: the file pages that the target's own IO brought in and that are still cached.

use std::collections::HashMap;

use super::{Books, Source};
use crate::event::StackId;
use crate::profile::{FileId, Usage};

/// The page-cache source.
pub const SOURCE: Source = Source {
    name: "page cache",
    unit: "bytes of page cache",
    programs: &["cache_add", "cache_delete"],
    optional: &[],
    opt_in: false,
};

/// Pairs of file and stack that are kept apart, about 50 bytes each.
const MOST_PAIRS: usize = 1 << 20;

/// Cached pages by file and stack.
pub type CachedPages = HashMap<(FileId, u32), u64>;

/// Books the cached pages per stack id and per file.
pub fn collect(pages: &CachedPages, page_size: u64, books: &mut Books) {
    for (pair, (&(file, id), &n)) in pages.iter().enumerate() {
        let cache = n * page_size;
        let usage = Usage {
            cache,
            ..Usage::default()
        };
        books.add_stack(StackId(id), usage);
        if pair < MOST_PAIRS {
            let stacks = books.files.entry(file).or_default();
            *stacks.entry(StackId(id)).or_default() += cache;
        } else {
            books.other_files += cache;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_stacks_hold_the_same_bytes() {
        let file = |ino| FileId { dev: (8, 1), ino };
        let pages = HashMap::from([((file(1), 5), 2), ((file(1), 6), 1), ((file(2), 5), 4)]);
        let mut books = Books::default();
        collect(&pages, 4096, &mut books);
        assert_eq!(books.stacks[&StackId(5)].cache, 6 * 4096);
        assert_eq!(books.stacks[&StackId(6)].cache, 4096);
        assert_eq!(books.files[&file(1)][&StackId(5)], 2 * 4096);
        assert_eq!(books.files[&file(1)].len(), 2);
        assert_eq!(books.files[&file(2)][&StackId(5)], 4 * 4096);
        assert_eq!(books.other_files, 0);
    }
}
