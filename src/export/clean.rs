//! Names come from files that nobody vouches for; here they lose what could steer a terminal.

use std::borrow::Cow;

/// Control characters, and the invisible ones that reorder text.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with U+FFFD in place of every control or bidirectional formatting character.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(steers) {
        Cow::Owned(text.replace(steers, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_teeth() {
        assert_eq!(
            printable("a\x1b[2Jb\nc\u{9b}d\u{202e}"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}"
        );
        assert!(matches!(printable("std::vec<T, …>"), Cow::Borrowed(_)));
    }
}
