//! The order of the sources in which function names are looked up.

use std::sync::Arc;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB};

use super::debuginfod_cache::CacheDirs;
use super::fetch::Requests;
use super::minidebug::MiniDebug;
use super::symtab::{self, FoundSymbol};
use super::{debugfile, gopclntab};
use crate::elf::{Elf, ElfError};
use crate::unwind::FunctionRanges;
use memprof_profile::Module;
use memprof_profile::symbol::UnknownReason;

/// Sources outside the file itself, and cached decompressed files.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub cache: CacheDirs,
    pub mini: MiniDebug,
    pub requests: Requests,
}

/// The results of looking up some addresses.
pub(super) struct Names {
    /// The function's symbol, for each address.
    pub found: Vec<Option<FoundSymbol>>,
    /// The start of the function, for addresses without a symbol.
    pub starts: Vec<Option<u64>>,
    /// The reason why addresses have no symbol.
    pub otherwise: UnknownReason,
}

impl Sources {
    /// Looks up addresses of a module (ascending, without duplicates). The sources are the full symbol table of the
    /// file or else of its debug file or `.gnu_debugdata`, then the dynamic symbol table, then Go's function table;
    /// each is queried for the addresses that are left. Unwind information provides the starts of functions without a
    /// symbol.
    pub fn look_up(&mut self, module: &Arc<Module>, elf: &Elf, addrs: &[u64]) -> Names {
        let mut names = Names {
            starts: Vec::new(),
            found: vec![None; addrs.len()],
            otherwise: UnknownReason::NoSymbol,
        };
        let full = elf.section_of_kind(SHT_SYMTAB).is_some();
        let debug = match full {
            true => None,
            false => debugfile::find(elf, module, &self.cache),
        };
        if full {
            names.add(addrs, |all| symtab::lookup(elf, SHT_SYMTAB, false, all));
        } else if let Some(debug) = &debug {
            names.add(addrs, |all| {
                symtab::lookup(&Elf::read(debug)?, SHT_SYMTAB, false, all)
            });
        } else if let Some(mini) = self.mini.file(module, elf) {
            names.add(addrs, |left| {
                // It lists the functions that the dynamic symbol table lacks, so its gaps are other functions.
                symtab::lookup(&Elf::read(&*mini)?, SHT_SYMTAB, true, left)
            });
        }
        names.add(addrs, |left| symtab::lookup(elf, SHT_DYNSYM, true, left));
        names.add(addrs, |left| gopclntab::lookup(elf, left));
        if names.found.iter().any(Option::is_none) {
            // The reason for addresses without a symbol remains that of the symbol tables.
            let start = |ranges: &FunctionRanges, addr| ranges.at(addr).map(|range| range.start);
            names.starts = FunctionRanges::read(elf)
                .map(|ranges| addrs.iter().map(|addr| start(&ranges, *addr)).collect())
                .unwrap_or_default();
            if !full && debug.is_none() {
                self.requests.want(module, elf);
            }
        }
        names
    }
}

impl Names {
    /// Fills the gaps with the results of `source` for the addresses without a name.
    fn add(
        &mut self,
        addrs: &[u64],
        source: impl FnOnce(&[u64]) -> Result<Vec<Option<FoundSymbol>>, ElfError>,
    ) {
        let unnamed = addrs.iter().zip(&self.found).filter(|(_, f)| f.is_none());
        let left: Vec<u64> = unnamed.map(|(addr, _)| *addr).collect();
        if left.is_empty() {
            return;
        }
        match source(&left) {
            Ok(found) => {
                let gaps = self.found.iter_mut().filter(|f| f.is_none());
                gaps.zip(found).for_each(|(gap, found)| *gap = found);
            }
            Err(e) => self.otherwise = e.into(),
        }
    }
}
