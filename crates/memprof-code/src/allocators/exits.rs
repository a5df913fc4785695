//! Finds the return instructions of functions that an exception may also leave.
//!
//! A uretprobe replaces the return address on the stack, and the unwinder of exceptions fails on the replaced address.
//! A probe on a `ret` instruction replaces nothing, but every `ret` that can end a call must have one: those of the
//! function itself, and those of the functions that it reaches by tail calls. The kernel does not emulate `ret`, so a
//! call costs as much as one whose entry is single-stepped.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::imports::Imports;
use super::site::{self, Callee};
use crate::elf::Elf;
use crate::unwind::FunctionRanges;

/// Maximum number of functions reached by tail calls, and maximum size of a function, in bytes.
const MAX_FUNCTIONS: usize = 32;
const MAX_CODE: u64 = 1 << 14;

/// Finds the exits of functions in an x86-64 file.
pub(super) struct Exits<'e> {
    pub(super) elf: &'e Elf<'e>,
    pub(super) imports: &'e Imports,
    pub(super) ranges: &'e FunctionRanges,
}

impl Exits<'_> {
    /// The addresses of all `ret` instructions that may end a call of the function; `None` if there may be others.
    pub(super) fn find(&self, function: u64) -> Option<BTreeSet<u64>> {
        let (mut exits, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = vec![function];
        while let Some(address) = next.pop() {
            let range = self.ranges.at(address)?;
            if seen.insert(range.start) {
                if seen.len() > MAX_FUNCTIONS || range.end - range.start > MAX_CODE {
                    return None;
                }
                self.read(range, &mut exits, &mut next)?;
            }
        }
        Some(exits)
    }

    /// Reads one function: collects its `ret` instructions in `exits` and the targets of its tail calls in `next`.
    /// Returns `None` if a target is unknown.
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
                    match self.imports.lookup(self.elf, to) {
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
        // A breakpoint must not land inside an instruction. If data among the code has misaligned the decoder, some
        // jump target is not the start of a decoded instruction.
        let in_step = targets.iter().all(|address| begins.contains(address));
        in_step.then_some(())
    }
}
