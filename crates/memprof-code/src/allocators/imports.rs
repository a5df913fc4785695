//! Functions that a file calls through its global offset table (GOT), which the dynamic loader fills in.

use std::collections::HashMap;

use object::elf::{R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};

use super::site::{self, Callee};
use crate::elf::{Elf, ElfError, u16_at, u32_at, u64_at};

/// Sizes of a relocation, of a symbol, and of the part of a `.plt` entry that is decoded, in bytes.
const RELOCATION: usize = 24;
const SYMBOL: u64 = 24;
const STUB: usize = 16;
/// Maximum size of a relocation table, and of a function's name, in bytes.
const MAX_RELOCATIONS: u64 = 64 << 20;
const LONGEST_NAME: usize = 64;

/// A function that is called through a GOT entry.
pub(super) struct Import {
    pub(super) name: String,
    /// Its address, if the file itself defines it.
    pub(super) address: Option<u64>,
}

/// The imported functions, by the address of their GOT entry.
#[derive(Default)]
pub(super) struct Imports(HashMap<u64, Import>);

impl Imports {
    /// Reads the imports of an x86-64 file.
    ///
    /// # Errors
    /// The file is damaged.
    pub(super) fn read(elf: &Elf<'_>) -> Result<Imports, ElfError> {
        let mut names = HashMap::new();
        for table in [".rela.plt", ".rela.dyn"] {
            let Some(table) = elf.section_named(table) else {
                continue;
            };
            let symbols = elf.section(table.link as usize);
            let Some(symbols) = symbols.filter(|_| table.size <= MAX_RELOCATIONS) else {
                continue;
            };
            let relocations = elf.contents(table)?;
            for relocation in relocations.chunks_exact(RELOCATION) {
                let kind = u32_at(relocation, 8);
                if kind != R_X86_64_JUMP_SLOT.0 && kind != R_X86_64_GLOB_DAT.0 {
                    continue;
                }
                let at = u64::from(u32_at(relocation, 12)) * SYMBOL;
                let mut symbol = [0; SYMBOL as usize];
                if at.saturating_add(SYMBOL) > symbols.size {
                    continue;
                }
                elf.read_at(&mut symbol, symbols.offset.saturating_add(at))?;
                let name = elf.symbol_name(symbols, &symbol, LONGEST_NAME);
                if let Some(name) = name.and_then(|name| String::from_utf8(name).ok()) {
                    let defined = u16_at(&symbol, 6) != 0;
                    let address = defined.then(|| u64_at(&symbol, 8));
                    names.insert(u64_at(relocation, 0), Import { name, address });
                }
            }
        }
        Ok(Imports(names))
    }

    /// The import that a call or jump leads to; `None` if it leads elsewhere.
    pub(super) fn lookup(&self, elf: &Elf<'_>, callee: Callee) -> Option<&Import> {
        let slot = match callee {
            Callee::In(slot) => slot,
            Callee::At(stub) => {
                let (segment, inside) = elf.loaded_at(stub)?;
                let mut code = [0; STUB];
                let at = segment.offset.checked_add(inside)?;
                let got = elf.read_some(&mut code, at).ok()?;
                match site::import(&code[..got], stub)? {
                    Callee::In(slot) => slot,
                    Callee::At(_) => return None,
                }
            }
        };
        self.0.get(&slot)
    }
}
