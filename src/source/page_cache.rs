//! Page cache: the file pages that the target's own IO brought in and that are still cached.

use std::collections::HashMap;

use super::{Books, Source};
use crate::event::StackId;
use crate::profile::Usage;

/// The page-cache source.
pub const SOURCE: Source = Source {
    name: "page cache",
    unit: "bytes of page cache",
    programs: &["cache_add", "cache_delete"],
    optional: &[],
};

/// Books the cached pages per stack id.
pub fn collect(pages: &HashMap<u32, u64>, page_size: u64, books: &mut Books) {
    for (&id, &n) in pages {
        let usage = Usage {
            cache: n * page_size,
            ..Usage::default()
        };
        books.add_stack(StackId(id), usage);
    }
}
