//! How a stack walk ended.

/// How a stack walk ended; kept with every stack and shown next to every total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The walk reached the outermost frame.
    Complete,
    /// The walk reached the outermost frame, with the help of frame pointers where code had no table.
    Assisted,
    /// Some frames are kept, but the walk could not continue.
    Partial(PartialReason),
    /// No stack was taken (`--unwind off`).
    NotTaken,
}

/// Why a walk stopped before the outermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartialReason {
    /// The next frame's memory could not be read.
    UnreadableStack,
    /// The frame pointer register did not hold a frame pointer: code built without them.
    NoFramePointer,
    /// The stack has more frames than the walk's limit.
    DepthLimit,
    /// The code lies in no known mapping: mapped a moment ago, or a damaged stack.
    NoMapping,
    /// The code was generated at run time (JIT), and its frame pointer leads nowhere.
    Jit,
    /// The code's file has no unwind table (yet), or the table does not cover the address.
    NoTable,
    /// The unwind table has a rule that the walk cannot follow.
    UnsupportedRule,
}

impl PartialReason {
    /// Short label for the node that groups the stacks that were cut off for this reason.
    pub fn label(self) -> &'static str {
        match self {
            PartialReason::UnreadableStack => "unreadable stack",
            PartialReason::NoFramePointer => "no frame pointer",
            PartialReason::DepthLimit => "depth limit, see --max-frames",
            PartialReason::NoMapping => "code in no known file",
            PartialReason::Jit => "code made at run time (JIT)",
            PartialReason::NoTable => "no unwind table",
            PartialReason::UnsupportedRule => "unsupported unwind rule",
        }
    }
}

impl Outcome {
    /// Why the walk stopped before the outermost frame, if it did.
    pub fn cut_off(self) -> Option<PartialReason> {
        match self {
            Outcome::Partial(reason) => Some(reason),
            Outcome::Complete | Outcome::Assisted | Outcome::NotTaken => None,
        }
    }

    /// Whether the walk reached the outermost frame.
    pub fn is_complete(self) -> bool {
        matches!(self, Outcome::Complete | Outcome::Assisted)
    }

    /// Every outcome.
    const ALL: [Outcome; 10] = [
        Outcome::Complete,
        Outcome::Assisted,
        Outcome::Partial(PartialReason::UnreadableStack),
        Outcome::Partial(PartialReason::NoFramePointer),
        Outcome::Partial(PartialReason::DepthLimit),
        Outcome::Partial(PartialReason::NoMapping),
        Outcome::Partial(PartialReason::Jit),
        Outcome::Partial(PartialReason::NoTable),
        Outcome::Partial(PartialReason::UnsupportedRule),
        Outcome::NotTaken,
    ];

    /// Looks up an outcome by its label.
    pub(crate) fn by_label(label: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|o| o.label() == label)
    }

    /// Short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::Assisted => "complete, assisted by frame pointers",
            Outcome::Partial(PartialReason::UnreadableStack) => "partial: unreadable stack",
            Outcome::Partial(PartialReason::NoFramePointer) => "partial: no frame pointer",
            Outcome::Partial(PartialReason::DepthLimit) => "partial: depth limit",
            Outcome::Partial(PartialReason::NoMapping) => "partial: code in no known file",
            Outcome::Partial(PartialReason::Jit) => "partial: code made at run time (JIT)",
            Outcome::Partial(PartialReason::NoTable) => "partial: no unwind table",
            Outcome::Partial(PartialReason::UnsupportedRule) => "partial: unsupported unwind rule",
            Outcome::NotTaken => "not taken",
        }
    }
}
