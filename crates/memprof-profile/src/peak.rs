//! The moment at which the target had the most resident memory.

use std::time::Duration;

use memprof_sys::text::grouped;
use serde::{Deserialize, Serialize};

/// The highest resident memory of the target so far, in bytes. The fields are those of saved profiles.
///
/// # Examples
///
/// ```
/// use memprof_profile::Peak;
///
/// let peak = Peak { rss: 142_380 << 10, high_water: Some(142_912 << 10), after_ms: 3210, is_shown: true };
/// assert_eq!(peak.to_string(), "at its peak (142,380 KiB of 142,912 KiB VmHWM, after 3.2 s)");
/// assert_eq!(peak.highest(), 142_912 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peak {
    /// Resident memory (anonymous, shared and of files) at the highest moment of which memprof has a profile.
    pub rss: u64,
    /// The kernel's `VmHWM`; `None` if it is unknown, or if there are several processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_water: Option<u64>,
    /// Time from the start of following the target to that moment, in milliseconds.
    pub after_ms: u64,
    /// Whether the profile that has this value shows that moment.
    pub is_shown: bool,
}

impl Peak {
    /// The highest resident memory, in bytes: the kernel's figure if it is known.
    pub fn highest(&self) -> u64 {
        self.high_water.unwrap_or(0).max(self.rss)
    }
}

impl std::fmt::Display for Peak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let after = Duration::from_millis(self.after_ms).as_secs_f64();
        write!(f, "at its peak ({} KiB", grouped(self.rss >> 10))?;
        match self.high_water {
            Some(bytes) => write!(f, " of {} KiB VmHWM", grouped(bytes >> 10))?,
            None => write!(f, " in all processes together")?,
        }
        write!(f, ", after {after:.1} s)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figure_counts_unless_it_is_older() {
        let peak = |high_water| Peak {
            rss: 100,
            high_water,
            after_ms: 0,
            is_shown: false,
        };
        let highest = [None, Some(90), Some(110)].map(|high| peak(high).highest());
        assert_eq!(highest, [100, 100, 110]);
    }
}
