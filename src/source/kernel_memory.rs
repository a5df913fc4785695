//! Kernel memory that the target had allocated, page by page (`--kernel`): approximate. What counts and
//! what does not stands in `kernel.bpf.h`.

use std::collections::HashMap;

use super::{Books, Source};
use crate::event::StackId;
use crate::profile::Usage;

/// The source of kernel memory.
pub const SOURCE: Source = Source {
    name: "kernel memory",
    unit: "bytes of kernel memory, approximate",
    programs: &[
        "kernel_page_allocated",
        "kernel_page_freed",
        "kernel_page_cached",
    ],
    optional: &[],
    opt_in: true,
};

/// The maps that its programs alone use.
pub const MAPS: [&str; 2] = ["kernel_pages", "kernel_filter"];

/// Pages by the id of the stack that had them allocated.
pub type KernelPages = HashMap<u32, u64>;

/// Books the pages per stack id.
pub fn collect(pages: &KernelPages, page_size: u64, books: &mut Books) {
    for (&id, &n) in pages {
        let usage = Usage {
            kernel: n * page_size,
            ..Usage::default()
        };
        books.add_stack(StackId(id), usage);
    }
}
