//! Finds the processes whose start or end was lost because the ring buffer was full.

use std::collections::HashSet;

use anyhow::Result;

use crate::collect::aggregate::Aggregator;
use crate::probe::Probe;
use crate::probe::event::{Event, ProcessChange, ProcessEvent};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::process::comm;

/// The end of a process whose figures at that moment are not known.
const ENDED: ProcessChange = ProcessChange::Exited {
    has_memory: false,
    page_tables: 0,
    highest_rss: 0,
};

/// The changes that bring the aggregator in line with what the probe follows. All older events must have been
/// taken from the ring buffer; events that arrive during the call then have no further effect.
///
/// # Errors
/// The probe's table of processes could not be read.
pub(super) fn unheard(probe: &Probe, known: &Aggregator) -> Result<Vec<Event>> {
    let followed = probe.processes()?;
    let live: HashSet<MmId> = followed.iter().map(|(_, mm)| *mm).collect();
    let began = followed.into_iter().filter(|(_, mm)| !known.has(*mm));
    // Starts come first: the target must not count as ended if another process has taken its place.
    let mut changes: Vec<Event> = began
        .map(|(pid, mm)| event(pid, mm, ProcessChange::Found))
        .collect();
    let ended = known.spaces().into_iter();
    let ended = ended.filter(|(mm, _)| !live.contains(mm));
    changes.extend(ended.map(|(mm, pid)| event(pid, mm, ENDED)));
    Ok(changes)
}

fn event(pid: Pid, mm: MmId, change: ProcessChange) -> Event {
    Event::Process(ProcessEvent {
        pid,
        mm,
        comm: comm(pid).unwrap_or_default(),
        change,
    })
}
