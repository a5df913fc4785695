//! Finds the allocation functions in a file, and where each can be probed cheaply (`--heap=exact`).
//!
//! `functions.rs` is the table of their names and signatures. `detours.rs` plans how the functions of an executable are made to
//! lead to the sampling library. `site.rs` chooses the instruction at which the kernel
//! puts its breakpoint. `exits.rs` finds the return instructions of functions that may throw. `imports.rs` resolves
//! calls through the PLT and the GOT. `room.rs` finds room for code. The BPF programs that run at the probes are in `exact.bpf.h`.

mod detours;
mod exits;
mod functions;
mod imports;
mod room;
mod site;

use std::collections::HashMap;

use object::elf::{EM_X86_64, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};

use crate::elf::{Elf, ElfError, u16_at, u32_at, u64_at};
use crate::symbolize::debug_file_of;
use crate::unwind::FunctionRanges;
pub use detours::{Detour, DetourKind, Detours, JUMP, ThreadStates, unsampled_allocator};
use exits::Exits;
use functions::{FunctionKind, Signature};
use imports::Imports;
use memprof_sys::kernel_version::KernelVersion;
use memprof_sys::target_file::ReadAt;
pub use room::unused_code;
use site::{Callee, Site};

/// Maximum number of bytes read of a function's code, and of a string table.
const MAX_CODE: u64 = 1 << 16;
const MAX_STRINGS: u64 = 256 << 20;
/// Maximum number of functions of one file.
const MAX_FUNCTIONS: usize = 512;

/// Options of an exact window: which calls it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactOptions {
    /// Smallest size that is counted, in bytes.
    pub min_size: u64,
    /// Largest size that is counted, in bytes.
    pub max_size: u64,
    /// Counts one call in `every`, chosen at random; each counted call represents `every` calls.
    pub every: u32,
    /// Number of calls to skip before the first one that is counted.
    pub skip: u64,
}

impl Default for ExactOptions {
    /// Counts every call.
    fn default() -> ExactOptions {
        ExactOptions {
            min_size: 0,
            max_size: u64::MAX,
            every: 1,
            skip: 0,
        }
    }
}

/// What a probed function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionRole {
    /// Allocates memory.
    Allocates,
    /// Frees memory, and returns nothing.
    Frees,
    /// Throws an exception.
    Throws,
}

/// A function of an allocator, and how to probe it. Offsets are file offsets, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The symbol's name.
    pub name: String,
    /// What the function does.
    pub role: FunctionRole,
    /// File offset of the entry probe.
    pub offset: u64,
    /// BPF cookie of the probe: argument registers and flags, see `enum exact_flag` in `memprof.h`.
    pub cookie: u64,
    /// Whether to probe its return with a uretprobe.
    pub returns: bool,
    /// File offsets of its `ret` instructions, which are probed instead of the return.
    pub exits: Vec<u64>,
    /// Whether the kernel emulates the probed instructions, which costs 1 µs. Otherwise it single-steps them out of
    /// line, which costs 15 to 50 µs.
    pub emulated: bool,
}

/// A function of the table that a file defines.
struct FoundFunction {
    name: String,
    signature: Signature,
    address: u64,
    code: Vec<u8>,
    /// Addresses of its `ret` instructions, if it may throw and all of them are known. Later converted to file offsets.
    exits: Vec<u64>,
}

impl FoundFunction {
    /// Whether the function may merely wrap another function of the table.
    fn may_wrap(&self) -> bool {
        self.signature.kind == FunctionKind::Operator || self.signature.throws
    }
}

/// Returns the allocation functions that a file defines.
///
/// # Errors
/// The file is not an ELF file that memprof can read.
pub fn functions_of(file: &dyn ReadAt, kernel: KernelVersion) -> Result<Vec<Function>, ElfError> {
    let elf = Elf::read(file)?;
    let mut found = symbols(&elf, &elf)?;
    // Without an allocator in the same file, the operators call one in another file. Then only `__cxa_throw` is probed
    // here.
    let others = |f: &FoundFunction| {
        !matches!(
            f.signature.kind,
            FunctionKind::Operator | FunctionKind::Throws
        )
    };
    if !found.iter().any(others) {
        found.retain(|f| f.signature.kind == FunctionKind::Throws);
    }
    let x86 = elf.machine() == EM_X86_64;
    let imports = match x86 && found.iter().any(FoundFunction::may_wrap) {
        true => Imports::read(&elf)?,
        false => Imports::default(),
    };
    let in_file = |address: u64| {
        let (segment, inside) = elf.loaded_at(address)?;
        segment.offset.checked_add(inside)
    };
    let wrapped = Wrapped::new(&elf, &imports, &found);
    found.retain(|f| !wrapped.always_called_by(f));
    let throws = x86 && found.iter().any(|f| f.signature.throws);
    let ranges = throws.then(|| FunctionRanges::read(&elf).ok()).flatten();
    for f in found.iter_mut().filter(|f| f.signature.throws) {
        let exits = ranges.as_ref().and_then(|ranges| {
            let exits = Exits {
                elf: &elf,
                imports: &imports,
                ranges,
            };
            exits.find(f.address)
        });
        let exits = exits.into_iter().flatten().map(in_file);
        f.exits = exits.collect::<Option<Vec<u64>>>().unwrap_or_default();
    }
    // Without known exits, calls nested in such a function cannot be recognized.
    found.retain(|f| !f.signature.throws || !f.exits.is_empty() || !wrapped.called_by(f));
    let functions = found.iter().filter_map(|f| {
        let site = match x86 {
            true => site::choose(&f.code, f.signature.arguments(), kernel),
            false => Site::entry_of_aarch64(),
        };
        let role = match (f.signature.kind, f.signature.size) {
            (FunctionKind::Throws, _) => FunctionRole::Throws,
            (_, None) => FunctionRole::Frees,
            _ => FunctionRole::Allocates,
        };
        Some(Function {
            name: f.name.clone(),
            role,
            offset: in_file(f.address)?.checked_add(site.offset)?,
            cookie: cookie(&f.signature, &site, !f.exits.is_empty()),
            returns: role == FunctionRole::Allocates && !f.signature.throws,
            emulated: site.emulated && f.exits.is_empty(),
            exits: f.exits.clone(),
        })
    });
    Ok(functions.collect())
}

/// The name of an allocation function of an executable that has an allocator of its own: linked statically, so that calls of it
/// reach no library that is loaded beside it. `None` if the file has none, or cannot be read.
pub fn own_allocator(executable: &dyn ReadAt) -> Option<String> {
    let elf = Elf::read(executable).ok()?;
    name_of_allocator(&own_functions(&elf).ok()?)
}

/// The functions of an executable's own allocator, by the symbols of the file or else of its debug file; none without an
/// allocator.
fn own_functions(elf: &Elf<'_>) -> Result<Vec<FoundFunction>, ElfError> {
    let found = symbols(elf, elf)?;
    if name_of_allocator(&found).is_some() {
        return Ok(found);
    }
    let debug = elf.build_id().and_then(|id| debug_file_of(&id));
    let debug = debug.as_ref().map(|file| Elf::read_debug_file(file));
    let found = match debug {
        Some(Ok(named)) => symbols(elf, &named)?,
        _ => Vec::new(),
    };
    match name_of_allocator(&found) {
        Some(_) => Ok(found),
        None => Ok(Vec::new()),
    }
}

/// The name that people know of an allocator among these functions; `None` if there are only C++'s operators, which call an
/// allocator elsewhere.
fn name_of_allocator(functions: &[FoundFunction]) -> Option<String> {
    let functions = functions.iter().filter(|f| {
        !matches!(
            f.signature.kind,
            FunctionKind::Operator | FunctionKind::Throws
        )
    });
    let (frees, allocates): (Vec<_>, Vec<_>) = functions.partition(|f| f.signature.frees());
    let names = allocates.iter().map(|f| &f.name);
    let name = names.min_by_key(|name| (!name.ends_with("malloc"), name.len()))?;
    (!frees.is_empty()).then(|| name.clone())
}

/// Functions of the table that an operator may call, in its own file or as imports. An operator that always calls one
/// needs no probe: the inner call is counted, and its return can have a uretprobe.
struct Wrapped<'e> {
    elf: &'e Elf<'e>,
    imports: &'e Imports,
    /// Whether a function frees, by name.
    named: HashMap<String, bool>,
    at: HashMap<u64, bool>,
}

impl<'e> Wrapped<'e> {
    fn new(elf: &'e Elf<'e>, imports: &'e Imports, found: &[FoundFunction]) -> Wrapped<'e> {
        let all = functions::all().filter(|(_, signature)| signature.kind != FunctionKind::Throws);
        let at = found.iter().map(|f| (f.address, f.signature.frees()));
        Wrapped {
            elf,
            imports,
            named: all.map(|(name, s)| (name, s.frees())).collect(),
            at: at.collect(),
        }
    }

    /// Whether the callee frees if the function frees, and allocates if the function allocates.
    fn does_the_same(&self, f: &FoundFunction, callee: Callee) -> bool {
        let direct = match callee {
            Callee::At(address) => self.at.get(&address),
            Callee::In(_) => None,
        };
        let import = || self.named.get(&self.imports.lookup(self.elf, callee)?.name);
        direct.or_else(import) == Some(&f.signature.frees())
    }

    /// Whether every call of the function calls a function of the table with the same effect.
    fn always_called_by(&self, f: &FoundFunction) -> bool {
        let first = site::first_callee(&f.code, f.address, self.elf.machine());
        f.may_wrap() && first.is_some_and(|callee| self.does_the_same(f, callee))
    }

    /// Whether the function may call a function of the table with the same effect.
    fn called_by(&self, f: &FoundFunction) -> bool {
        let callees = site::callees(&f.code, f.address, self.elf.machine());
        f.may_wrap() && callees.into_iter().any(|c| self.does_the_same(f, c))
    }
}

/// The functions of the table that a file defines, one per address. Their names are in `named`: the file itself, or its debug
/// file.
fn symbols(elf: &Elf<'_>, named: &Elf<'_>) -> Result<Vec<FoundFunction>, ElfError> {
    let wanted: HashMap<String, Signature> = functions::all().collect();
    let longest = wanted.keys().map(String::len).max().unwrap_or_default();
    let mut found: Vec<FoundFunction> = Vec::new();
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Some(table) = named.section_of_kind(kind) else {
            continue;
        };
        let strings = named.section(table.link as usize);
        let Some(strings) = strings.filter(|s| s.size <= MAX_STRINGS) else {
            continue;
        };
        let strings = named.contents(strings)?;
        named.for_each_symbol(table, |symbol| {
            let is_code = symbol[4] & 0xf == STT_FUNC.0 && u16_at(symbol, 6) != 0;
            let name = strings
                .get(u32_at(symbol, 0) as usize..)
                .unwrap_or_default();
            let end = name.iter().take(longest + 1).position(|b| *b == 0);
            let name = end.and_then(|end| std::str::from_utf8(&name[..end]).ok());
            let address = u64_at(symbol, 8);
            let known = |found: &[FoundFunction]| found.iter().any(|f| f.address == address);
            if let Some(name) = name.filter(|_| is_code)
                && let Some(signature) = wanted.get(name)
                && found.len() < MAX_FUNCTIONS
                && !known(&found)
                && let Some((segment, inside)) = elf.loaded_at(address)
            {
                let size = u64_at(symbol, 16).min(MAX_CODE).min(segment.size - inside);
                let mut code = vec![0; size as usize];
                elf.read_at(&mut code, segment.offset.saturating_add(inside))?;
                found.push(FoundFunction {
                    name: name.to_owned(),
                    signature: *signature,
                    address,
                    code,
                    exits: Vec::new(),
                });
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn cookie(signature: &Signature, site: &Site, exits: bool) -> u64 {
    let at = |argument: Option<u8>| {
        argument.map_or(flag::NO_REGISTER, |a| site.registers[usize::from(a)])
    };
    let mut flags = 0;
    for (flag, set) in [
        (
            flag::RESIZES,
            matches!(
                signature.kind,
                FunctionKind::Resizes | FunctionKind::ResizesOrFrees
            ),
        ),
        (flag::FREES, signature.kind == FunctionKind::ResizesOrFrees),
        (flag::STORES, signature.kind == FunctionKind::Stores),
        (flag::NO_RETURN, signature.throws && !exits),
        (flag::EXITS, exits),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let bytes = [
        at(signature.size),
        at(signature.count),
        at(signature.pointer),
        flags,
    ];
    u64::from(u32::from_le_bytes(bytes))
}

/// The values of `enum exact_flag` in `memprof.h`; `wire` checks at compile time that both agree.
pub mod flag {
    /// `pointer` is the block to resize.
    pub const RESIZES: u8 = 1;
    /// The function stores its result in the word at `pointer`, and returns 0.
    pub const STORES: u8 = 2;
    /// The function's return has no probe.
    pub const NO_RETURN: u8 = 4;
    /// The block is freed if resizing fails.
    pub const FREES: u8 = 8;
    /// The return is probed at the `ret` instructions.
    pub const EXITS: u8 = 16;
    /// In place of a register index: the function has no such argument.
    pub const NO_REGISTER: u8 = 0xff;
}

#[cfg(test)]
mod tests;
