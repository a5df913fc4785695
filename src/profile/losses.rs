//! What a report is without.

/// What was not seen, lost or cut off, as counts since memprof attached. All zero is the normal case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Named counters that are not zero, in a fixed order: (what, how many).
    pub counters: Vec<(&'static str, u64)>,
}

impl Losses {
    /// Processes for which there was no room.
    pub const NOT_FOLLOWED: &'static str = "processes not followed: table full";
    /// Events that a report was made without: among them may be processes' beginnings.
    pub const BEHIND: &'static str =
        "bytes of events not taken in yet: more came than memprof could take in";

    /// Whether no process of the target is missing.
    pub fn have_all_processes(&self) -> bool {
        let missing =
            |(what, _): &(&str, u64)| [Losses::NOT_FOLLOWED, Losses::BEHIND].contains(what);
        !self.counters.iter().any(missing)
    }

    /// Those that concern processes that are in the report.
    pub(super) fn of_processes_followed(&self) -> Losses {
        let mut losses = self.clone();
        losses
            .counters
            .retain(|(what, _)| *what != Losses::NOT_FOLLOWED);
        losses
    }

    /// Adds a counter unless it is zero.
    pub fn add(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            self.counters.push((what, count));
        }
    }
}
