//! What frames are called where there is room for one name, each name once.

use std::collections::HashMap;

use crate::profile::{Frame, NotObserved};
use crate::tree::Names;

/// Name of a stack without frames.
pub(in crate::export) const NO_STACK: &str = "[no stack]";
/// Name of a frame that resolves to nothing.
pub(in crate::export) const UNKNOWN: &str = "[unknown]";

/// Distinct names, numbered in the order in which they came.
#[derive(Debug, Default)]
pub(in crate::export) struct Labels {
    numbers: HashMap<String, u32>,
}

impl Labels {
    /// The number of a name.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The name of a stack without frames.
    pub fn no_stack(&mut self) -> u32 {
        self.number(NO_STACK)
    }

    /// The name of memory that no stack was observed for.
    pub fn not_observed(&mut self, row: &NotObserved) -> u32 {
        self.number(&not_observed(row))
    }

    /// Every name, by its number.
    pub fn into_texts(self) -> Vec<String> {
        let mut texts = vec![String::new(); self.numbers.len()];
        for (text, number) in self.numbers {
            texts[number as usize] = text;
        }
        texts
    }
}

/// What memory without a stack is called.
pub(in crate::export) fn not_observed(row: &NotObserved) -> String {
    format!("[not observed: {}]", row.mapping)
}

/// What a frame is called: its function, else its place in its file.
pub(in crate::export) fn frame(frame: Frame, names: Names<'_>) -> String {
    match names.get(frame) {
        None => UNKNOWN.to_owned(),
        // A name of no letters would be no frame to those who read lines.
        Some(name) => match name.function.filter(|f| !f.is_empty()) {
            Some(function) => function.to_owned(),
            None => format!("{}+{:#x}", name.executable, name.offset),
        },
    }
}

/// Numbers of one report's frames.
pub(in crate::export) struct FrameLabels<'a> {
    names: Names<'a>,
    numbers: HashMap<Frame, u32>,
}

impl<'a> FrameLabels<'a> {
    /// Of the report with these names.
    pub fn new(names: Names<'a>) -> FrameLabels<'a> {
        FrameLabels {
            names,
            numbers: HashMap::new(),
        }
    }

    /// The number of the frame's name.
    pub fn number(&mut self, of: Frame, labels: &mut Labels) -> u32 {
        let names = self.names;
        *self
            .numbers
            .entry(of)
            .or_insert_with(|| labels.number(&frame(of, names)))
    }
}
