//! The visible view, its sort order and its overlay.

/// The listed objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The cards of the overview.
    Overview,
    Functions,
    Tree,
    Processes,
    /// Control groups.
    Groups,
}

impl View {
    /// The view after this one, of the three that are no lists.
    pub(super) fn next(self) -> View {
        match self {
            View::Overview => View::Functions,
            View::Functions => View::Tree,
            View::Tree | View::Processes | View::Groups => View::Overview,
        }
    }

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
