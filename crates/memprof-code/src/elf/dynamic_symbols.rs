//! The dynamic symbols of a file without section headers, found as the dynamic loader finds them: by the dynamic section.

use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DynamicTag, SHT_DYNSYM, SHT_NULL,
    SHT_STRTAB, SectionFlags, SectionType,
};

use super::symbols::{MAX_TABLE, SYM_SIZE};
use super::{Elf, Section, u32_at};

/// Maximum number of buckets of a hash table that are read.
const MAX_BUCKETS: u32 = 1 << 22;
/// Bytes of a hash table's chains that are read at once.
const PART: usize = 4096;

impl Elf<'_> {
    /// Sections in the form that a linker writes them: none, the symbols, their names.
    pub(super) fn dynamic_symbols(&self) -> Option<Vec<Section>> {
        let dynamic = self.dynamic();
        let value = |wanted: DynamicTag| {
            let found = dynamic.iter().find(|(tag, _)| *tag == wanted);
            found.map(|(_, value)| *value)
        };
        let count = match (value(DT_HASH), value(DT_GNU_HASH)) {
            (Some(table), _) => self.u32_in_memory(table.checked_add(4)?)?,
            (None, table) => self.count_hashed(table?)?,
        };
        let symbols = u64::from(count).checked_mul(SYM_SIZE as u64)?;
        let symbols = self.as_section(SHT_DYNSYM, value(DT_SYMTAB)?, symbols)?;
        let names = self.as_section(SHT_STRTAB, value(DT_STRTAB)?, value(DT_STRSZ)?)?;
        let none = Section {
            kind: SHT_NULL,
            size: 0,
            ..names
        };
        let fits = symbols.size <= MAX_TABLE;
        fits.then(|| vec![none, symbols, names])
    }

    fn as_section(&self, kind: SectionType, addr: u64, size: u64) -> Option<Section> {
        let (segment, inside) = self.loaded_at(addr)?;
        Some(Section {
            name: 0,
            kind,
            flags: SectionFlags(0),
            addr,
            offset: segment.offset.checked_add(inside)?,
            size: size.min(segment.size - inside),
            link: 2,
            align: 8,
        })
    }

    fn read_in_memory(&self, buf: &mut [u8], addr: u64) -> Option<()> {
        let (segment, inside) = self.loaded_at(addr)?;
        self.read_at(buf, segment.offset.checked_add(inside)?).ok()
    }

    fn u32_in_memory(&self, addr: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.read_in_memory(&mut word, addr)?;
        Some(u32_at(&word, 0))
    }

    /// The number of symbols according to a hash table of GNU's form: the chain with the last symbol ends with it.
    fn count_hashed(&self, table: u64) -> Option<u32> {
        let mut head = [0; 16];
        self.read_in_memory(&mut head, table)?;
        let [buckets, first, bloom] = [0, 4, 8].map(|at| u32_at(&head, at));
        if buckets > MAX_BUCKETS {
            return None;
        }
        let at = table.checked_add(16 + 8 * u64::from(bloom))?;
        let mut starts = vec![0; 4 * buckets as usize];
        self.read_in_memory(&mut starts, at)?;
        let last = starts.chunks_exact(4).map(|word| u32_at(word, 0)).max()?;
        if last < first {
            return Some(first); // None is exported.
        }
        let chains = at.checked_add(starts.len() as u64)?;
        self.end_of_chain(chains, last - first)?.checked_add(first)
    }

    /// The index behind the entry that ends the chain with this index.
    fn end_of_chain(&self, chains: u64, mut index: u32) -> Option<u32> {
        let most = (MAX_TABLE / SYM_SIZE as u64) as u32;
        while index < most {
            let at = chains.checked_add(4 * u64::from(index))?;
            let (segment, inside) = self.loaded_at(at)?;
            let mut part = [0; PART];
            let room = PART.min((segment.size - inside) as usize);
            let got = self.read_some(&mut part[..room], segment.offset.checked_add(inside)?);
            let words = part[..got.ok()?].chunks_exact(4);
            let count = words.len() as u32;
            if let Some(end) = words.map(|w| u32_at(w, 0)).position(|word| word & 1 != 0) {
                return index.checked_add(end as u32 + 1);
            }
            index = index.checked_add(count).filter(|_| count > 0)?;
        }
        None
    }
}
