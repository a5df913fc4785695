//! Builds the unwind table of an ELF file.

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, Vendor};

use super::cfi::Cfi;
use super::expression::Reader;
use super::go::GoCode;
use super::linkage::linkage_tables;
use super::machine_code::MachineCode;
use super::rows::Rows;
use super::rule::{Arch, CfaKind, Rule};
use super::scan::{entry_span, trampolines};
use super::sections::{code_ranges, debug_frame, eh_frame};
use super::spans::{Source, Span, clip, fill, gaps, settle};
use super::table::Table;
use crate::elf::{Elf, ElfError};
use memprof_sys::target_file::ReadAt;

/// Maximum number of functions (FDEs) in a section.
const MAX_SPANS: usize = 8 << 20;

/// Why a file has no unwind table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The file is not an ELF file, or it is damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Tables are not supported for this processor (an `EM_*` number).
    #[error("unwind tables are not supported for ELF machine {0}")]
    Machine(u16),
    /// The file has code at an address beyond 48 bits.
    #[error("code address {0:#x} exceeds 48 bits")]
    Address(u64),
    /// The named quantity exceeds its limit, which no known file reaches.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// The file has no unwind information for any of its code.
    #[error("no unwind information")]
    NoUnwindInformation,
}

/// Statistics of building a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildStatistics {
    /// Size of the unwind information, in bytes.
    pub section_bytes: u64,
    /// Functions with unwind information.
    pub functions: usize,
    /// Bytes of code that no unwind information covers.
    pub not_covered: u64,
    /// Bytes of code with unwind information that no rule can express.
    pub unsupported: u64,
}

impl Table {
    /// Builds the table of an ELF file. The sources are `.eh_frame`, then Go's function table, then `.debug_frame`,
    /// each for the code that the previous ones do not cover. Go's linker also writes `.debug_frame`, but it does not
    /// describe where code switches stacks.
    ///
    /// # Errors
    /// The file cannot be read or has no unwind information.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::fs::File;
    ///
    /// use memprof_code::unwind::{Rule, Table};
    ///
    /// let table = Table::build(&File::open("/proc/self/exe")?)?;
    /// assert!(table.rows.is_sorted_by_key(|row| row.pc));
    /// // The ELF header is not code.
    /// assert_eq!(*table.rule_at(0), Rule::NOT_COVERED);
    /// // The form that the BPF program searches.
    /// assert_eq!(table.pack().pages.len(), table.pages());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(file: &dyn ReadAt) -> Result<Table, TableError> {
        Table::build_with_figures(file).map(|(table, _)| table)
    }

    /// Like [`Table::build`], with statistics.
    ///
    /// # Errors
    /// Like [`Table::build`].
    pub fn build_with_figures(file: &dyn ReadAt) -> Result<(Table, BuildStatistics), TableError> {
        let elf = Elf::read(file)?;
        let arch = Arch::of_machine(elf.machine()).ok_or(TableError::Machine(elf.machine().0))?;
        let code = code_ranges(&elf)?;

        let eh_data = eh_frame(&elf)?;
        let debug_data = debug_frame(&elf)?;
        let eh = eh_data.as_ref().map(|found| read_eh_frame(found, arch));
        let debug = debug_data.as_ref().map(|data| read_debug_frame(data, arch));
        let (eh, spans) = unzip(eh)?;
        let (debug, more) = unzip(debug)?;
        let mut figures = BuildStatistics {
            section_bytes: eh_data.as_ref().map_or(0, |(d, _)| d.len() as u64)
                + debug_data.as_ref().map_or(0, |d| d.len() as u64),
            functions: spans.len() + more.len(),
            ..BuildStatistics::default()
        };

        let (go, gos) = GoCode::read(&elf, arch).unzip();
        let spans = fill(settle(spans), &gos.unwrap_or_default());
        let spans = fill(spans, &settle(more));
        let spans = clip(&spans, &code);
        let open = gaps(&spans, &code);
        let spans = fill(spans, &trampolines(&elf, arch, &open));
        let open = gaps(&spans, &code);
        let spans = fill(spans, &linkage_tables(&elf, arch, &open));
        let open = gaps(&spans, &code);
        let (followed, more) = MachineCode::read(&elf, arch, &open);
        let spans = fill(spans, entry_span(&elf, &open).as_slice());
        let spans = fill(spans, &more);

        let made = |with_bx| {
            let mut rows = Rows::default();
            for span in &spans {
                rows.begin_span(span);
                let emit = |pc, rule| rows.push(pc, rule, span.end);
                match (span.source, &eh, &debug, &go) {
                    (Source::EhFrame, Some(cfi), ..) => cfi.rules(span, with_bx, emit),
                    (Source::DebugFrame, _, Some(cfi), _) => cfi.rules(span, with_bx, emit),
                    (Source::Go, .., Some(go)) => go.rules(span, emit),
                    (Source::Trampoline, ..) => rows.cover(span, arch.signal_rule()),
                    (Source::Linkage(part), ..) => rows.cover(span, part.rule(arch)),
                    (Source::MachineCode, ..) => followed.rules(span, emit),
                    (Source::Entry, ..) => rows.cover(span, Rule::STOP),
                    _ => rows.cover(span, Rule::UNSUPPORTED),
                }
            }
            rows.finish()
        };
        let (mut table, mut unsupported) = made(false)?;
        // Few files need `rbx` (the dynamic loader does), and tracking it takes more rules.
        if table.rules.iter().any(|r| r.cfa_kind() == CfaKind::Bx) {
            (table, unsupported) = made(true)?;
        }
        figures.unsupported = unsupported;
        figures.not_covered = gaps(&spans, &code).iter().map(|(s, e)| e - s).sum();
        Ok((table, figures))
    }
}

/// The address ranges of a file's functions according to its unwind information. Each entry covers one function, or a
/// part of one that the compiler moved elsewhere.
pub(crate) struct FunctionRanges(Vec<Span>);

impl FunctionRanges {
    /// Reads the unwind information of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(elf: &Elf) -> Result<FunctionRanges, TableError> {
        let arch = Arch::of_machine(elf.machine()).ok_or(TableError::Machine(elf.machine().0))?;
        let eh_data = eh_frame(elf)?;
        let debug_data = debug_frame(elf)?;
        let eh = eh_data.as_ref().map(|found| read_eh_frame(found, arch));
        let debug = debug_data.as_ref().map(|data| read_debug_frame(data, arch));
        let spans = fill(settle(unzip(eh)?.1), &settle(unzip(debug)?.1));
        Ok(FunctionRanges(spans))
    }

    /// The function that contains an address, in the file's own addresses.
    pub(crate) fn at(&self, addr: u64) -> Option<std::ops::Range<u64>> {
        let after = self.0.partition_point(|span| span.start <= addr);
        let span = self.0[..after].last().filter(|span| addr < span.end)?;
        Some(span.start..span.end)
    }
}

/// The entries of a section; `None` if there are too many.
type Entries<'d, S> = Option<(Cfi<'d, S>, Vec<Span>)>;

fn read_eh_frame(
    (data, bases): &(Vec<u8>, BaseAddresses),
    arch: Arch,
) -> Entries<'_, EhFrame<Reader<'_>>> {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_vendor(vendor(arch));
    Cfi::read(
        section,
        data,
        arch,
        bases.clone(),
        Source::EhFrame,
        MAX_SPANS,
    )
}

fn read_debug_frame(data: &[u8], arch: Arch) -> Entries<'_, DebugFrame<Reader<'_>>> {
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(vendor(arch));
    let bases = BaseAddresses::default();
    Cfi::read(section, data, arch, bases, Source::DebugFrame, MAX_SPANS)
}

fn unzip<S>(read: Option<Entries<'_, S>>) -> Result<(Option<Cfi<'_, S>>, Vec<Span>), TableError> {
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
