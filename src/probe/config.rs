//! Settings of the probe, fixed when it is loaded.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::source::{self, Source};

/// Settings of the probe, fixed when it is loaded.
#[derive(Clone)]
pub struct ProbeConfig {
    /// Follow children too.
    pub follow_forks: bool,
    /// How stacks are taken; with `Unwind::Off` all memory has one empty stack.
    pub unwind: Unwind,
    /// Maximum number of frames taken of a stack, the innermost ones; within [`FRAME_LIMITS`].
    pub max_frames: u32,
    /// Which page faults have their stack walked.
    pub stacks: Stacks,
    /// The event sources that are loaded (`source::chosen`).
    pub sources: Vec<&'static Source>,
    /// The name to wait for at `exec` (`comm`, at most 15 bytes).
    pub wanted_comm: Option<String>,
}

impl Default for ProbeConfig {
    /// The sources that need no option, and stacks of the usual depth.
    fn default() -> ProbeConfig {
        ProbeConfig {
            follow_forks: false,
            unwind: Unwind::default(),
            max_frames: *FRAME_LIMITS.start(),
            stacks: Stacks::All,
            sources: source::chosen(&[]),
            wanted_comm: None,
        }
    }
}

/// Which page faults have their stack walked. The sums do not depend on it: they come from the kernel's page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    /// All of them.
    #[default]
    All,
    /// After the first 16,384 faults, one of so many, chosen at random.
    OneIn(NonZeroU32),
    /// None: faults have no hook. Memory has the stack of the call that mapped its range.
    Off,
}

impl Stacks {
    /// Maximum number of faults of which one is walked.
    pub const MAX_INTERVAL: u32 = 65_536;

    /// Of so many faults, one is walked.
    pub(crate) fn interval(self) -> NonZeroU32 {
        match self {
            Stacks::All | Stacks::Off => NonZeroU32::MIN,
            Stacks::OneIn(interval) => interval,
        }
    }
}

impl FromStr for Stacks {
    type Err = &'static str;

    /// Parses `all`, `1/N` or `off`.
    fn from_str(text: &str) -> Result<Stacks, &'static str> {
        match text {
            "all" => return Ok(Stacks::All),
            "off" => return Ok(Stacks::Off),
            _ => {}
        }
        let interval = text.strip_prefix("1/").and_then(|n| n.parse().ok());
        match interval {
            Some(NonZeroU32::MIN) => Ok(Stacks::All),
            Some(n) if n.get() <= Stacks::MAX_INTERVAL => Ok(Stacks::OneIn(n)),
            _ => Err("expected `all`, `off`, or `1/N` with N from 1 to 65536"),
        }
    }
}

/// How stacks are walked: the values of `enum unwind_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unwind {
    /// No stacks.
    Off = 0,
    /// By frame pointers only.
    FramePointers = 1,
    /// By unwind tables only.
    Tables = 2,
    /// By unwind tables, and by frame pointers where code has none.
    #[default]
    Auto = 3,
}

impl Unwind {
    /// Whether tables have to be built.
    pub fn needs_tables(self) -> bool {
        matches!(self, Unwind::Tables | Unwind::Auto)
    }
}

/// Permitted values of `max_frames`. Up to the lower bound, a walk is cached and costs little; at the
/// upper bound, walking every frame on each event is still bearable.
pub const FRAME_LIMITS: RangeInclusive<u32> = 128..=1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_all_or_a_share() {
        let one_in = |n| Ok(Stacks::OneIn(NonZeroU32::new(n).unwrap()));
        for (text, stacks) in [
            ("all", Ok(Stacks::All)),
            ("1/1", Ok(Stacks::All)),
            ("off", Ok(Stacks::Off)),
            ("1/8", one_in(8)),
            ("1/65536", one_in(65_536)),
        ] {
            assert_eq!(text.parse(), stacks, "{text}");
        }
        for text in ["", "1", "1/0", "1/65537", "2/3", "1/-1", "1/x", "ALL"] {
            assert!(text.parse::<Stacks>().is_err(), "{text}");
        }
    }
}
