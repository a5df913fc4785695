//! The visible view, its sort order and its overlay.

/// The listed objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Functions,
    Tree,
    Processes,
    /// Control groups.
    Groups,
}

impl View {
    /// Whether this is a list of processes or control groups.
    pub(super) fn is_list(self) -> bool {
        matches!(self, View::Processes | View::Groups)
    }
}

/// The sort key of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Own,
    Total,
    Name,
}

/// The overlay on top of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    None,
    Help,
    Details,
}
