//! What the probe is told before it is loaded.

use std::ops::RangeInclusive;

use crate::source::{self, Source};

/// What the probe is told before it is loaded.
#[derive(Clone)]
pub struct ProbeConfig {
    /// Follow children too.
    pub follow_forks: bool,
    /// How stacks are taken; without, everything stands under one empty stack.
    pub unwind: Unwind,
    /// Frames of a stack that are taken at most, the innermost ones: a number in [`FRAME_LIMITS`].
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
    /// Not at all.
    Off = 0,
    /// By frame pointers alone.
    FramePointers = 1,
    /// By unwind tables alone.
    Tables = 2,
    /// By unwind tables, and by frame pointers where there is none.
    #[default]
    Auto = 3,
}

impl Unwind {
    /// Whether tables have to be built.
    pub fn needs_tables(self) -> bool {
        matches!(self, Unwind::Tables | Unwind::Auto)
    }
}

/// How many frames of a stack may be taken at most: from what a walk caches, so that it costs little,
/// to what is bearable where every frame is walked each time.
pub const FRAME_LIMITS: RangeInclusive<u32> = 128..=1024;
