//! Data missing from a report.

use std::borrow::Cow;

/// Counts of events and stacks that were missed, lost or truncated since memprof attached, and of memory that is omitted on
/// purpose. Normally nothing is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The nonzero counters in a fixed order: (name, count). [`Losses::lost`] and [`Losses::not_counted`] distinguish them.
    pub counters: Vec<(Cow<'static, str>, u64)>,
}

impl Losses {
    /// Processes that did not fit into the table of followed processes.
    pub const NOT_FOLLOWED: &'static str = "processes not followed: table full";
    /// Processes whose pages could not be read.
    pub const NOT_SCANNED: &'static str =
        "processes not scanned, and in no figure: their pages cannot be read";
    /// Processes with the figures of an earlier report, both memprof's and the kernel's.
    pub const OLDER: &'static str = "processes with the figures of an earlier report: too many have changed to scan all at once";
    /// File systems and directories of targets that do not respond.
    pub const UNANSWERED: &'static str = "file systems and directories of targets that do not answer now: names, lines and unwind tables of their files are missing, and are read later";
    /// Like [`Losses::OLDER`], for processes whose mmap lock is held.
    pub const HELD: &'static str = "processes with the figures of an earlier report: their mmap lock is held, so that reading them would wait";
    /// Runs of the probe's BPF programs that the kernel skipped.
    pub const SKIPPED_PROGRAMS: &'static str = "page faults and other events, of any process, that the kernel did not report: it preempted the probe";
    /// Events not processed before the report was made. They may include the start of processes.
    pub const BEHIND: &'static str =
        "bytes of events not taken in yet: more came than memprof could take in";

    /// Pages that no total includes, by design. Nothing is missing from any figure.
    pub const BLOCK_DEVICE: &'static str = "block-device cache pages (file-system metadata)";

    /// Counters that make figures or stacks incomplete: (name, count).
    pub fn lost(&self) -> impl Iterator<Item = &(Cow<'static, str>, u64)> {
        self.counters
            .iter()
            .filter(|(what, _)| *what != Losses::BLOCK_DEVICE)
    }

    /// The sum of [`Losses::lost`].
    pub fn lost_events(&self) -> u64 {
        self.lost()
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Counters of memory that was observed and is omitted from all figures on purpose: (name, count).
    pub fn not_counted(&self) -> impl Iterator<Item = &(Cow<'static, str>, u64)> {
        self.counters
            .iter()
            .filter(|(what, _)| *what == Losses::BLOCK_DEVICE)
    }

    /// Whether every process of the target is included.
    pub fn have_all_processes(&self) -> bool {
        let missing = |(what, _): &(Cow<'_, str>, u64)| {
            [Losses::NOT_FOLLOWED, Losses::NOT_SCANNED, Losses::BEHIND].contains(&&**what)
        };
        !self.counters.iter().any(missing)
    }

    /// The losses that concern the processes in the report.
    pub(super) fn of_processes_followed(&self) -> Losses {
        let mut losses = self.clone();
        losses
            .counters
            .retain(|(what, _)| ![Losses::NOT_FOLLOWED, Losses::NOT_SCANNED].contains(&&**what));
        losses
    }

    /// Whether a counter is nonzero.
    pub fn has(&self, what: &str) -> bool {
        self.counters.iter().any(|(counted, _)| *counted == what)
    }

    /// Adds a counter unless it is zero.
    pub fn add(&mut self, what: impl Into<Cow<'static, str>>, count: u64) {
        if count > 0 {
            self.counters.push((what.into(), count));
        }
    }
}
