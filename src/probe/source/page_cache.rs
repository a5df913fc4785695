//! Page cache: file pages that the target's own I/O brought in and that remain cached.

use std::collections::HashMap;

use anyhow::Result;

use super::{Ledger, ReadLedger, Source, Totals, Tracepoints};
use crate::probe::wire::{self, STACK_NONE, cache_chunk, cache_key};
use memprof_profile::measure::RESIDENCY;
use memprof_sys::file_id::FileId;
use memprof_sys::ids::StackId;
use memprof_sys::usage::Usage;

/// The page-cache source.
pub static SOURCE: Source = Source {
    name: "page cache",
    programs: &["cache_add", "cache_delete"],
    at_faults: &[],
    optional: &[],
    tracepoints: &[Tracepoints {
        check: "page-cache tracepoints",
        names: &[
            "mm_filemap_add_to_page_cache",
            "mm_filemap_delete_from_page_cache",
        ],
        consequence: "the page cache cannot be attributed, and the probe does not attach without it",
        remedy: "boot a kernel built with CONFIG_TRACEPOINTS=y",
    }],
    measure: &RESIDENCY,
    option: None,
    on_demand: &[],
    maps: &[],
    ledger: Some(&LEDGER),
    collect: Some(collect),
};

static LEDGER: Ledger = Ledger {
    map: "cache",
    entries: |bss| &raw const bss.cache_chunks,
    // 2 KiB each.
    batch: 256,
    stacks: std::mem::offset_of!(cache_chunk, stack)..size_of::<cache_chunk>(),
};

/// Bits of the minor number in the kernel's own `dev_t`.
const KERNEL_MINOR_BITS: u32 = 20;

/// Maximum number of pairs of file and stack that are counted separately, about 50 bytes each.
const MAX_PAIRS: usize = 1 << 20;

/// Cached pages by file and stack.
type CachedPages = HashMap<(FileId, u32), u64>;

fn collect(probe: &dyn ReadLedger, page_size: u64, totals: &mut Totals) -> Result<()> {
    let mut pages = CachedPages::new();
    probe.read(&LEDGER, &mut |key, value| {
        let key = wire::read_record::<cache_key>(key, size_of::<cache_key>());
        let chunk = wire::read_record::<cache_chunk>(value, size_of::<cache_chunk>());
        if let (Ok(key), Ok(chunk)) = (key, chunk) {
            add_chunk(&key, &chunk, &mut pages);
        }
    })?;
    add(&pages, page_size, totals);
    Ok(())
}

fn add_chunk(key: &cache_key, chunk: &cache_chunk, pages: &mut CachedPages) {
    let major = key.dev >> KERNEL_MINOR_BITS;
    let minor = key.dev & ((1 << KERNEL_MINOR_BITS) - 1);
    let file = FileId {
        dev: (major, minor),
        ino: key.ino,
    };
    for run in chunk.stack.chunk_by(|a, b| a == b) {
        if run[0] != STACK_NONE {
            *pages.entry((file, run[0])).or_default() += run.len() as u64;
        }
    }
}

/// Adds the cached pages by stack id and by file.
fn add(pages: &CachedPages, page_size: u64, totals: &mut Totals) {
    for (pair, (&(file, id), &n)) in pages.iter().enumerate() {
        let cache = n * page_size;
        let usage = Usage {
            cache,
            ..Usage::default()
        };
        totals.add_stack(StackId(id), usage);
        if pair < MAX_PAIRS {
            let stacks = totals.files.entry(file).or_default();
            *stacks.entry(StackId(id)).or_default() += cache;
        } else {
            totals.other_files += cache;
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
        let mut totals = Totals::default();
        add(&pages, 4096, &mut totals);
        assert_eq!(totals.stacks[&StackId(5)].usage.cache, 6 * 4096);
        assert_eq!(totals.stacks[&StackId(6)].usage.cache, 4096);
        assert_eq!(totals.files[&file(1)][&StackId(5)], 2 * 4096);
        assert_eq!(totals.files[&file(1)].len(), 2);
        assert_eq!(totals.files[&file(2)][&StackId(5)], 4 * 4096);
        assert_eq!(totals.other_files, 0);
    }
}
