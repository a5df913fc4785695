//! Full text: the words of a question, as conditions of SQLite.

use rusqlite::types::Value;

/// Maximum number of words and phrases; what follows is ignored.
const MAX_TERMS: usize = 64;
/// Maximum length of a question, in bytes; what follows is ignored.
const MAX_LENGTH: usize = 4096;

/// The words of a question.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    required: Vec<String>,
    alternatives: Vec<String>,
    excluded: Vec<String>,
}

impl Terms {
    /// Reads a text: words, phrases in quotation marks, and `+` or `-` before either. Words without letters and digits are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut terms = Self::default();
        let mut ends = (0..=text.len().min(MAX_LENGTH)).rev();
        let end = ends.find(|end| text.is_char_boundary(*end));
        let mut rest = &text[..end.unwrap_or(0)];
        for _ in 0..MAX_TERMS {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (list, after) = match rest.split_at_checked(1) {
                Some(("+", after)) => (&mut terms.required, after),
                Some(("-", after)) => (&mut terms.excluded, after),
                _ => (&mut terms.alternatives, rest),
            };
            let (term, after) = match after.strip_prefix('"') {
                Some(after) => after.split_once('"').unwrap_or((after, "")),
                None => after.split_at(after.find(ends_word).unwrap_or(after.len())),
            };
            if term.chars().any(char::is_alphanumeric) {
                list.push(term.replace('\0', " "));
            }
            rest = after;
        }
        terms
    }

    /// Whether nothing is asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.required.is_empty() && self.alternatives.is_empty() && self.excluded.is_empty()
    }

    /// Words that lines must have: either all of them, or one.
    fn wanted(&self) -> (&[String], &'static str) {
        match self.required.is_empty() {
            true => (&self.alternatives, " OR "),
            false => (&self.required, " AND "),
        }
    }

    /// The question in the language of FTS5; nothing if words are only excluded.
    pub(super) fn expression(&self) -> Option<String> {
        let (wanted, operator) = self.wanted();
        let excluded = match self.excluded.is_empty() {
            true => String::new(),
            false => format!(" NOT ({})", self.excluded()),
        };
        (!wanted.is_empty()).then(|| format!("({}){excluded}", joined(wanted, operator)))
    }

    /// Lines with one of the excluded words, in the language of FTS5.
    pub(super) fn excluded(&self) -> String {
        joined(&self.excluded, " OR ")
    }

    /// A condition on lines of which there is no index, with its values: the text may be within words, too.
    pub(super) fn condition(&self) -> (String, Vec<Value>) {
        let has = "(section || ' ' || message LIKE ? ESCAPE '\\')";
        let each = |terms: &[String]| vec![has; terms.len()];
        let (terms, operator) = self.wanted();
        let wanted = each(terms).join(operator);
        let excluded = each(&self.excluded).join(" OR ");
        let mut condition = String::from("true");
        if !wanted.is_empty() {
            condition += &format!(" AND ({wanted})");
        }
        if !excluded.is_empty() {
            condition += &format!(" AND NOT ({excluded})");
        }
        let terms = terms.iter().chain(&self.excluded);
        (
            condition,
            terms.map(|term| Value::Text(pattern(term))).collect(),
        )
    }
}

/// Whether a character is the first one behind a word.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || c == '"'
}

/// Terms in the language of FTS5: strings, which are read as phrases whatever is in them. Terms have no quotation marks.
fn joined(terms: &[String], operator: &str) -> String {
    let terms: Vec<_> = terms.iter().map(|term| format!("\"{term}\"")).collect();
    terms.join(operator)
}

/// A pattern of LIKE.
fn pattern(term: &str) -> String {
    let mut pattern = String::from("%");
    for c in term.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}
