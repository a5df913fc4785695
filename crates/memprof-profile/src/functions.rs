//! Functions that no ELF file names: interpreted functions and JIT code.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, RwLock};

use crate::symbol::Language;

/// The origin of functions that have no machine code in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An interpreter. The frame of its evaluator is behind the functions in a stack.
    Interpreter,
    /// JIT: the functions are machine code generated at run time.
    Runtime,
}

/// The functions of one source file, or of JIT code. Functions are added as they are observed and never removed, because
/// existing profiles share their module.
#[derive(Debug)]
pub struct Functions {
    /// The language of all functions.
    pub language: Language,
    /// The origin of all functions.
    pub origin: Origin,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    all: Vec<FunctionName>,
    numbers: HashMap<FunctionName, u32>,
}

/// A function that has no machine code in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionName {
    /// The name, qualified if the language has qualified names.
    pub name: Arc<str>,
    /// The first line of the function, counted from 1; 0 if unknown.
    pub first_line: u32,
}

/// A position in a function that has no machine code in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The function.
    pub function: FunctionName,
    /// The executing or calling line, counted from 1; 0 if unknown.
    pub line: u32,
}

impl Functions {
    /// Bits of the line in an offset. A larger line counts as unknown.
    const LINE_BITS: u32 = 24;
    /// Maximum number of functions per module: the remaining bits of a frame's 48 encode the number of a function.
    const MAX_FUNCTIONS: usize = 1 << (48 - Self::LINE_BITS);

    /// An empty list.
    pub fn new(language: Language, origin: Origin) -> Functions {
        Functions {
            language,
            origin,
            known: RwLock::default(),
        }
    }

    /// The number of a function. A new function is added if `room` allows; `None` if it cannot be added.
    pub fn number(&self, function: FunctionName, room: &mut FunctionBudget) -> Option<u32> {
        let mut known = self.known.write().ok()?;
        let Known { all, numbers } = &mut *known;
        match numbers.entry(function) {
            Entry::Occupied(number) => Some(*number.get()),
            Entry::Vacant(_) if all.len() >= Self::MAX_FUNCTIONS => None,
            Entry::Vacant(new) => {
                room.take(new.key().name.len())?;
                let number = all.len() as u32;
                all.push(new.key().clone());
                Some(*new.insert(number))
            }
        }
    }

    /// The offset that encodes a line of a function in a frame of this module.
    pub fn offset(number: u32, line: u32) -> u64 {
        let line = if line >> Self::LINE_BITS == 0 {
            line
        } else {
            0
        };
        u64::from(number) << Self::LINE_BITS | u64::from(line)
    }

    /// Decodes an offset; `None` if no function has that number.
    pub fn at(&self, offset: u64) -> Option<Position> {
        let number = usize::try_from(offset >> Self::LINE_BITS).ok()?;
        Some(Position {
            function: self.known.read().ok()?.all.get(number)?.clone(),
            line: (offset & ((1 << Self::LINE_BITS) - 1)) as u32,
        })
    }
}

/// A memory budget in bytes for all functions, because a target can generate any number of names.
#[derive(Debug)]
pub struct FunctionBudget {
    left: usize,
    /// Number of functions that did not fit.
    refused: u64,
}

impl FunctionBudget {
    /// Approximate size of a function without its name, in bytes.
    const EACH: usize = 3 * size_of::<FunctionName>() + 32;

    /// A budget of `bytes` bytes in total.
    pub fn new(bytes: usize) -> FunctionBudget {
        FunctionBudget {
            left: bytes,
            refused: 0,
        }
    }

    /// Number of attempts to add a function that did not fit.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn take(&mut self, name: usize) -> Option<()> {
        match self.left.checked_sub(name + Self::EACH) {
            Some(left) => self.left = left,
            None => {
                self.refused += 1;
                return None;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, first_line: u32) -> FunctionName {
        FunctionName {
            name: name.into(),
            first_line,
        }
    }

    #[test]
    fn a_function_keeps_its_number_and_an_offset_names_its_line() {
        let functions = Functions::new(Language::Python, Origin::Interpreter);
        let mut room = FunctionBudget::new(1 << 20);
        let mut number = |name, line| functions.number(function(name, line), &mut room).unwrap();
        assert_eq!(number("f", 3), 0);
        // Two functions may have the same name.
        assert_eq!(number("f", 9), 1);
        assert_eq!(number("f", 3), 0);
        let at = functions.at(Functions::offset(1, 12)).unwrap();
        assert_eq!((at.function, at.line), (function("f", 9), 12));
        assert_eq!(functions.at(Functions::offset(1, 1 << 24)).unwrap().line, 0);
        assert_eq!(functions.at(Functions::offset(2, 0)), None);
        assert_eq!(functions.at(u64::MAX), None);
    }

    #[test]
    fn names_take_bounded_room() {
        let functions = Functions::new(Language::Python, Origin::Interpreter);
        let mut room = FunctionBudget::new(10_000);
        let all: Vec<_> = (0..1000)
            .map(|line| functions.number(function("name", line), &mut room))
            .collect();
        let kept = all.iter().flatten().count();
        assert!((10..200).contains(&kept), "{kept}");
        assert_eq!(room.refused(), 1000 - kept as u64);
        // Known functions are found even if the budget is used up.
        assert_eq!(functions.number(function("name", 0), &mut room), Some(0));
    }
}
