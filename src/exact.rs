//! The functions of allocators in a file, and where each can be probed cheaply (`--heap=exact`).
//!
//! `functions.rs` is the table of their names and signatures, `site.rs` chooses the instruction of a function at which the
//! kernel puts its trap. The programs that run there are in `exact.bpf.h`.

mod functions;
mod site;

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use object::elf::{EM_X86_64, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};

use crate::capability::KernelVersion;
use crate::elf::{Elf, ElfError, u16_at, u32_at, u64_at};
use crate::profile::Stack;
use crate::wire::exact_flag;
use functions::{Kind, Signature};
use site::Site;

/// Maximum number of bytes of a function that are looked at, and of a table of names.
const MOST_CODE: u64 = 1 << 16;
const MOST_STRINGS: u64 = 256 << 20;
/// Maximum number of functions of one file.
const MOST_FUNCTIONS: usize = 512;

/// What a window counts, and for how long a block lives that is temporary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactOptions {
    /// The smallest size that is counted, in bytes.
    pub min_size: u64,
    /// The largest one.
    pub max_size: u64,
    /// One call in so many is counted, chosen at random, and stands for all of them.
    pub every: u32,
    /// So many calls are not counted at first.
    pub skip: u64,
}

impl Default for ExactOptions {
    /// Every call.
    fn default() -> ExactOptions {
        ExactOptions {
            min_size: 0,
            max_size: u64::MAX,
            every: 1,
            skip: 0,
        }
    }
}

/// A function of an allocator, and how it is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Where its trap is, in the file, in bytes.
    pub offset: u64,
    /// What its program is told: see `enum exact_flag` in `memprof.h`.
    pub cookie: u64,
    /// Whether it frees, and returns nothing.
    pub frees: bool,
    /// Whether its return has a probe, too.
    pub returns: bool,
    /// Whether the kernel emulates the instruction of the trap, which costs 1 µs, or lets the processor execute it alone,
    /// which costs 15 to 50.
    pub emulated: bool,
}

/// The sizes of a stack's allocations.
#[derive(Clone, Debug)]
pub struct StackSizes {
    /// The stack; `None` if it was lost.
    pub stack: Option<Arc<Stack>>,
    /// Numbers of allocations by the number of bits of their size in bytes.
    pub sizes: Vec<u64>,
}

/// A symbol of the table, found in a file.
struct Found {
    name: String,
    signature: Signature,
    address: u64,
    code: Vec<u8>,
}

/// The functions of allocators in a file.
///
/// # Errors
/// The file is none that memprof can read.
pub fn functions_of(file: &File, kernel: KernelVersion) -> Result<Vec<Function>, ElfError> {
    let elf = Elf::read(file)?;
    let mut found = symbols(&elf)?;
    let is_operator = |f: &Found| f.signature.kind == Kind::Operator;
    // Operators of a file without an allocator call one elsewhere.
    if found.iter().all(is_operator) {
        return Ok(Vec::new());
    }
    let entries: Vec<u64> = found.iter().map(|f| f.address).collect();
    found.retain(|f| !is_operator(f) || !site::calls(&f.code, f.address, &entries));
    let x86 = elf.machine() == EM_X86_64;
    let functions = found.into_iter().filter_map(|f| {
        let site = match x86 {
            true => site::choose(&f.code, f.signature.arguments(), kernel),
            false => Site::entry_of_aarch64(),
        };
        let (segment, inside) = elf.loaded_at(f.address)?;
        Some(Function {
            offset: segment
                .offset
                .checked_add(inside)?
                .checked_add(site.offset)?,
            cookie: cookie(&f.signature, &site),
            frees: f.signature.size.is_none(),
            returns: f.signature.size.is_some() && !f.signature.throws,
            emulated: site.emulated,
            name: f.name,
        })
    });
    Ok(functions.collect())
}

/// The functions of the table that a file defines, each address once.
fn symbols(elf: &Elf<'_>) -> Result<Vec<Found>, ElfError> {
    let wanted: HashMap<String, Signature> = functions::all().collect();
    let longest = wanted.keys().map(String::len).max().unwrap_or_default();
    let mut found: Vec<Found> = Vec::new();
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Some(table) = elf.section_of_kind(kind) else {
            continue;
        };
        let strings = elf.section(table.link as usize);
        let Some(strings) = strings.filter(|s| s.size <= MOST_STRINGS) else {
            continue;
        };
        let strings = elf.contents(strings)?;
        elf.for_each_symbol(table, |symbol| {
            let is_code = symbol[4] & 0xf == STT_FUNC.0 && u16_at(symbol, 6) != 0;
            let name = strings
                .get(u32_at(symbol, 0) as usize..)
                .unwrap_or_default();
            let end = name.iter().take(longest + 1).position(|b| *b == 0);
            let name = end.and_then(|end| std::str::from_utf8(&name[..end]).ok());
            let address = u64_at(symbol, 8);
            let known = |found: &[Found]| found.iter().any(|f| f.address == address);
            if let Some(name) = name.filter(|_| is_code)
                && let Some(signature) = wanted.get(name)
                && found.len() < MOST_FUNCTIONS
                && !known(&found)
                && let Some((segment, inside)) = elf.loaded_at(address)
            {
                let size = u64_at(symbol, 16).min(MOST_CODE).min(segment.size - inside);
                let mut code = vec![0; size as usize];
                elf.read_at(&mut code, segment.offset.saturating_add(inside))?;
                found.push(Found {
                    name: name.to_owned(),
                    signature: *signature,
                    address,
                    code,
                });
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn cookie(signature: &Signature, site: &Site) -> u64 {
    let none = exact_flag::EXACT_NO_REGISTER.0 as u8;
    let at = |argument: Option<u8>| argument.map_or(none, |a| site.registers[usize::from(a)]);
    let mut flags = 0;
    for (flag, set) in [
        (exact_flag::EXACT_RESIZES, signature.kind == Kind::Resizes),
        (exact_flag::EXACT_STORES, signature.kind == Kind::Stores),
        (exact_flag::EXACT_NO_RETURN, signature.throws),
    ] {
        flags |= if set { flag.0 as u8 } else { 0 };
    }
    let bytes = [
        at(signature.size),
        at(signature.count),
        at(signature.pointer),
        flags,
    ];
    u64::from(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
