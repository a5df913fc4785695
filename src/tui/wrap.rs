//! Fits text into a number of columns.

/// Wraps a text between words. A word that is longer than a line loses its middle.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let word = cut_middle(word, width);
        let last = lines.last_mut().filter(|line| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width
        });
        match last {
            Some(line) => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(&word);
            }
            None => lines.push(word),
        }
    }
    lines
}

/// Wraps a text into at most so many lines; a mark at the end of the last one says that there is more.
pub(super) fn wrapped_to(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = wrapped(text, width);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            mark_cut(last, width);
        }
    }
    lines
}

/// Marks a line after which text is missing.
pub(super) fn mark_cut(line: &mut String, width: usize) {
    let kept: String = line.chars().take(width.saturating_sub(2)).collect();
    *line = format!("{} …", kept.trim_end());
}

/// A text; without its middle if it does not fit, because names differ at their ends.
pub(super) fn cut_middle(text: &str, width: usize) -> String {
    let long = text.chars().count();
    if long <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let first = kept.div_ceil(2);
    let chars = || text.chars();
    let last = chars().skip(long - (kept - first));
    chars().take(first).chain(['…']).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_say_what_is_missing() {
        let text = "one two three supercalifragilistic";
        assert_eq!(wrapped(text, 9), ["one two", "three", "supe…stic"]);
        assert_eq!(wrapped_to(text, 9, 2), ["one two", "three …"]);
        assert_eq!(wrapped_to(text, 9, 3), wrapped(text, 9));
        assert_eq!(wrapped("", 9), [""]);
    }

    #[test]
    fn names_keep_both_ends() {
        assert_eq!(cut_middle("abcdefgh", 8), "abcdefgh");
        assert_eq!(cut_middle("abcdefgh", 6), "abc…gh");
        assert_eq!(cut_middle("abcdefgh", 1), "…");
        assert_eq!(cut_middle("äöüäöü", 4), "äö…ü");
    }
}
