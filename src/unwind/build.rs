//! An ELF file → its unwind table.

use std::fs::File;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, Vendor};

use super::cfi::Cfi;
use super::linkage::linkage_tables;
use super::rows::Rows;
use super::rule::{Arch, CfaKind, Rule};
use super::scan::{entry_span, trampolines};
use super::sections::{code_ranges, debug_frame, eh_frame};
use super::spans::{Source, Span, clip, fill, gaps, settle};
use super::table::Table;
use crate::elf::{Elf, ElfError};

/// The most functions (FDEs) of a section.
const MAX_SPANS: usize = 8 << 20;

/// Why a file has no unwind table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The file is not an ELF file, or a damaged one.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Tables are not made for this processor (an `EM_*` number).
    #[error("no unwind tables for ELF machine {0}")]
    Machine(u16),
    /// It has code at an address beyond 48 bits.
    #[error("code at address {0:#x}, beyond 48 bits")]
    Address(u64),
    /// There is more of this than any real file has.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// The file has no unwind information for any of its code.
    #[error("no unwind information")]
    NoUnwindInformation,
}

/// What a table was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Size of the unwind information, in bytes.
    pub section_bytes: u64,
    /// Functions with unwind information.
    pub functions: usize,
    /// Bytes of code that no unwind information covers.
    pub not_covered: u64,
    /// Bytes of code with unwind information that no rule can say.
    pub unsupported: u64,
}

impl Table {
    /// Makes the table of an ELF file: of `.eh_frame`, and of `.debug_frame` for what that does not
    /// cover.
    ///
    /// # Errors
    /// When the file cannot be read, or has nothing to make a table of.
    pub fn build(file: &File) -> Result<Table, TableError> {
        Table::build_with_figures(file).map(|(table, _)| table)
    }

    /// As [`Table::build`], with figures of what it was made of.
    ///
    /// # Errors
    /// As [`Table::build`].
    pub fn build_with_figures(file: &File) -> Result<(Table, Figures), TableError> {
        let elf = Elf::read(file)?;
        let arch = Arch::of_machine(elf.machine()).ok_or(TableError::Machine(elf.machine()))?;
        let code = code_ranges(&elf)?;

        let eh_data = eh_frame(&elf)?;
        let debug_data = debug_frame(&elf)?;
        let eh = eh_data.as_ref().map(|(data, bases)| {
            let mut section = EhFrame::new(data, LittleEndian);
            section.set_vendor(vendor(arch));
            let source = Source::EhFrame;
            Cfi::read(section, data, arch, bases.clone(), source, MAX_SPANS)
        });
        let debug = debug_data.as_ref().map(|data| {
            let mut section = DebugFrame::new(data, LittleEndian);
            section.set_address_size(8);
            section.set_vendor(vendor(arch));
            let bases = BaseAddresses::default();
            let source = Source::DebugFrame;
            Cfi::read(section, data, arch, bases, source, MAX_SPANS)
        });
        let (eh, spans) = unzip(eh)?;
        let (debug, more) = unzip(debug)?;
        let mut figures = Figures {
            section_bytes: eh_data.as_ref().map_or(0, |(d, _)| d.len() as u64)
                + debug_data.as_ref().map_or(0, |d| d.len() as u64),
            functions: spans.len() + more.len(),
            ..Figures::default()
        };

        let spans = fill(settle(spans), &settle(more));
        let spans = clip(&spans, &code);
        let open = gaps(&spans, &code);
        let spans = fill(spans, &trampolines(&elf, arch, &open));
        let open = gaps(&spans, &code);
        let spans = fill(spans, &linkage_tables(&elf, arch, &open));
        let open = gaps(&spans, &code);
        let spans = fill(spans, entry_span(&elf, &open).as_slice());

        let made = |with_bx| {
            let mut rows = Rows::default();
            for span in &spans {
                rows.begin_span(span);
                let emit = |pc, rule| rows.push(pc, rule, span.end);
                match (span.source, &eh, &debug) {
                    (Source::EhFrame, Some(cfi), _) => cfi.rules(span, with_bx, emit),
                    (Source::DebugFrame, _, Some(cfi)) => cfi.rules(span, with_bx, emit),
                    (Source::Trampoline, ..) => rows.cover(span, arch.signal_rule()),
                    (Source::Linkage(part), ..) => rows.cover(span, part.rule(arch)),
                    (Source::Entry, ..) => rows.cover(span, Rule::STOP),
                    _ => rows.cover(span, Rule::UNSUPPORTED),
                }
            }
            rows.finish()
        };
        let (mut table, mut unsupported) = made(false)?;
        // Few files need it (the dynamic loader does), and it makes more rules.
        if table.rules.iter().any(|r| r.cfa_kind() == CfaKind::Bx) {
            (table, unsupported) = made(true)?;
        }
        figures.unsupported = unsupported;
        figures.not_covered = gaps(&spans, &code).iter().map(|(s, e)| e - s).sum();
        Ok((table, figures))
    }
}

type Entries<'d, S> = Option<Option<(Cfi<'d, S>, Vec<Span>)>>;

fn unzip<S>(read: Entries<'_, S>) -> Result<(Option<Cfi<'_, S>>, Vec<Span>), TableError> {
    match read {
        None => Ok((None, Vec::new())),
        Some(Some((cfi, spans))) => Ok((Some(cfi), spans)),
        Some(None) => Err(TableError::TooLarge("the number of functions")),
    }
}

fn vendor(arch: Arch) -> Vendor {
    match arch {
        Arch::X86_64 => Vendor::Default,
        Arch::Aarch64 => Vendor::AArch64,
    }
}
