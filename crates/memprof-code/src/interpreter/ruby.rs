//! Finds CRuby in a file, and forms the names of its functions.

mod layout;

use std::collections::BTreeSet;
use std::ops::Range;

use object::elf::{EM_X86_64, PT_TLS, R_X86_64_DTPMOD64, SHT_DYNSYM, SHT_SYMTAB};

pub use self::layout::Layout;
use super::word_at;
use crate::elf::{Elf, Extent, u32_at, u64_at};

/// A file with a CRuby interpreter. Addresses are the file's own (before relocation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruby {
    /// Offsets in its structures.
    pub layout: &'static Layout,
    /// Whether the file is a program rather than a library.
    pub is_program: bool,
    /// Address at which the dynamic loader stores the library's TLS module number; an arbitrary address for a program.
    pub runtime: u64,
    /// Size of its thread-local storage, in words.
    pub tls_words: u16,
    /// Address range of the code of `vm_exec`.
    pub evaluator: Range<u64>,
}

const VERSION: &str = "ruby_api_version";
/// Two exported functions whose last call is to `vm_exec`.
const EVAL: &str = "rb_iseq_eval";
const EVAL_MAIN: &str = "rb_iseq_eval_main";
/// Names of `vm_exec`: in 3.1, and in files that are not fully stripped.
const EXPORTED_EVALUATOR: &str = "rb_vm_exec";
const EVALUATOR: &str = "vm_exec";

/// Size of a relocation, in bytes.
const RELOCATION: usize = 24;
/// Maximum size of a relocation table, in bytes; Ruby's is 400 KB.
const MAX_RELOCATIONS: u64 = 64 << 20;
/// Maximum size of `.eh_frame_hdr`, in bytes; Ruby's is 76 KB.
const MAX_INDEX: u64 = 16 << 20;
/// Maximum number of bytes of a function that are searched for calls.
const MAX_CALLER: u64 = 4096;
/// Maximum number of words of thread-local storage; Ruby has 3.
const MAX_TLS_WORDS: u64 = 8;

/// Finds CRuby in a file. `Err` contains the reason why its frames cannot be read.
pub(super) fn find(elf: &Elf) -> Option<Result<Ruby, String>> {
    let names = [VERSION, EVAL, EVAL_MAIN, EXPORTED_EVALUATOR];
    let mut found = elf.extents(SHT_DYNSYM, names).ok()?;
    // Extensions refer to the interpreter's symbols, so every CRuby has dynamic symbols.
    found[0]?;
    if found[..3].contains(&None) {
        found = elf.extents(SHT_SYMTAB, names).ok()?;
    }
    let [Some(version), Some(eval), Some(eval_main), evaluator] = found else {
        return Some(Err("this Ruby has no symbol rb_iseq_eval".into()));
    };
    Some(check(elf, version, [eval, eval_main], evaluator))
}

fn check(
    elf: &Elf,
    version: Extent,
    callers: [Extent; 2],
    evaluator: Option<Extent>,
) -> Result<Ruby, String> {
    if elf.machine() != EM_X86_64 {
        return Err("Ruby's frames are read on x86-64 only".into());
    }
    // int ruby_api_version[3]
    let word = word_at(elf, version.address).unwrap_or_default();
    let (major, minor) = (word as u32, (word >> 32) as u32);
    let layout = Layout::for_version(major, minor)
        .ok_or_else(|| format!("Ruby {major}.{minor}: its frames are not read; 3.1 to 3.4 are"))?;
    let is_program = elf.entry().is_some();
    let storage = elf.segment_of_kind(PT_TLS);
    let tls_words = storage.map_or(0, |s| s.size_in_memory / 8);
    let tls_words = u16::try_from(tls_words.min(MAX_TLS_WORDS)).unwrap_or_default();
    let runtime = match is_program {
        true => Some(version.address),
        false => module_number(elf),
    };
    let runtime = runtime
        .filter(|_| tls_words > 0)
        .ok_or("this Ruby has no thread-local storage of a known kind")?;
    let symbol = || elf.extents(SHT_SYMTAB, [EVALUATOR]).ok()?[0];
    let evaluator = match evaluator.or_else(symbol) {
        Some(named) => Some(range(named)),
        None => called_by_both(elf, callers),
    };
    Ok(Ruby {
        layout,
        is_program,
        runtime,
        tls_words,
        evaluator: evaluator.ok_or("vm_exec is not found in this Ruby")?,
    })
}

fn range(extent: Extent) -> Range<u64> {
    extent.address..extent.address.saturating_add(extent.size)
}

/// Address at which the dynamic loader stores this file's TLS module number.
fn module_number(elf: &Elf) -> Option<u64> {
    let table = elf.section_named(".rela.dyn")?;
    let table = elf
        .contents(Some(table).filter(|t| t.size <= MAX_RELOCATIONS)?)
        .ok()?;
    let mut entries = table.chunks_exact(RELOCATION);
    let found = entries.find(|entry| u32_at(entry, 8) == R_X86_64_DTPMOD64.0)?;
    Some(u64_at(found, 0))
}

/// The function that both callers call or tail-call. A stripped library does not name it.
fn called_by_both(elf: &Elf, callers: [Extent; 2]) -> Option<Range<u64>> {
    let [first, second] = callers.map(|caller| targets(elf, caller));
    let (first, second) = (first?, second?);
    let both: Vec<u64> = first.intersection(&second).copied().collect();
    let starts = function_starts(elf)?;
    let functions = both.iter().filter_map(|target| {
        let at = starts.binary_search(target).ok()?;
        Some(*target..*starts.get(at + 1)?)
    });
    let mut functions: Vec<Range<u64>> = functions.collect();
    (functions.len() == 1).then(|| functions.remove(0))
}

/// The start addresses of functions, ascending. They come from `.eh_frame_hdr`, which is much faster to read than
/// `.eh_frame`.
fn function_starts(elf: &Elf) -> Option<Vec<u64>> {
    // Version 1, a 4-byte pointer, a 4-byte count, and pairs of 4-byte offsets relative to the index.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const PAIRS: usize = 12;
    let index = elf.eh_frame_hdr().filter(|s| s.size <= MAX_INDEX)?;
    let mut data = vec![0; usize::try_from(index.size).ok()?];
    elf.read_at(&mut data, index.offset).ok()?;
    if data.get(..4)? != FORM {
        return None;
    }
    let pairs = data.get(PAIRS..)?.chunks_exact(8);
    let start = |pair| {
        let distance = i64::from(u32_at(pair, 0).cast_signed());
        index.addr.wrapping_add_signed(distance)
    };
    let starts: Vec<u64> = pairs.take(u32_at(&data, 8) as usize).map(start).collect();
    starts.is_sorted().then_some(starts)
}

/// The targets of a function's calls and jumps outside the function. Every byte that looks like an opcode counts,
/// because a false match leads to a random address and does no harm.
fn targets(elf: &Elf, function: Extent) -> Option<BTreeSet<u64>> {
    const CALL: u8 = 0xe8;
    const JUMP: u8 = 0xe9;
    let (segment, inside) = elf.loaded_at(function.address)?;
    let size = usize::try_from(function.size.min(MAX_CALLER)).ok()?;
    let mut code = vec![0; size];
    elf.read_at(&mut code, segment.offset.checked_add(inside)?)
        .ok()?;
    let own = range(function);
    let instructions = code.windows(5).zip(function.address..);
    let targets = instructions.filter_map(|(bytes, at)| {
        let distance = i64::from(u32_at(bytes, 1).cast_signed());
        let target = at.wrapping_add(5).wrapping_add_signed(distance);
        (matches!(bytes[0], CALL | JUMP) && !own.contains(&target)).then_some(target)
    });
    Some(targets.collect())
}

/// The name of a method with its class, in the form of Ruby 3.4 and later: `block in Class#method`. Singleton methods
/// have a dot instead of `#`.
pub fn qualified(label: &str, class: &str, singleton: bool) -> String {
    const BLOCK: &str = " in ";
    let (before, name) = match label.find(BLOCK) {
        Some(at) if label.starts_with("block ") => label.split_at(at + BLOCK.len()),
        _ => ("", label),
    };
    // `<main>`, `<class:Class>`; not the method `<=>`
    if name.starts_with('<') && name[1..].starts_with(char::is_alphabetic) {
        return label.to_owned();
    }
    let between = if singleton { '.' } else { '#' };
    format!("{before}{class}{between}{name}")
}

/// Whether a source file at this path is part of the program: neither the standard library nor a gem.
pub(super) fn is_own(path: &str) -> bool {
    let library = ["/lib/ruby/", "/gems/"];
    !path.starts_with("<internal:") && !library.iter().any(|part| path.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_class() {
        let names = [
            ("run", false, "A::B#run"),
            ("run", true, "A::B.run"),
            ("block in run", false, "block in A::B#run"),
            (
                "block (2 levels) in run",
                false,
                "block (2 levels) in A::B#run",
            ),
            ("<=>", false, "A::B#<=>"),
            ("<class:B>", false, "<class:B>"),
            ("block in <main>", false, "block in <main>"),
        ];
        for (label, singleton, wanted) in names {
            assert_eq!(qualified(label, "A::B", singleton), wanted);
        }
    }

    #[test]
    fn gems_and_the_library_are_not_the_programs_own() {
        for path in [
            "<internal:kernel>",
            "/usr/lib/ruby/3.1.0/json/common.rb",
            "/var/lib/gems/3.1.0/gems/rack-3.0/lib/rack.rb",
        ] {
            assert!(!is_own(path), "{path}");
        }
        assert!(is_own("/srv/app.rb") && is_own("(eval at /srv/app.rb:3)"));
    }
}
