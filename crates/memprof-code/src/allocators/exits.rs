//! The instructions at which functions return that may also be left by an exception.
//!
//! A uretprobe replaces the return address on the stack, and no exception can pass it. A probe of a `ret` instruction
//! replaces nothing. So every `ret` that ends a call is needed: those of the function, and of the functions to which it or
//! these jump instead of returning. The kernel does not emulate `ret`, so that such a call costs as much as one whose entry
//! is not emulated.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::imports::Imports;
use super::site::{self, Callee};
use crate::elf::Elf;
use crate::unwind::FunctionRanges;

/// Maximum number of functions that one leads to by jumps, and of bytes of one.
const MOST_FUNCTIONS: usize = 32;
const MOST_CODE: u64 = 1 << 14;

/// Finds the exits of functions of a file for x86-64.
pub(super) struct Exits<'e> {
    pub(super) elf: &'e Elf<'e>,
    pub(super) imports: &'e Imports,
    pub(super) ranges: &'e FunctionRanges,
}

impl Exits<'_> {
    /// The addresses of all `ret` that may end a call of a function; `None` if there may be others.
    pub(super) fn of(&self, function: u64) -> Option<BTreeSet<u64>> {
        let (mut exits, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![function];
        while let Some(address) = next.pop() {
            let range = self.ranges.at(address)?;
            if seen.insert(range.start) {
                if seen.len() > MOST_FUNCTIONS || range.end - range.start > MOST_CODE {
                    return None;
                }
                self.read(range, &mut exits, &mut next)?;
            }
        }
        Some(exits)
    }

    /// Reads a function: its `ret`, and where it jumps to. `None` if that is not known.
    fn read(
        &self,
        range: std::ops::Range<u64>,
        exits: &mut BTreeSet<u64>,
        next: &mut Vec<u64>,
    ) -> Option<()> {
        let (segment, inside) = self.elf.loaded_at(range.start)?;
        let mut code = vec![0; (range.end - range.start) as usize];
        let at = segment.offset.checked_add(inside)?;
        self.elf.read_at(&mut code, at).ok()?;
        let (mut begins, mut targets) = (BTreeSet::new(), Vec::new());
        for instruction in &mut Decoder::with_ip(64, &code, range.start, DecoderOptions::NONE) {
            if instruction.is_invalid() {
                return None;
            }
            begins.insert(instruction.ip());
            match instruction.flow_control() {
                FlowControl::Return => drop(exits.insert(instruction.ip())),
                FlowControl::UnconditionalBranch
                | FlowControl::ConditionalBranch
                | FlowControl::IndirectBranch => {
                    let to = site::callee(&instruction)?;
                    match self.imports.of(self.elf, to) {
                        Some(import) => next.push(import.address?),
                        None => match to {
                            Callee::At(address) if range.contains(&address) => {
                                targets.push(address)
                            }
                            Callee::At(address) => next.push(address),
                            Callee::In(_) => return None,
                        },
                    }
                }
                _ => {}
            }
        }
        // What is no instruction must have no trap: where there are data among the code, jumps lead elsewhere.
        let in_step = targets.iter().all(|address| begins.contains(address));
        in_step.then_some(())
    }
}
