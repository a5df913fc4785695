//! JIT code in the probe: code generations, so that stacks through replaced code are different stacks.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result};

use super::{Probe, shared};
use crate::probe::wire::{CODE_GENERATION_BITS, CODE_GRANULE_BITS};
use memprof_sys::ids::MmId;

impl Probe {
    /// Whether a followed process has mapped memory for JIT code.
    pub fn sees_runtime_code(&self) -> bool {
        self.bss(|b| &raw const b.jit_code_seen) != 0
    }

    /// Hooks the returns of `write`, by which runtimes name their JIT code.
    ///
    /// Called once a process has JIT code, because every `write` of every process costs more from then on. Does nothing if system
    /// calls are hooked at tracepoints, or if the hook was tried before.
    ///
    /// # Errors
    /// The kernel refuses the hook; it is not tried again.
    pub fn see_names_written(&mut self) -> Result<()> {
        let Some(functions) = self.functions.as_mut().filter(|f| !f.sees_writes()) else {
            return Ok(());
        };
        functions
            .see_writes(&self.skel)
            .context("names of JIT code may be those of other code that was at the same address")?;
        // Code that was named before may have been replaced.
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.code_generation_of_all).fetch_add(1, SeqCst);
        }
        self.tables_changed();
        Ok(())
    }

    /// Makes the probe examine the code behind a call before it uses the frame pointer, in JIT code.
    pub fn expect_epilogues(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.code_has_epilogues).store(1, SeqCst);
        }
    }

    /// Notifies the probe that the code at these addresses was replaced.
    pub fn code_replaced(&mut self, mm: MmId, addresses: Range<u64>) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            let granules = addresses.start >> CODE_GRANULE_BITS
                ..=addresses.end.saturating_sub(1) >> CODE_GRANULE_BITS;
            // This number of adjacent granules covers all slots.
            for granule in granules.take(1 << CODE_GENERATION_BITS) {
                shared(&mut bss.code_generations[code_slot(mm, granule)]).fetch_add(1, SeqCst);
            }
        }
        self.tables_changed();
    }
}

/// Mirrors `code_slot()` in code.bpf.h. Adjacent granules have adjacent slots.
fn code_slot(mm: MmId, granule: u64) -> usize {
    let slots = 1 << CODE_GENERATION_BITS;
    (granule.wrapping_add(u64::from(mm.0).wrapping_mul(0x9e37_79b1)) & (slots - 1)) as usize
}
