//! Go's own table of functions (`.gopclntab`), which its run time needs, so that `-ldflags="-s -w"` and `strip` keep it.
//!
//! Four layouts, each named by the magic number at its beginning: that of Go 1.2, 1.16, 1.18 and 1.20. To look up a few
//! addresses, nothing is kept in memory: each is a binary search in the file.

use super::{Elf, ElfError, Section, bad, u32_at, u64_at};

/// Position-independent programs have the table among the data that the loader relocates.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Where a linker for C puts that section, up to Go 1.25, without a name of its own.
const MERGED: &str = ".data.rel.ro";
/// A section that every Go program has.
const BUILD_INFO: &str = ".go.buildinfo";
/// The begin of a table is at a multiple of this.
const ALIGN: usize = 32;
/// Bytes read at a time to find it.
const BLOCK: u64 = 64 << 10;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64 << 10;
/// Maximum number of functions: more than any program has.
const MAX_FUNCTIONS: u64 = 1 << 26;
/// Maximum size of a table that is read as a whole, in bytes.
const MAX_TABLE: u64 = 256 << 20;
const WORD: u64 = 8;
/// The first word of a table: of Go 1.2, 1.16, 1.18 and 1.20.
const MAGICS: [u32; 4] = [0xffff_fffb, 0xffff_fffa, 0xffff_fff0, 0xffff_fff1];
/// Where the linker puts what a program knows of itself, from Go 1.26 on, and where the first address of its code is
/// in there.
const MODULE: &str = ".go.module";
const MODULE_TEXT: u64 = 22 * WORD;

/// Go's table of functions. Positions are relative to its beginning.
#[derive(Debug)]
pub(crate) struct GoFunctions<'e> {
    elf: &'e Elf<'e>,
    section: Section,
    /// Number of functions.
    count: u64,
    /// The list of functions: of each its first address and where its description is. After the last one stands the
    /// end of its code.
    functions: u64,
    /// Where positions of descriptions count from.
    descriptions: u64,
    /// Where positions of names count from.
    names: u64,
    /// Size of a number in the list, in bytes: 8, or 4 from Go 1.18 on.
    size: u64,
    /// Is added to each address in the list.
    text: u64,
    /// Where positions of tables by address count from, and where a description has its function's flags; `None`
    /// before Go 1.18.
    values: Option<(u64, usize)>,
    /// The whole table, once it was loaded.
    loaded: Vec<u8>,
}

/// How Go's run time unwinds a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoFunction {
    /// Position of its stack depths, see [`GoFunctions::depths`].
    depths: u64,
    /// It is the outermost function of a stack.
    pub outermost: bool,
    /// It sets the stack pointer to any value.
    pub sets_sp: bool,
    /// It is assembler code.
    pub assembler: bool,
}

impl<'e> GoFunctions<'e> {
    /// The table of a file; `None` if it is not Go's.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn read(elf: &'e Elf<'e>) -> Result<Option<GoFunctions<'e>>, ElfError> {
        let section = SECTIONS.iter().find_map(|name| elf.section_named(name));
        let Some(section) = section.copied().or_else(|| merged(elf)) else {
            return Ok(None);
        };
        let mut head = [0; 72];
        elf.read_at(&mut head, section.offset)?;
        let size_of_word = head[7];
        if u64::from(size_of_word) != WORD || head[4..6] != [0, 0] {
            return Err(bad("Go's function table has an unknown header"));
        }
        let word = |n: usize| u64_at(&head, 8 + 8 * n);
        let count = word(0);
        // (Before Go 1.16, all positions count from the table's beginning.)
        let (functions, descriptions, names, size, text) = match u32_at(&head, 0) {
            0xffff_fffb => (16, 0, 0, WORD, 0),
            0xffff_fffa => (word(6), word(6), word(2), WORD, 0),
            0xffff_fff0 | 0xffff_fff1 => (word(7), word(7), word(3), 4, text_start(elf, word(2))),
            _ => return Err(bad("Go's function table is of an unknown version")),
        };
        if count > MAX_FUNCTIONS {
            return Err(bad("Go's function table claims too many functions"));
        }
        Ok(Some(GoFunctions {
            elf,
            section,
            count,
            functions,
            descriptions,
            names,
            size,
            text,
            values: match u32_at(&head, 0) {
                0xffff_fff0 => Some((word(6), 37)),
                0xffff_fff1 => Some((word(6), 41)),
                _ => None,
            },
            loaded: Vec::new(),
        }))
    }

    /// Reads the whole table, for a caller who wants all of it.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub fn load(&mut self) -> Result<(), ElfError> {
        if self.section.size > MAX_TABLE {
            return Err(bad("Go's function table is too large"));
        }
        self.loaded = self.elf.contents(&self.section)?;
        Ok(())
    }

    /// Number of functions.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How a function is unwound; `None` before Go 1.18.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn describe(&self, index: u64) -> Result<Option<GoFunction>, ElfError> {
        let Some((values, flags_at)) = self.values else {
            return Ok(None);
        };
        let at = self.number(2 * index + 1)?.checked_add(self.descriptions);
        let mut description = [0; 44];
        self.bytes(&mut description, at.ok_or_else(outside)?)?;
        let flags = description[flags_at];
        let depths = values.checked_add(u64::from(u32_at(&description, 16)));
        Ok(Some(GoFunction {
            depths: depths.ok_or_else(outside)?,
            outermost: flags & 1 != 0,
            sets_sp: flags & 2 != 0,
            assembler: flags & 4 != 0,
        }))
    }

    /// Calls `each` with the ranges of a function's code, in order, and how many bytes it has on the stack there,
    /// besides its return address, until it returns `false`.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn depths(
        &self,
        function: GoFunction,
        start: u64,
        mut each: impl FnMut(std::ops::Range<u64>, i32) -> bool,
    ) -> Result<(), ElfError> {
        let (mut at, mut pc, mut depth) = (function.depths, start, -1i32);
        loop {
            let change = self.varint(&mut at)?;
            if change == 0 && pc != start {
                return Ok(());
            }
            // The lowest bit is the sign.
            depth = depth.wrapping_add((change >> 1) as i32 ^ -((change & 1) as i32));
            let end = pc.checked_add(u64::from(self.varint(&mut at)?));
            let end = end.filter(|end| *end > pc).ok_or_else(outside)?;
            if !each(pc..end, depth) {
                return Ok(());
            }
            pc = end;
        }
    }

    /// A number in groups of seven bits, of which the lowest come first.
    fn varint(&self, at: &mut u64) -> Result<u32, ElfError> {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let mut byte = [0];
            self.bytes(&mut byte, *at)?;
            *at += 1;
            value |= u32::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(outside())
    }

    /// Reads bytes at a position in the table.
    fn bytes(&self, buf: &mut [u8], at: u64) -> Result<(), ElfError> {
        let end = at.checked_add(buf.len() as u64);
        let end = end.filter(|end| *end <= self.section.size);
        let end = end.ok_or_else(outside)?;
        if let Some(loaded) = self.loaded.get(at as usize..end as usize) {
            buf.copy_from_slice(loaded);
            return Ok(());
        }
        self.elf
            .read_at(buf, self.section.offset.saturating_add(at))
    }

    /// A number of the list of functions.
    fn number(&self, index: u64) -> Result<u64, ElfError> {
        let mut raw = [0; 8];
        let size = self.size as usize;
        let at = index
            .checked_mul(self.size)
            .and_then(|at| at.checked_add(self.functions));
        let at = at.ok_or_else(outside)?;
        self.bytes(&mut raw[..size], at)?;
        Ok(u64::from_le_bytes(raw))
    }

    /// The first address of a function; that of the one after the last is the end of all.
    pub fn start(&self, index: u64) -> Result<u64, ElfError> {
        Ok(self.number(2 * index)?.wrapping_add(self.text))
    }

    /// The index and the first address of the function that contains an address.
    pub fn function(&self, addr: u64) -> Result<Option<(u64, u64)>, ElfError> {
        // The number of functions that begin at or before the address, the end counted as one.
        let (mut low, mut high) = (0, self.count + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? <= addr {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        match low {
            0 => Ok(None),
            n if n > self.count => Ok(None),
            n => Ok(Some((n - 1, self.start(n - 1)?))),
        }
    }

    pub fn name(&self, index: u64) -> Result<Vec<u8>, ElfError> {
        // The name follows the function's first address, which is as large as in the list.
        let at = self.number(2 * index + 1)?.checked_add(self.descriptions);
        let at = at
            .and_then(|at| at.checked_add(self.size))
            .ok_or_else(outside)?;
        let mut offset = [0; 4];
        self.bytes(&mut offset, at)?;
        let at = self
            .names
            .checked_add(u64::from(u32::from_le_bytes(offset)));
        let at = at.ok_or_else(outside)?;
        let room = self.section.size.checked_sub(at).ok_or_else(outside)?;
        let room = usize::try_from(room).unwrap_or(MAX_NAME).min(MAX_NAME);
        let mut size = room.min(128);
        loop {
            let mut name = vec![0; size];
            self.bytes(&mut name, at)?;
            if let Some(end) = name.iter().position(|b| *b == 0) {
                name.truncate(end);
                return Ok(name);
            }
            if size == room {
                return Ok(name);
            }
            size = (size * 8).min(room);
        }
    }
}

/// The table in a section that has other data too.
fn merged(elf: &Elf) -> Option<Section> {
    elf.section_named(BUILD_INFO)?;
    let section = *elf.section_named(MERGED)?;
    let mut block = vec![0; BLOCK as usize];
    for from in (0..section.size.min(MAX_TABLE)).step_by(BLOCK as usize) {
        let block = &mut block[..(section.size - from).min(BLOCK) as usize];
        elf.read_at(block, section.offset.checked_add(from)?).ok()?;
        if let Some(at) = block.chunks_exact(ALIGN).position(is_begin) {
            let before = from + (at * ALIGN) as u64;
            return Some(Section {
                addr: section.addr + before,
                offset: section.offset + before,
                size: section.size - before,
                ..section
            });
        }
    }
    None
}

fn is_begin(head: &[u8]) -> bool {
    let count = u64_at(head, 8);
    MAGICS.contains(&u32_at(head, 0))
        && head[4..8] == [0, 0, 1, 8]
        && count > 0
        && count <= MAX_FUNCTIONS
}

/// Where the addresses of the list count from. The header says it until Go 1.25, unless the loader has to fill it in.
/// Code of C may precede that of Go in the section.
fn text_start(elf: &Elf, said: u64) -> u64 {
    if said != 0 {
        return said;
    }
    module_text(elf)
        .or_else(|| Some(elf.section_named(".text")?.addr))
        .unwrap_or(0)
}

fn module_text(elf: &Elf) -> Option<u64> {
    let at = elf.section_named(MODULE)?.offset.checked_add(MODULE_TEXT)?;
    let mut word = [0; WORD as usize];
    elf.read_at(&mut word, at).ok()?;
    let text = u64::from_le_bytes(word);
    let inside = |s: &super::Segment| text.checked_sub(s.addr).is_some_and(|at| at < s.size);
    elf.code_segments().any(inside).then_some(text)
}

fn outside() -> ElfError {
    bad("Go's function table points outside itself")
}

#[cfg(test)]
mod tests;
