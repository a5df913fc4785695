//! Text styles; without colours, only bold, dim and reverse are used.

use ratatui::style::{Color, Modifier, Style};

/// With colours or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub(super) colour: bool,
}

impl Theme {
    fn style(self, colour: Color, otherwise: Modifier) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(otherwise),
        }
    }

    /// Good values.
    pub(super) fn good(self) -> Style {
        self.style(Color::Green, Modifier::BOLD)
    }

    /// Values that need attention.
    pub(super) fn bad(self) -> Style {
        self.style(Color::Red, Modifier::BOLD)
    }

    /// Less important text.
    pub(super) fn dim(self) -> Style {
        self.style(Color::DarkGray, Modifier::DIM)
    }

    /// The curve, and keys to press.
    pub(super) fn accent(self) -> Style {
        self.style(Color::Cyan, Modifier::BOLD)
    }

    /// A heading.
    pub(super) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The row the cursor is on.
    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
