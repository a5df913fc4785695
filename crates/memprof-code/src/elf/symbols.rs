//! Symbol tables: their entries, and symbols by their names.

use object::LittleEndian;
#[cfg(target_arch = "x86_64")]
use object::elf::SHT_DYNSYM;

use object::elf::{SectionType, Sym64};

use super::{Elf, ElfError, Section, bad, u16_at, u32_at, u64_at};

pub(super) const SYM_SIZE: usize = size_of::<Sym64<LittleEndian>>();
const SYMS_PER_READ: usize = 4096;
/// Maximum size of a symbol table, in bytes: eleven million symbols. Those of the largest programs have two million.
pub(super) const MAX_TABLE: u64 = 256 << 20;
/// Bytes of a table of names that are searched at once.
const STRINGS_PER_READ: usize = 1 << 20;
/// Maximum size of a table of names that is searched, in bytes.
const MAX_STRINGS: u64 = 256 << 20;

/// Where a symbol's code or data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Address in the file's own addresses.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Elf<'_> {
    /// Calls `f` with each entry of a symbol table, as it is in the file.
    ///
    /// # Errors
    /// The table is damaged, or that of `f`.
    pub fn for_each_symbol(
        &self,
        table: &Section,
        mut f: impl FnMut(&[u8]) -> Result<(), ElfError>,
    ) -> Result<(), ElfError> {
        self.must_contain(table)?;
        if table.size > MAX_TABLE {
            let (size, most) = (table.size >> 20, MAX_TABLE >> 20);
            return Err(bad(format!(
                "its symbol table claims {size} MiB, more than the {most} MiB that are read"
            )));
        }
        let mut buf = vec![0; SYM_SIZE * SYMS_PER_READ];
        let mut left = usize::try_from(table.size).unwrap_or(usize::MAX) / SYM_SIZE;
        let mut at = table.offset;
        while left > 0 {
            let part = &mut buf[..left.min(SYMS_PER_READ) * SYM_SIZE];
            self.read_at(part, at)?;
            part.chunks_exact(SYM_SIZE).try_for_each(&mut f)?;
            left -= part.len() / SYM_SIZE;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// The name of a symbol in its table, of which at most `most` bytes are read.
    pub fn symbol_name(&self, table: &Section, symbol: &[u8], most: usize) -> Option<Vec<u8>> {
        let strings = self.section(table.link as usize)?;
        let at = u64::from(u32_at(symbol, 0));
        let room = strings.size.checked_sub(at)?.min(most as u64);
        let mut name = vec![0; room as usize];
        let got = self
            .read_some(&mut name, strings.offset.checked_add(at)?)
            .ok()?;
        let end = name[..got].iter().position(|b| *b == 0)?;
        name.truncate(end);
        Some(name)
    }

    /// Calls `f` with each definition of a dynamic symbol that has one of these names: a name may have several versions.
    ///
    /// # Errors
    /// The symbol table is damaged.
    #[cfg(target_arch = "x86_64")]
    pub fn for_each_defined<'n>(
        &self,
        names: &[&'n str],
        mut f: impl FnMut(&'n str, Extent),
    ) -> Result<(), ElfError> {
        let Some(table) = self.section_of_kind(SHT_DYNSYM) else {
            return Ok(());
        };
        let strings = self.section(table.link as usize);
        let Some(strings) = strings.filter(|s| s.size <= MAX_STRINGS) else {
            return Ok(());
        };
        let strings = self.contents(strings)?;
        let names: std::collections::HashMap<&[u8], &'n str> =
            names.iter().map(|n| (n.as_bytes(), *n)).collect();
        self.for_each_symbol(table, |symbol| {
            let name = strings
                .get(u32_at(symbol, 0) as usize..)
                .unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
            // (An undefined symbol has no section.)
            if let Some(name) = names.get(&name[..end])
                && u16_at(symbol, 6) != 0
            {
                f(
                    name,
                    Extent {
                        address: u64_at(symbol, 8),
                        size: u64_at(symbol, 16),
                    },
                );
            }
            Ok(())
        })
    }

    /// Where the names are in a table of names.
    fn positions<const N: usize>(
        &self,
        strings: &Section,
        names: [&str; N],
    ) -> Result<[Option<u64>; N], ElfError> {
        let names = names.map(|name| format!("\0{name}\0"));
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        let mut found = [None; N];
        let mut part = Vec::new();
        let (mut at, mut left) = (strings.offset, strings.size);
        while left > 0 {
            // A name may begin in one part and end in the next.
            let kept = part.len().min(longest);
            part.drain(..part.len() - kept);
            part.resize(kept + left.min(STRINGS_PER_READ as u64) as usize, 0);
            self.read_at(&mut part[kept..], at)?;
            let begin = at - strings.offset;
            for (found, name) in found.iter_mut().zip(&names) {
                let place = || memchr::memmem::find(&part, name.as_bytes());
                *found = found.or_else(|| Some(begin + place()? as u64 + 1 - kept as u64));
            }
            let read = (part.len() - kept) as u64;
            (at, left) = (at + read, left - read);
        }
        Ok(found)
    }

    /// What the symbols with these names stand for; `None` for those that the file does not define. Cheap if it has none
    /// of the names.
    ///
    /// # Errors
    /// The symbol table is damaged.
    pub fn extents<const N: usize>(
        &self,
        kind: SectionType,
        names: [&str; N],
    ) -> Result<[Option<Extent>; N], ElfError> {
        let mut found = [None; N];
        let Some(table) = self.section_of_kind(kind) else {
            return Ok(found);
        };
        let strings = self.section(table.link as usize);
        let Some(strings) = strings.filter(|s| s.size <= MAX_STRINGS) else {
            return Ok(found);
        };
        let wanted = self.positions(strings, names)?;
        if wanted.iter().all(Option::is_none) {
            return Ok(found);
        }
        self.for_each_symbol(table, |symbol| {
            let name = Some(u64::from(u32_at(symbol, 0)));
            // (An undefined symbol has no section.)
            if let Some(i) = wanted.iter().position(|w| *w == name)
                && u16_at(symbol, 6) != 0
            {
                found[i] = Some(Extent {
                    address: u64_at(symbol, 8),
                    size: u64_at(symbol, 16),
                });
            }
            Ok(())
        })?;
        Ok(found)
    }
}
