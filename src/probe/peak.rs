//! The peak of the followed process (`peak.bpf.h`).

use std::sync::atomic::Ordering::SeqCst;

use super::{Probe, shared};
use memprof_sys::ids::MmId;

impl Probe {
    /// Has the probe report the peaks of this address space, from now on; `None` for no reports. `at_exit` is whether a peak that
    /// lasts until `exit` is reported, too.
    pub fn report_peaks(&mut self, space: Option<MmId>, at_exit: bool) {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        let space = space.map_or(0, |mm| mm.0);
        shared(&mut bss.peak_at_exit).store(at_exit.into(), SeqCst);
        // By itself, the probe goes on with the program that a process executes.
        if shared(&mut bss.peak_space).swap(space, SeqCst) != space {
            (bss.peak_copied, bss.peak_seen) = (0, 0);
        }
    }
}
