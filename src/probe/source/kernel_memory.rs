//! Kernel memory that the target allocated, page by page (`--kernel`): approximate. `kernel.bpf.h` describes what
//! counts.

use std::collections::HashMap;

use anyhow::Result;

use super::{Ledger, ReadLedger, Source, Totals};
use crate::probe::wire::{self, kernel_page};
use memprof_profile::Amounts;
use memprof_profile::measure::{KERNEL_BYTES, KERNEL_MEMORY};
use memprof_sys::ids::StackId;

/// The source of kernel memory.
pub static SOURCE: Source = Source {
    name: "kernel memory",
    programs: &[
        "kernel_page_allocated",
        "kernel_page_freed",
        "kernel_page_cached",
    ],
    at_faults: &[],
    optional: &[],
    tracepoints: &[],
    measure: &KERNEL_MEMORY,
    option: Some("--kernel"),
    on_demand: &[],
    maps: &["kernel_filter"],
    ledger: Some(&LEDGER),
    collect: Some(collect),
};

static LEDGER: Ledger = Ledger {
    map: "kernel_pages",
    entries: |bss| &raw const bss.kernel_allocations,
    batch: 8192,
    stacks: 0..4,
};

fn collect(probe: &dyn ReadLedger, page_size: u64, totals: &mut Totals) -> Result<()> {
    // Summed up first, because many entries have the same stack.
    let mut pages: HashMap<u32, u64> = HashMap::new();
    probe.read(&LEDGER, &mut |_, value| {
        if let Ok(entry) = wire::read_record::<kernel_page>(value, size_of::<kernel_page>()) {
            *pages.entry(entry.stack).or_default() += u64::from(entry.pages);
        }
    })?;
    for (id, n) in pages {
        totals.add_stack(StackId(id), Amounts::in_column(KERNEL_BYTES, n * page_size));
    }
    Ok(())
}
