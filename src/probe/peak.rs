//! The peaks of the followed processes (`peak.bpf.h`).

use std::sync::atomic::Ordering::SeqCst;

use super::{Probe, shared};

impl Probe {
    /// Has the probe report peaks of more than `floor` pages from now on. `at_exit` is whether peaks that last until `exit` are
    /// reported, too.
    pub fn report_peaks(&mut self, floor: u64, at_exit: bool) {
        let maps = &mut self.skel.maps;
        let (Some(data), Some(bss)) = (maps.data_data.as_deref_mut(), maps.bss_data.as_deref_mut())
        else {
            return;
        };
        // The greatest number stands for no reports.
        let floor = u32::try_from(floor).unwrap_or(u32::MAX).min(u32::MAX - 1);
        shared(&mut data.peak_floor).store(floor, SeqCst);
        shared(&mut bss.peak_at_exit).store(at_exit.into(), SeqCst);
    }
}
