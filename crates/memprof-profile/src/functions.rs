//! Functions that no ELF file names: those of an interpreted program, and of code made at run time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, RwLock};

use crate::symbol::Language;

/// What runs functions without machine code of their own in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An interpreter: the frame of its evaluator is behind them in a stack.
    Interpreter,
    /// Nothing: they are machine code that was made at run time.
    Runtime,
}

/// The functions of one source file, or of code made at run time. They are added as they are seen; their module is
/// shared by profiles that exist already, and nothing is ever removed.
#[derive(Debug)]
pub struct Functions {
    /// The language of all of them.
    pub language: Language,
    /// What runs them.
    pub origin: Origin,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    all: Vec<FunctionName>,
    numbers: HashMap<FunctionName, u32>,
}

/// A function without machine code of its own in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionName {
    /// Its name, qualified where the language has qualified names.
    pub name: Arc<str>,
    /// Its first line, counted from 1; 0 if it has none.
    pub first_line: u32,
}

/// A position in such a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The function.
    pub function: FunctionName,
    /// The executing or calling line, counted from 1; 0 if it is not known.
    pub line: u32,
}

impl Functions {
    /// Bits of a line in a position; a larger line counts as unknown.
    const LINE_BITS: u32 = 24;
    /// Maximum number of functions of a module: what the rest of a frame's 48 bits can number.
    const MOST: usize = 1 << (48 - Self::LINE_BITS);

    /// No functions yet.
    pub fn new(language: Language, origin: Origin) -> Functions {
        Functions {
            language,
            origin,
            known: RwLock::default(),
        }
    }

    /// The number of a function, which is added if it is new and `room` allows; `None` if it cannot be added.
    pub fn number(&self, function: FunctionName, room: &mut Room) -> Option<u32> {
        let mut known = self.known.write().ok()?;
        let Known { all, numbers } = &mut *known;
        match numbers.entry(function) {
            Entry::Occupied(number) => Some(*number.get()),
            Entry::Vacant(_) if all.len() >= Self::MOST => None,
            Entry::Vacant(new) => {
                room.take(new.key().name.len())?;
                let number = all.len() as u32;
                all.push(new.key().clone());
                Some(*new.insert(number))
            }
        }
    }

    /// The offset by which a frame of this module names a line of a function.
    pub fn offset(number: u32, line: u32) -> u64 {
        let line = if line >> Self::LINE_BITS == 0 {
            line
        } else {
            0
        };
        u64::from(number) << Self::LINE_BITS | u64::from(line)
    }

    /// The position that an offset names; `None` if no function has that number.
    pub fn at(&self, offset: u64) -> Option<Position> {
        let number = usize::try_from(offset >> Self::LINE_BITS).ok()?;
        Some(Position {
            function: self.known.read().ok()?.all.get(number)?.clone(),
            line: (offset & ((1 << Self::LINE_BITS) - 1)) as u32,
        })
    }
}

/// What all functions may still take, in bytes: a target can make up any number of names.
#[derive(Debug)]
pub struct Room {
    left: usize,
    /// Functions that did not fit.
    refused: u64,
}

impl Room {
    /// Bytes that a function takes besides its name, about.
    const EACH: usize = 3 * size_of::<FunctionName>() + 32;

    /// Room for functions of `bytes` bytes in all.
    pub fn new(bytes: usize) -> Room {
        Room {
            left: bytes,
            refused: 0,
        }
    }

    /// Number of times that a function did not fit.
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
        let mut room = Room::new(1 << 20);
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
        let mut room = Room::new(10_000);
        let all: Vec<_> = (0..1000)
            .map(|line| functions.number(function("name", line), &mut room))
            .collect();
        let kept = all.iter().flatten().count();
        assert!((10..200).contains(&kept), "{kept}");
        assert_eq!(room.refused(), 1000 - kept as u64);
        // Known ones are still found.
        assert_eq!(functions.number(function("name", 0), &mut room), Some(0));
    }
}
