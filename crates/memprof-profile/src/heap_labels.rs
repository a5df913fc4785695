//! Labels of heap figures, which depend on how the figures were counted.

use std::borrow::Cow;

use super::{Kind, Profile};
use crate::measure::{EXACT, HEAP, WINDOW};

/// Replacements in texts about sampled allocations, for a window in which every call was counted. The order matters: no
/// pattern is a part of a pattern that follows it.
const OF_ALL_CALLS: [(&str, &str); 2] = [
    ("estimated from samples", "every call counted"),
    ("estimated", "exact"),
];
/// Replacements for a window in which one call in N was counted.
const OF_SOME_CALLS: [(&str, &str); 1] = [("from samples", "from one call in N")];
/// Replacements for any window.
const OF_A_WINDOW: [(&str, &str); 3] = [
    ("since sampling began", "in the window"),
    (
        "allocated and not freed",
        "allocated in the window and not freed",
    ),
    (
        "llocations not freed",
        "llocations in the window that are not freed",
    ),
];

impl Profile {
    /// Whether heap figures are counts of every call and not estimates.
    pub fn is_heap_exact(&self) -> bool {
        self.fills(&EXACT)
    }

    /// Whether allocations were sampled, so that single ones can be selected and grouped.
    pub fn has_single_allocations(&self) -> bool {
        self.fills(&HEAP) && !self.has_window()
    }

    /// Whether calls were counted in a window (`--heap=exact`) instead of sampled.
    fn has_window(&self) -> bool {
        // Profiles saved by earlier versions have only the second one.
        self.fills(&WINDOW) || self.fills(&EXACT)
    }

    /// The label of a kind in this profile. It depends on how the figures were counted whether they are estimates.
    pub fn label(&self, kind: Kind) -> Cow<'static, str> {
        self.as_counted(kind.label())
    }

    /// Rewrites a text that describes heap figures as estimates, to match how this profile counted them.
    pub fn as_counted(&self, text: &'static str) -> Cow<'static, str> {
        if !self.has_window() {
            return text.into();
        }
        let how = match self.is_heap_exact() {
            true => &OF_ALL_CALLS[..],
            false => &OF_SOME_CALLS,
        };
        let words = how.iter().chain(&OF_A_WINDOW);
        words
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
            .into()
    }
}

#[cfg(test)]
mod tests {
    use crate::Kind;
    use crate::measure::{EXACT, HEAP, WINDOW};
    use crate::testing::profile;

    #[test]
    fn a_window_is_not_called_samples_and_all_of_its_calls_no_estimates() {
        let mut profile = profile(&[], &[]);
        let texts = HEAP
            .columns
            .iter()
            .flat_map(|column| [column.label, column.note, column.metric.1]);
        let texts: Vec<&str> = texts.collect();
        profile.measures.push(&HEAP);
        for text in &texts {
            assert!(text.contains("estimated"), "{text}");
            assert_eq!(profile.as_counted(text), *text);
        }
        profile.measures.push(&WINDOW);
        for text in &texts {
            let said = profile.as_counted(text);
            assert!(
                said.contains("estimated") && !said.contains("sampl"),
                "{said}"
            );
        }
        profile.measures.push(&EXACT);
        for text in &texts {
            let said = profile.as_counted(text);
            let exact = said.contains("exact") || said.contains("every call counted");
            assert!(
                exact && !said.contains("estimated") && !said.contains("sampl"),
                "{said}"
            );
        }
        let label = profile.label(Kind::by_name("inuse_space").unwrap());
        assert_eq!(label, "live heap (exact)");
    }
}
