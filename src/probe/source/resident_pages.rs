//! The resident-pages source: which pages came in by which stack. `collect::resident` joins them with the page scan.

use anyhow::Result;

use super::{Ledger, Source, Tracepoints};
use crate::probe::wire::{CHUNK_PAGES, page_chunk};
use memprof_profile::measure::RESIDENCY;
use memprof_sys::ids::MmId;

/// The optional program that sees the out-of-memory killer.
pub const OOM_HOOK: &str = "oom_kill";

/// The resident-pages source.
pub static SOURCE: Source = Source {
    name: "resident pages",
    programs: &[],
    at_faults: &["page_allocated"],
    optional: &[OOM_HOOK],
    tracepoints: &[Tracepoints {
        check: "ownership tracepoints",
        names: &[
            "mm_page_alloc",
            "sched_process_fork",
            "sched_process_exec",
            "sched_process_exit",
            "sched_process_free",
        ],
        consequence: "page allocations cannot be told from other faults, and processes cannot be followed",
        remedy: "boot a kernel built with CONFIG_TRACEPOINTS=y and CONFIG_DEBUG_INFO_BTF=y",
    }],
    measure: &RESIDENCY,
    option: None,
    on_demand: &[],
    maps: &[],
    ledger: Some(&Ledger {
        map: "pages",
        entries: |bss| &raw const bss.page_chunks,
        // 2 KiB each.
        batch: 256,
        stacks: 0..size_of::<page_chunk>(),
    }),
    collect: None,
};

/// The entries of one chunk's pages (`enum page_record`); 0 where there is no record.
pub type Chunk = [u32; CHUNK_PAGES];

/// Reads the records of pages.
pub trait PageLedger {
    /// The records of a chunk (page number / 512) of an address space; `None` if it has none.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>>;
}
