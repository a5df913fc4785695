//! Resolves the frames of one module.

use std::rc::Rc;
use std::sync::Arc;

use super::demangle::demangle;
use super::dwarf::{Dwarf, Lines};
use super::sources::{Names, Sources};
use crate::elf::{Elf, ElfError};
use memprof_profile::symbol::{
    Function, Language, Location, Symbol, UnknownReason, UnnamedFunction,
};
use memprof_profile::{Functions, Module, Position};

impl From<ElfError> for UnknownReason {
    fn from(e: ElfError) -> Self {
        match e {
            ElfError::NotElf => UnknownReason::NotElf,
            ElfError::Bad(what) => UnknownReason::Unreadable(what),
        }
    }
}

/// Looks up file offsets (ascending, without duplicates) of a module. Returns one symbol for each, in the same order;
/// with `dwarf`, the symbols include inlined functions and source lines.
pub fn of_module(
    sources: &mut Sources,
    module: &Arc<Module>,
    offsets: &[u64],
    dwarf: Option<&mut Dwarf>,
) -> Vec<Symbol> {
    if let Some(functions) = &module.functions {
        let symbol = |at: &u64| of_source(module, functions, *at);
        return offsets.iter().map(symbol).collect();
    }
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
    let names = sources.look_up(module, &elf, &addrs);
    let frames = InlinedFrames { module, names };
    let mut lines = match dwarf {
        Some(dwarf) => dwarf.lines(module, &elf, &sources.cache, &addrs),
        None => addrs.iter().map(|_| None).collect(),
    };
    let mut demangler = Demangler::default();
    let symbol = |addr: &Option<u64>| match addr.and_then(|a| addrs.binary_search(&a).ok()) {
        // An address occurs twice only if the file declares two segments at the same address. The second occurrence
        // then has no lines.
        Some(i) => frames.symbol(i, addrs[i], lines[i].take(), &mut demangler),
        None => Symbol::Unknown(UnknownReason::NoSymbol),
    };
    at.iter().map(symbol).collect()
}

/// The symbol of a position in a source file, which needs no file with machine code.
fn of_source(module: &Module, functions: &Functions, offset: u64) -> Symbol {
    let Some(Position { function, line }) = functions.at(offset) else {
        return Symbol::Unknown(UnknownReason::NoSymbol);
    };
    let location = (function.first_line > 0).then(|| Location {
        file: module.path.to_string_lossy().into_owned(),
        line: (line > 0).then_some(line),
    });
    Symbol::Known(Function {
        name: function.name.to_string(),
        language: functions.language,
        offset_in_function: 0,
        first_line: Some(function.first_line),
        inlined: Vec::new(),
        location,
    })
}

struct InlinedFrames<'m> {
    module: &'m Module,
    names: Names,
}

impl InlinedFrames<'_> {
    fn symbol(
        &self,
        i: usize,
        addr: u64,
        lines: Option<Lines>,
        demangler: &mut Demangler,
    ) -> Symbol {
        let by_table = self.names.found[i]
            .as_ref()
            .map(|f| (f.start, demangler.demangle(&f.name)));
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
            first_line: None,
            inlined,
            location,
        })
    }

    fn unnamed(&self, i: usize, addr: u64) -> Symbol {
        match self.names.starts.get(i) {
            Some(Some(start)) => Symbol::Unnamed(UnnamedFunction {
                name: format!("{}+{start:#x}", self.module.name),
                offset_in_function: addr - start,
            }),
            _ => Symbol::Unknown(self.names.otherwise.clone()),
        }
    }
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
