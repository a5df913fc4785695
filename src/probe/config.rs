//! Settings of the probe, fixed when it is loaded.

use std::ops::RangeInclusive;

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
            sources: source::chosen(&[]),
            wanted_comm: None,
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
