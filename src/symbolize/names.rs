//! Resolves the frames of one module.

use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB};

use super::debugfile;
use super::demangle::demangle;
use super::dwarf::{Dwarf, Lines};
use super::symtab::{self, Found};
use crate::elf::{Elf, ElfError};
use crate::profile::Module;
use crate::symbol::{Function, Language, Symbol, UnknownReason, UnnamedFunction};
use crate::unwind::function_starts;

impl From<ElfError> for UnknownReason {
    fn from(e: ElfError) -> Self {
        match e {
            ElfError::NotElf => UnknownReason::NotElf,
            ElfError::Bad(what) => UnknownReason::Unreadable(what),
        }
    }
}

/// Looks up file offsets (ascending, without duplicates) of a module. Returns one symbol for each, in
/// the same order; with `dwarf`, including inlined functions and source lines.
pub fn of_module(module: &Arc<Module>, offsets: &[u64], dwarf: Option<&mut Dwarf>) -> Vec<Symbol> {
    let fail = |why: UnknownReason| vec![Symbol::Unknown(why); offsets.len()];
    let Some(file) = &module.file else {
        return fail(UnknownReason::NoFile);
    };
    let elf = match Elf::read(file) {
        Ok(elf) => elf,
        Err(e) => return fail(e.into()),
    };
    let at: Vec<Option<u64>> = offsets.iter().map(|o| elf.address_of(*o)).collect();
    let mut addrs: Vec<u64> = at.iter().flatten().copied().collect();
    addrs.sort_unstable();
    addrs.dedup();
    let names = Names::read(module, &elf, &addrs);
    let mut lines = match dwarf {
        Some(dwarf) => dwarf.lines(module, &elf, &addrs),
        None => addrs.iter().map(|_| None).collect(),
    };
    let mut demangler = Demangler::default();
    let symbol = |addr: &Option<u64>| match addr.and_then(|a| addrs.binary_search(&a).ok()) {
        // An address occurs twice only if the file declares two segments at the same address; the
        // second occurrence then has no lines.
        Some(i) => names.symbol(i, addrs[i], lines[i].take(), &mut demangler),
        None => Symbol::Unknown(UnknownReason::NoSymbol),
    };
    at.iter().map(symbol).collect()
}

struct Names<'m> {
    module: &'m Module,
    found: Vec<Option<Found>>,
    /// Where the functions without a symbol begin.
    starts: Vec<Option<u64>>,
    /// The reason for addresses without a symbol.
    otherwise: UnknownReason,
}

impl<'m> Names<'m> {
    /// Searches the full symbol table of the module or its debug file first, then the dynamic symbol
    /// table for the remaining addresses, then the unwind information for functions without a symbol.
    fn read(module: &'m Module, elf: &Elf, addrs: &[u64]) -> Names<'m> {
        let mut names = Names {
            module,
            starts: Vec::new(),
            found: vec![None; addrs.len()],
            otherwise: UnknownReason::NoSymbol,
        };
        if elf.section_of_kind(SHT_SYMTAB).is_some() {
            names.add(addrs, symtab::lookup(elf, SHT_SYMTAB, false, addrs));
        } else if let Some(debug) = debugfile::find(elf, &module.path) {
            names.add(addrs, from_debug_file(&debug, addrs));
        }
        let left: Vec<u64> = addrs
            .iter()
            .zip(&names.found)
            .filter(|(_, f)| f.is_none())
            .map(|(a, _)| *a)
            .collect();
        if !left.is_empty() {
            names.add(&left, symtab::lookup(elf, SHT_DYNSYM, true, &left));
        }
        if names.found.iter().any(Option::is_none) {
            // (The reason for addresses without a symbol stays that of the symbol tables.)
            names.starts = function_starts(elf, addrs).unwrap_or_default();
        }
        names
    }

    /// Adds results, which are for all addresses or for those without a name.
    fn add(&mut self, asked: &[u64], result: Result<Vec<Option<Found>>, ElfError>) {
        match result {
            Ok(found) if asked.len() == self.found.len() => self.found = found,
            Ok(found) => {
                let gaps = self.found.iter_mut().filter(|f| f.is_none());
                gaps.zip(found).for_each(|(gap, found)| *gap = found);
            }
            Err(e) => self.otherwise = e.into(),
        }
    }

    fn symbol(&self, i: usize, addr: u64, lines: Option<Lines>, names: &mut Demangler) -> Symbol {
        let by_table = self.found[i]
            .as_ref()
            .map(|f| (f.start, names.demangle(&f.name)));
        let by_lines = || {
            let lines = lines.as_ref()?;
            lines.function().map(|f| (lines.start, f))
        };
        let Some((start, (name, mut language))) = by_table.or_else(by_lines) else {
            return self.unnamed(i, addr);
        };
        let (inlined, location) = match lines {
            Some(lines) => {
                if lines.rust {
                    language = Language::Rust;
                }
                (lines.inlined, lines.location)
            }
            None => (Vec::new(), None),
        };
        let offset_in_function = addr.saturating_sub(start);
        Symbol::Known(Function {
            name,
            language,
            offset_in_function,
            inlined,
            location,
        })
    }

    fn unnamed(&self, i: usize, addr: u64) -> Symbol {
        match self.starts.get(i) {
            Some(Some(start)) => Symbol::Unnamed(UnnamedFunction {
                name: format!("{}+{start:#x}", self.module.name),
                offset_in_function: addr - start,
            }),
            _ => Symbol::Unknown(self.otherwise.clone()),
        }
    }
}

fn from_debug_file(debug: &File, addrs: &[u64]) -> Result<Vec<Option<Found>>, ElfError> {
    symtab::lookup(&Elf::read(debug)?, SHT_SYMTAB, false, addrs)
}

type Named = (String, Language);

/// A demangler that caches the last name, because adjacent addresses are often in one function.
#[derive(Default)]
struct Demangler {
    last: Option<(Rc<[u8]>, Named)>,
}

impl Demangler {
    fn demangle(&mut self, raw: &Rc<[u8]>) -> Named {
        match &self.last {
            Some((last, name)) if Rc::ptr_eq(last, raw) => name.clone(),
            _ => {
                let name = demangle(raw);
                self.last = Some((Rc::clone(raw), name.clone()));
                name
            }
        }
    }
}
