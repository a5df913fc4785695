//! Searches a symbol table, in one pass for many addresses.
//!
//! There is no index: a pass over the 160,000 symbols of a 150 MB library takes milliseconds, and nothing stays in
//! memory between two passes.

use std::rc::Rc;

use object::elf::{
    SHT_STRTAB, STB_LOCAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, SectionType, SymbolBind,
    SymbolInfo,
};

use crate::elf::{Elf, ElfError, Section, u16_at, u32_at, u64_at};

/// Maximum length of a name, in bytes; mangled names of C++ templates are long, but no longer.
const MAX_NAME: usize = 64 << 10;
/// Maximum number of aliases at one address to compare.
const MAX_ALIASES: usize = 16;

/// The symbol that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSymbol {
    /// First address of the symbol.
    pub start: u64,
    /// Name as in the file.
    pub name: Rc<[u8]>,
}

#[derive(Debug, Clone, Copy)]
struct Sym {
    name: u32,
    binding: SymbolBind,
    start: u64,
    /// First address after the symbol; for a symbol without a size, the end of its section.
    end: u64,
    sized: bool,
}

/// Looks up each of `addrs` (ascending, without duplicates) in the symbol table of one kind.
///
/// A symbol with a size must contain the address. A symbol without a size, common in assembler code, extends to the
/// next symbol or the end of its section. In a sparse table (`.dynsym`) it covers only its own address, because the
/// code after it usually belongs to functions that the table does not list.
///
/// # Errors
/// The table is damaged.
pub fn lookup(
    elf: &Elf,
    kind: SectionType,
    sparse: bool,
    addrs: &[u64],
) -> Result<Vec<Option<FoundSymbol>>, ElfError> {
    let Some(table) = elf.section_of_kind(kind) else {
        return Ok(vec![None; addrs.len()]);
    };
    let strings = elf
        .section(table.link as usize)
        .filter(|s| s.kind == SHT_STRTAB);
    let strings = strings.ok_or_else(|| ElfError::Bad("a symbol table without names".into()))?;
    let mut hits = Hits::new(addrs, sparse);
    for_each_function(elf, table, |sym| hits.add(sym))?;
    Names {
        elf,
        strings,
        last: None,
    }
    .choose_all(hits)
}

fn for_each_function(
    elf: &Elf,
    table: &Section,
    mut f: impl FnMut(Sym) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    elf.for_each_symbol(table, |raw| function(elf, raw).map_or(Ok(()), &mut f))
}

/// Decodes a symbol; `None` if it does not name code of this file.
fn function(elf: &Elf, raw: &[u8]) -> Option<Sym> {
    let info = SymbolInfo(raw[4]);
    let (kind, binding) = (info.st_type(), info.st_bind());
    let (start, size) = (u64_at(raw, 8), u64_at(raw, 16));
    if !matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC) {
        return None;
    }
    let label = kind == STT_NOTYPE && binding == STB_LOCAL && size == 0;
    if label && elf.has_mapping_symbols() {
        return None;
    }
    let index = usize::from(u16_at(raw, 6));
    let end_of_code = elf.end_of_code(index, start)?;
    let end = if size > 0 {
        start.checked_add(size)?
    } else {
        end_of_code
    };
    Some(Sym {
        name: u32_at(raw, 0),
        binding,
        start,
        end,
        sized: size > 0,
    })
}

/// The candidate symbols for each address, collected during the pass.
struct Hits<'a> {
    addrs: &'a [u64],
    sparse: bool,
    /// Symbols with a size that contain an address.
    sized: Vec<Sym>,
    /// For each address: the nearest symbol start at or before it and after the previous address, and
    /// the symbols without a size at that start.
    nearest: Vec<(Option<u64>, Vec<Sym>)>,
}

impl<'a> Hits<'a> {
    fn new(addrs: &'a [u64], sparse: bool) -> Hits<'a> {
        Hits {
            addrs,
            sparse,
            sized: Vec::new(),
            nearest: vec![(None, Vec::new()); addrs.len()],
        }
    }

    fn add(&mut self, sym: Sym) -> Result<(), ElfError> {
        let first = self.addrs.partition_point(|a| *a < sym.start);
        let Some(addr) = self.addrs.get(first) else {
            return Ok(());
        };
        if sym.sized && *addr < sym.end {
            self.sized.push(sym);
            // Real tables have a few symbols around an address; malicious ones may have millions.
            if self.sized.len() > 1024 + 64 * self.addrs.len() {
                return Err(ElfError::Bad("too many overlapping symbols".into()));
            }
        }
        let (start, labels) = &mut self.nearest[first];
        if start.is_none_or(|s| s < sym.start) {
            *start = Some(sym.start);
            labels.clear();
        }
        if !sym.sized && *start == Some(sym.start) && labels.len() < MAX_ALIASES {
            labels.push(sym);
        }
        Ok(())
    }

    /// For each address, the symbols that cover it and have the nearest start.
    fn covering(mut self) -> Vec<Vec<Sym>> {
        self.sized.sort_by_key(|s| s.start);
        let mut coming = self.sized.iter().peekable();
        // Symbols that start at or before the address. A symbol that has ended covers no later address, so it is popped
        // once it is on top.
        let mut open: Vec<&Sym> = Vec::new();
        let mut labels: &[Sym] = &[];
        let mut all = Vec::with_capacity(self.addrs.len());
        for (addr, (start, here)) in self.addrs.iter().zip(&self.nearest) {
            while let Some(s) = coming.next_if(|s| s.start <= *addr) {
                open.push(s);
            }
            while open.pop_if(|s| s.end <= *addr).is_some() {}
            if start.is_some() {
                labels = here;
            }
            all.push(match open.last() {
                Some(top) => aliases(&open, top.start, *addr),
                None => label_at(labels, *addr, self.sparse),
            });
        }
        all
    }
}

fn aliases(open: &[&Sym], start: u64, addr: u64) -> Vec<Sym> {
    let same = open
        .iter()
        .rev()
        .take_while(|s| s.start == start)
        .filter(|s| addr < s.end);
    same.take(MAX_ALIASES).map(|s| **s).collect()
}

fn label_at(labels: &[Sym], addr: u64, sparse: bool) -> Vec<Sym> {
    let covers = |s: &&Sym| addr < s.end && (!sparse || s.start == addr);
    labels.iter().filter(covers).copied().collect()
}

/// Rank of a name among aliases; the lowest wins: leading underscores, binding, length, and the name
/// itself, which makes the choice deterministic.
type Rank = (usize, u8, usize, Vec<u8>);

struct Names<'e> {
    elf: &'e Elf<'e>,
    strings: &'e Section,
    last: Option<(Vec<u32>, FoundSymbol)>,
}

impl Names<'_> {
    fn choose_all(mut self, hits: Hits) -> Result<Vec<Option<FoundSymbol>>, ElfError> {
        hits.covering()
            .iter()
            .map(|syms| self.choose(syms))
            .collect()
    }

    /// Chooses the alias that callers of the function use: `write`, not `__libc_write`.
    fn choose(&mut self, syms: &[Sym]) -> Result<Option<FoundSymbol>, ElfError> {
        let key: Vec<u32> = syms.iter().map(|s| s.name).collect();
        if let Some((k, found)) = &self.last
            && *k == key
            && syms.first().is_some_and(|s| s.start == found.start)
        {
            return Ok(Some(found.clone()));
        }
        let mut best: Option<(Rank, u64)> = None;
        for sym in syms {
            let name = self.read(sym.name)?;
            let rank = (
                underscores(&name),
                binding_rank(sym.binding),
                name.len(),
                name,
            );
            if rank.2 > 0 && best.as_ref().is_none_or(|(r, _)| rank < *r) {
                best = Some((rank, sym.start));
            }
        }
        let found = best.map(|((.., name), start)| FoundSymbol {
            start,
            name: name.into(),
        });
        self.last = found.clone().map(|f| (key, f));
        Ok(found)
    }

    fn read(&self, name: u32) -> Result<Vec<u8>, ElfError> {
        let at = self.strings.offset.saturating_add(u64::from(name));
        let end = self.strings.offset.saturating_add(self.strings.size);
        let room = usize::try_from(end.saturating_sub(at))
            .unwrap_or(usize::MAX)
            .min(MAX_NAME);
        let mut size = room.min(256);
        loop {
            let mut buf = vec![0; size];
            let got = self.elf.read_some(&mut buf, at)?;
            if let Some(len) = buf[..got].iter().position(|b| *b == 0) {
                buf.truncate(len);
                return Ok(buf);
            }
            if got < size || size == room {
                buf.truncate(got);
                return Ok(buf);
            }
            size = (size * 8).min(room);
        }
    }
}

/// The number of leading underscores, which mark internal names. The underscore of a mangled name does not count.
fn underscores(name: &[u8]) -> usize {
    if name.starts_with(b"_Z") || name.starts_with(b"_R") {
        return 0;
    }
    name.iter().take_while(|b| **b == b'_').count()
}

fn binding_rank(binding: SymbolBind) -> u8 {
    match binding {
        STB_LOCAL => 2,
        STB_WEAK => 1,
        _ => 0,
    }
}
