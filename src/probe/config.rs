//! Settings of the probe, fixed when it is loaded.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::probe::source::{self, Source};
use crate::probe::wire;
use memprof_code::allocators::ExactOptions;
use memprof_profile::measure::TEMPORARY;

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
    /// Which calls are counted, if all allocations are.
    pub exact: ExactOptions,
    /// Allocations freed within this time count as temporary.
    pub temporary: Duration,
    /// The name to wait for at `exec` (`comm`, at most 15 bytes).
    pub wanted_comm: Option<String>,
}

impl Default for ProbeConfig {
    /// The sources that need no option, and all stacks, in the usual depth.
    fn default() -> ProbeConfig {
        ProbeConfig {
            follow_forks: false,
            unwind: Unwind::default(),
            max_frames: *FRAME_LIMITS.start(),
            stacks: Stacks::All,
            sources: source::chosen(&[]),
            exact: ExactOptions::default(),
            temporary: TEMPORARY,
            wanted_comm: None,
        }
    }
}

/// Which page faults have their stack walked. The sums do not depend on it: they come from the kernel's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// The first 16,384, then all of them as long as that takes less than a share of the CPU time, else as many as fit
    /// into it, chosen at random.
    Auto(Overhead),
    /// All of them.
    All,
    /// After the first 16,384 faults, one of so many, chosen at random.
    OneIn(NonZeroU32),
    /// None: faults have no hook. Memory has the stack of the call that mapped its range.
    Off,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks::Auto(Overhead::default())
    }
}

impl Stacks {
    /// Maximum number of faults of which one is walked.
    pub const MAX_INTERVAL: u32 = 65_536;

    /// How the probe is told.
    pub(crate) fn mode(self) -> wire::WalkMode {
        match self {
            Stacks::Auto(_) => wire::WalkMode::WALK_BUDGET,
            Stacks::All | Stacks::Off => wire::WalkMode::WALK_ALL,
            Stacks::OneIn(_) => wire::WalkMode::WALK_SHARE,
        }
    }
}

impl FromStr for Stacks {
    type Err = &'static str;

    /// Parses `auto`, `all`, `1/N` or `off`.
    fn from_str(text: &str) -> Result<Stacks, &'static str> {
        match text {
            "auto" => return Ok(Stacks::default()),
            "all" => return Ok(Stacks::All),
            "off" => return Ok(Stacks::Off),
            _ => {}
        }
        let interval = text.strip_prefix("1/").and_then(|n| n.parse().ok());
        match interval {
            Some(NonZeroU32::MIN) => Ok(Stacks::All),
            Some(n) if n.get() <= Stacks::MAX_INTERVAL => Ok(Stacks::OneIn(n)),
            _ => Err("expected `auto`, `all`, `off`, or `1/N` with N from 1 to 65536"),
        }
    }
}

/// The share of the target's CPU time that stack walks may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    millionths: u32,
}

impl Default for Overhead {
    /// 2 %.
    fn default() -> Overhead {
        Overhead { millionths: 20_000 }
    }
}

impl Overhead {
    /// In millionths.
    pub fn millionths(self) -> u32 {
        self.millionths
    }
}

impl FromStr for Overhead {
    type Err = &'static str;

    /// Parses a percentage, with or without its sign.
    fn from_str(text: &str) -> Result<Overhead, &'static str> {
        let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
        match number.filter(|percent: &f64| (0.01..=100.0).contains(percent)) {
            Some(percent) => Ok(Overhead {
                millionths: (percent * 10_000.0).round() as u32,
            }),
            None => Err("expected a percentage from 0.01 to 100, such as `2` or `0.5%`"),
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
            ("auto", Ok(Stacks::Auto("2".parse().unwrap()))),
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

    #[test]
    fn the_overhead_is_a_percentage() {
        for (text, millionths) in [
            ("2", 20_000),
            ("0.5%", 5_000),
            ("0.01", 100),
            ("100%", 1_000_000),
        ] {
            let overhead: Overhead = text.parse().unwrap();
            assert_eq!(overhead.millionths(), millionths, "{text}");
        }
        for text in [
            "", "%", "0", "0.001", "101", "-1", "inf", "NaN", "2 %", "two",
        ] {
            assert!(text.parse::<Overhead>().is_err(), "{text}");
        }
    }
}
