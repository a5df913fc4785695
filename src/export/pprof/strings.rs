//! The string table: each string once; the empty string comes first.

use std::collections::HashMap;

pub(super) struct Strings {
    numbers: HashMap<String, i64>,
    /// Strings that are not yet written.
    new: Vec<String>,
}

impl Default for Strings {
    fn default() -> Strings {
        let mut strings = Strings {
            numbers: HashMap::new(),
            new: Vec::new(),
        };
        strings.number("");
        strings
    }
}

impl Strings {
    /// The index of a string.
    pub fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as i64;
        self.numbers.insert(text.to_owned(), number);
        self.new.push(text.to_owned());
        number
    }

    /// The strings added since the last call, in the order of their indices.
    pub(crate) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }
}
