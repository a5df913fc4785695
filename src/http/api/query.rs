//! Query parameters: each is known, given at most once, and has a valid value.

use super::ApiError;

/// Maximum number of characters of an invalid value in an error message.
const REPEATED: usize = 64;

/// The parameters of a request: the form-urlencoded text after the first `?`.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

/// How to handle parameters that the route does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownParams {
    Ignored,
    Refused,
}

impl Query {
    /// Parses a query for a route with these known parameters.
    ///
    /// # Errors
    /// [`ApiError::BadRequest`] if a known parameter is given twice, or an unknown one is refused.
    pub(super) fn read(
        path: &str,
        query: &str,
        known: &[&str],
        unknown_params: UnknownParams,
    ) -> Result<Query, ApiError> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let (name, value) = (name.into_owned(), value.into_owned());
            if !known.contains(&name.as_str()) {
                match unknown_params {
                    UnknownParams::Ignored => continue,
                    UnknownParams::Refused => return Err(unknown(path, &name, known)),
                }
            }
            if found.iter().any(|(n, _)| *n == name) {
                return Err(bad(format!("parameter {name} is given more than once")));
            }
            found.push((name, value));
        }
        Ok(Query(found))
    }

    /// The raw value of a parameter.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A whole number up to `most`; `unit` appears in the error message.
    pub(super) fn number(
        &self,
        name: &str,
        unit: &str,
        most: u64,
    ) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        match value.parse() {
            Ok(number) if digits && number <= most => Ok(Some(number)),
            _ => Err(bad(format!(
                "parameter {name} must be a whole number{unit} from 0 to {most}, got {}",
                quoted(value)
            ))),
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.text(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => Err(bad(format!(
                "parameter {name} must be true or false, got {}",
                quoted(value)
            ))),
        }
    }

    /// Maps a value to its meaning; the value must be one of these words.
    pub(super) fn word<T: Copy>(
        &self,
        name: &str,
        words: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let mut known = Vec::new();
        for (word, meaning) in words {
            if word == value {
                return Ok(Some(meaning));
            }
            known.push(word);
        }
        Err(bad(format!(
            "parameter {name} must be one of {}, got {}",
            known.join(", "),
            quoted(value)
        )))
    }

    /// A text of at most `most` bytes.
    pub(super) fn short(&self, name: &str, most: usize) -> Result<Option<String>, ApiError> {
        match self.text(name) {
            Some(value) if value.len() > most => Err(bad(format!(
                "parameter {name} must be at most {most} bytes long, got {}",
                value.len()
            ))),
            value => Ok(value.map(str::to_owned)),
        }
    }
}

fn unknown(path: &str, name: &str, known: &[&str]) -> ApiError {
    let name = quoted(name);
    bad(match known {
        [] => format!("{path} takes no parameters, got {name}"),
        known => format!(
            "{path} has no parameter {name}; its parameters are {}",
            known.join(", ")
        ),
    })
}

pub(super) fn bad(message: String) -> ApiError {
    ApiError::BadRequest(message)
}

/// Formats an invalid value for a message: truncated, and escaped so that it cannot control a terminal.
pub(super) fn quoted(value: &str) -> String {
    let cut: String = value.chars().take(REPEATED).collect();
    let more = if cut.len() < value.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

#[cfg(test)]
mod tests;
