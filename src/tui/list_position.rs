//! Cursor position in a list.

/// The cursor's row in a list, and the first visible row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListPosition {
    pub(super) cursor: usize,
    pub(super) top: usize,
}

impl ListPosition {
    /// Moves the cursor to a row and scrolls as little as necessary.
    pub(super) fn go(&mut self, to: usize, rows: usize, page: usize) {
        self.cursor = to.min(rows.saturating_sub(1));
        let lowest = self.cursor.saturating_sub(page.saturating_sub(1));
        self.top = self.top.clamp(lowest, self.cursor);
    }

    /// Adjusts to changed rows: the row of the cursor is now at `to` and keeps its screen line.
    pub(super) fn follow(&mut self, to: Option<usize>, rows: usize, page: usize) {
        let above = self.cursor - self.top;
        let to = to.unwrap_or(self.cursor);
        self.top = to.saturating_sub(above);
        self.go(to, rows, page);
    }
}
