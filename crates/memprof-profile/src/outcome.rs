//! Outcomes of stack walks.

/// The end of a stack walk. Every stack stores its outcome, and every total shows the outcomes of its stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The walk reached the outermost frame.
    Complete,
    /// The walk reached the outermost frame, but used frame pointers where code had no unwind table.
    Assisted,
    /// The walk could not continue. The frames up to that point are available.
    Partial(PartialReason),
    /// No stack was recorded (`--unwind off`).
    NotTaken,
}

/// Why a walk stopped before the outermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartialReason {
    /// The next frame's memory could not be read.
    UnreadableStack,
    /// The frame pointer register did not contain a frame pointer: the code was built without frame pointers.
    NoFramePointer,
    /// The stack has more frames than the limit of the walk.
    DepthLimit,
    /// The code is in no known mapping: it was mapped a moment ago, or the stack is corrupt.
    NoMapping,
    /// The code is JIT code, and the frame pointer does not lead to a caller.
    Jit,
    /// The file has no unwind table (yet), or the table does not cover the address.
    NoTable,
    /// The unwind table has a rule that the walk does not support.
    UnsupportedRule,
}

impl PartialReason {
    /// A short label for the node that groups stacks truncated for this reason.
    pub fn label(self) -> &'static str {
        match self {
            PartialReason::UnreadableStack => "unreadable stack",
            PartialReason::NoFramePointer => "no frame pointer",
            PartialReason::DepthLimit => "depth limit, see --max-frames",
            PartialReason::NoMapping => "code in no known file",
            PartialReason::Jit => "JIT code",
            PartialReason::NoTable => "no unwind table",
            PartialReason::UnsupportedRule => "unsupported unwind rule",
        }
    }
}

impl Outcome {
    /// The reason why the walk stopped before the outermost frame; `None` if it did not.
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

    /// Looks up an outcome by its label, or by the one that older saved profiles have.
    pub(crate) fn by_label(label: &str) -> Option<Outcome> {
        if label == "partial: code made at run time (JIT)" {
            return Some(Outcome::Partial(PartialReason::Jit));
        }
        Outcome::ALL.into_iter().find(|o| o.label() == label)
    }

    /// A short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::Assisted => "complete, assisted by frame pointers",
            Outcome::Partial(PartialReason::UnreadableStack) => "partial: unreadable stack",
            Outcome::Partial(PartialReason::NoFramePointer) => "partial: no frame pointer",
            Outcome::Partial(PartialReason::DepthLimit) => "partial: depth limit",
            Outcome::Partial(PartialReason::NoMapping) => "partial: code in no known file",
            Outcome::Partial(PartialReason::Jit) => "partial: JIT code",
            Outcome::Partial(PartialReason::NoTable) => "partial: no unwind table",
            Outcome::Partial(PartialReason::UnsupportedRule) => "partial: unsupported unwind rule",
            Outcome::NotTaken => "not taken",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_back_also_those_of_older_files() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::by_label(outcome.label()), Some(outcome));
        }
        let jit = Outcome::by_label("partial: code made at run time (JIT)");
        assert_eq!(jit, Some(Outcome::Partial(PartialReason::Jit)));
        assert_eq!(Outcome::by_label("partial"), None);
    }
}
