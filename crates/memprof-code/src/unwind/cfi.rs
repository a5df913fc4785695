//! The call frame information of one section: its entries and their rules.

use std::cell::Cell;
use std::collections::HashMap;

use gimli::{BaseAddresses, CommonInformationEntry, UnwindOffset, UnwindSection};

use super::columns::{Common, FrameColumns};
use super::expression::Reader;
use super::program::{Run, Unknown};
use super::rule::{Arch, Rule};
use super::spans::{Source, Span};
use crate::elf::{u32_at, u64_at};

/// A section's entries, parsed but not executed.
#[derive(Debug)]
pub struct Cfi<'d, S> {
    section: S,
    arch: Arch,
    bases: BaseAddresses,
    cies: HashMap<usize, Cie<'d>>,
    /// Number of instructions that may still be executed. An FDE is executed once per span; the budget bounds the time
    /// for a malicious file.
    budget: Cell<usize>,
}

#[derive(Debug)]
struct Cie<'d> {
    entry: CommonInformationEntry<Reader<'d>>,
    /// An error if the CIE's own instructions are not supported.
    common: Result<Common, Unknown>,
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Cie,
    Fde,
}

impl<'d, S> Cfi<'d, S>
where
    S: UnwindSection<Reader<'d>>,
    S::Offset: UnwindOffset<usize>,
{
    /// Reads the section's CIEs, and the address range of each of its FDEs.
    ///
    /// Skips entries that cannot be parsed. Returns `None` if there are more than `limit` FDEs.
    pub fn read(
        section: S,
        data: &'d [u8],
        arch: Arch,
        bases: BaseAddresses,
        source: Source,
        limit: usize,
    ) -> Option<(Self, Vec<Span>)> {
        let mut cfi = Cfi {
            section,
            arch,
            bases,
            cies: HashMap::new(),
            budget: Cell::new(data.len().saturating_mul(4)),
        };
        let mut fdes = Vec::new();
        for (at, kind) in entries(data, source) {
            match kind {
                EntryKind::Cie => cfi.read_cie(at),
                EntryKind::Fde if fdes.len() < limit => fdes.push(at),
                EntryKind::Fde => return None,
            }
        }
        let spans = fdes.iter().filter_map(|at| cfi.span(*at, source));
        let spans = spans.collect();
        Some((cfi, spans))
    }

    fn read_cie(&mut self, at: usize) {
        let offset = S::Offset::from(at);
        let Ok(entry) = self.section.cie_from_offset(&self.bases, offset) else {
            return;
        };
        let mut common = Common {
            arch: self.arch,
            ra: entry.return_address_register().0,
            code_factor: entry.code_alignment_factor(),
            data_factor: entry.data_alignment_factor(),
            signal: entry.is_signal_trampoline(),
            with_bx: false,
            initial: FrameColumns::NEW,
        };
        let instructions = entry.instructions(&self.section, &self.bases);
        let run = Run::new(&self.section, &common, 0).initial(instructions);
        let common = run.map(|initial| {
            common.initial = initial;
            common
        });
        self.cies.insert(at, Cie { entry, common });
    }

    fn fde(&self, at: usize) -> Option<(gimli::FrameDescriptionEntry<Reader<'d>>, &Cie<'d>)> {
        let partial = self
            .section
            .partial_fde_from_offset(&self.bases, S::Offset::from(at))
            .ok()?;
        let cie = self.cies.get(&UnwindOffset::into(partial.cie_offset()))?;
        let fde = partial.parse(|_, _, _| Ok(cie.entry.clone())).ok()?;
        Some((fde, cie))
    }

    fn span(&self, at: usize, source: Source) -> Option<Span> {
        let (fde, _) = self.fde(at)?;
        let start = fde.initial_address();
        let end = start.checked_add(fde.len())?;
        // Linkers leave entries of discarded functions, with address 0.
        (start != 0 && start < end).then_some(Span {
            start,
            end,
            source,
            entry: at,
        })
    }

    /// Emits the rules of an FDE: calls `emit` with the first address of each rule, in order, until it returns `false`.
    /// The first address is the FDE's, which may be before the span's. With `with_bx`, the rules also include `rbx`.
    pub fn rules(&self, span: &Span, with_bx: bool, mut emit: impl FnMut(u64, Rule) -> bool) {
        let found = self.fde(span.entry);
        let Some((fde, Cie { common: Ok(c), .. })) = found else {
            emit(span.start, Rule::UNSUPPORTED);
            return;
        };
        let instructions = fde.instructions(&self.section, &self.bases);
        let common = Common { with_bx, ..*c };
        let run = Run::new(&self.section, &common, fde.initial_address());
        run.rules(instructions, &self.budget, emit);
    }
}

/// Positions and kinds of the section's entries.
///
/// End markers are skipped: one in the middle, where a start file was linked in the wrong place, does
/// not end the index that C++ exception unwinding uses either.
fn entries(data: &[u8], source: Source) -> impl Iterator<Item = (usize, EntryKind)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let head = data.get(at..).filter(|d| d.len() >= 8)?;
            let (begin, length, wide) = match u32_at(head, 0) {
                0 => {
                    at += 4;
                    continue;
                }
                u32::MAX => (12, usize::try_from(u64_at(head, 4)).ok()?, true),
                length => (4, length as usize, false),
            };
            let here = at;
            let id = head.get(begin..)?;
            at = at.checked_add(begin)?.checked_add(length)?;
            let cie = match (source, wide) {
                (Source::DebugFrame, true) => u64_at(id, 0) == u64::MAX,
                (Source::DebugFrame, false) => u32_at(id, 0) == u32::MAX,
                _ => u32_at(id, 0) == 0,
            };
            return Some((here, if cie { EntryKind::Cie } else { EntryKind::Fde }));
        }
    })
}
