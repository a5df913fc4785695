//! The ELF files that a process has mapped: their memory ranges, their contents, and their symbols.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use object::elf::{SHT_DYNSYM, SHT_SYMTAB, STT_OBJECT, SectionType, SymbolInfo};

use super::memory::Memory;
use super::source::Source;
use memprof_code::elf::{Elf, ElfError, Section, u16_at, u64_at};
use memprof_code::symbolize::lookup;
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Vma, page_size};
use memprof_sys::target_file::{ReadAt, TargetFile};

/// Bytes of a file to read at once.
const BLOCK: u64 = 4096;
/// Maximum number of block reads.
const READS: u32 = 1 << 20;
/// Maximum size of a symbol table, in bytes.
const MAX_TABLE: u64 = 256 << 20;
/// Maximum number of matches of an address with a symbol, per file.
const MAX_MATCHES: usize = 4 << 20;
/// Maximum length of a symbol's name, in bytes.
pub(super) const MAX_NAME: usize = 4096;

/// A mapped program or library.
#[derive(Debug)]
struct Module {
    /// Base name of its path.
    name: String,
    /// Indexes of its mappings.
    vmas: Vec<usize>,
    /// The file, if it could be opened.
    file: Option<TargetFile>,
    /// Load bias: addresses in memory minus addresses in the file.
    bias: Option<u64>,
    /// End of its zeroed data (.bss), which the kernel may merge with other memory into one mapping; 0 if unknown.
    end: u64,
}

/// All mapped ELF files of a process.
#[derive(Debug)]
pub(super) struct Files<'a> {
    memory: &'a Memory,
    vmas: &'a [Vma],
    modules: Vec<Module>,
    /// Index of the module of each mapping.
    module_of: Vec<Option<u32>>,
    /// First address of all modules, and their end.
    bounds: (u64, u64),
    /// The block read last: module, block number, contents.
    block: RefCell<(u32, u64, Vec<u8>)>,
    reads_left: Cell<u32>,
    /// Index of the mapping that contained the previous address.
    last: Cell<usize>,
}

impl<'a> Files<'a> {
    /// Finds the files of a process, which may have exited.
    pub(super) fn new(source: Source<'_>, memory: &'a Memory, vmas: &'a [Vma]) -> Files<'a> {
        let mut files = Files {
            memory,
            vmas,
            modules: Vec::new(),
            module_of: vec![None; vmas.len()],
            bounds: (0, 0),
            block: RefCell::default(),
            reads_left: Cell::new(READS),
            last: Cell::new(0),
        };
        files.find();
        for module in &mut files.modules {
            let open = |vma: &usize| source.file_of(&vmas[*vma]);
            module.file = module.vmas.iter().find_map(open);
            let Some(elf) = module.file.as_ref().and_then(|f| Elf::read(f).ok()) else {
                continue;
            };
            module.bias = {
                let code = module.vmas.iter().map(|vma| &vmas[*vma]);
                let mut code = code.filter(|vma| vma.perms.exec);
                code.find_map(|vma| {
                    let address = elf.address_of_mapping(vma.file_offset, vma.len())?;
                    Some(vma.start.0.wrapping_sub(address))
                })
            };
            let end = module.bias.and_then(|bias| elf.end()?.checked_add(bias));
            let end = end.and_then(|end| end.checked_next_multiple_of(page_size()));
            module.end = end.unwrap_or(0);
        }
        files
    }

    /// Groups the mappings into modules: consecutive mappings of one file, at least one of them executable, and the
    /// zeroed data after them.
    fn find(&mut self) {
        let private = |vma: &Vma| vma.ino != 0 && !vma.perms.shared;
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, vma) in self.vmas.iter().enumerate() {
            let group = groups.last_mut().filter(|group| self.belongs(vma, group));
            match group {
                Some(group) => group.push(index),
                None if private(vma) => groups.push(vec![index]),
                None => {}
            }
        }
        groups.retain(|group| group.iter().any(|vma| self.vmas[*vma].perms.exec));
        for vmas in groups {
            let path = &self.vmas[vmas[0]].name;
            for vma in &vmas {
                self.module_of[*vma] = Some(self.modules.len() as u32);
            }
            let ends = (
                self.vmas[vmas[0]].start.0,
                vmas.last().map(|v| self.vmas[*v].end.0),
            );
            self.bounds.1 = ends.1.unwrap_or(0).max(self.bounds.1);
            if self.modules.is_empty() {
                self.bounds.0 = ends.0;
            }
            self.modules.push(Module {
                name: path.rsplit('/').next().unwrap_or(path).to_owned(),
                vmas,
                file: None,
                bias: None,
                end: 0,
            });
        }
    }

    /// Whether a mapping belongs to the file of a group.
    fn belongs(&self, vma: &Vma, group: &[usize]) -> bool {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return false;
        };
        let (first, last) = (&self.vmas[*first], &self.vmas[*last]);
        let adjacent = last.end == vma.start;
        if vma.perms.shared || last.ino == 0 {
            return false;
        }
        if vma.ino == 0 {
            return adjacent && vma.perms.write && vma.name.is_empty() && last.perms.write;
        }
        // A mapping that begins at a lower file offset is the same file mapped a second time.
        (vma.ino, vma.dev) == (first.ino, first.dev)
            && (vma.file_offset > last.file_offset
                || vma.file_offset == last.file_offset && adjacent)
    }

    /// The files that could be opened: each with its path and its load bias.
    pub(super) fn opened(&self) -> impl Iterator<Item = (&TargetFile, &str, u64)> {
        self.modules.iter().filter_map(|module| {
            let path = &self.vmas[*module.vmas.first()?].name;
            Some((module.file.as_ref()?, path.as_str(), module.bias?))
        })
    }

    /// The mapping that contains an address, and its module.
    fn place(&self, addr: u64) -> Option<(&Vma, u32)> {
        if addr < self.bounds.0 || addr >= self.bounds.1 {
            return None;
        }
        let contains = |vma: &&Vma| vma.contains(Addr(addr));
        let mut index = self.last.get();
        if self.vmas.get(index).filter(contains).is_none() {
            index = self.vmas.partition_point(|vma| vma.end.0 <= addr);
            self.vmas.get(index).filter(contains)?;
            self.last.set(index);
        }
        let vma = &self.vmas[index];
        let module = self.module_of[index]?;
        let is_file = vma.ino != 0 || addr < self.modules[module as usize].end;
        is_file.then_some((vma, module))
    }

    /// If this address belongs to a file: the end of the file's part of the mapping.
    pub(super) fn end_of(&self, addr: u64) -> Option<u64> {
        let (vma, module) = self.place(addr)?;
        let end = self.modules[module as usize].end;
        Some(if vma.ino == 0 {
            end.min(vma.end.0)
        } else {
            vma.end.0
        })
    }

    /// Whether an address belongs to one of the files.
    pub(super) fn contain(&self, addr: u64) -> bool {
        self.place(addr).is_some()
    }

    /// Whether an address is in code.
    pub(super) fn is_code(&self, addr: u64) -> bool {
        self.place(addr).is_some_and(|(vma, _)| vma.perms.exec)
    }

    /// The bytes at an address: from the memory copy, or from the file if the process did not change them.
    fn bytes<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let (vma, module) = self.place(addr)?;
        if let Some(bytes) = self.memory.from(addr) {
            return bytes.first_chunk().copied();
        }
        if vma.ino == 0 {
            return None;
        }
        let file = self.modules.get(module as usize)?.file.as_ref()?;
        let at = vma.file_offset.checked_add(addr - vma.start.0)?;
        let mut block = self.block.borrow_mut();
        if (block.0, block.1) != (module, at / BLOCK) || block.2.is_empty() {
            self.reads_left.set(self.reads_left.get().checked_sub(1)?);
            let mut bytes = vec![0; BLOCK as usize];
            let got = file.read_at(&mut bytes, at / BLOCK * BLOCK).unwrap_or(0);
            bytes.truncate(got);
            *block = (module, at / BLOCK, bytes);
        }
        block.2.get((at % BLOCK) as usize..)?.first_chunk().copied()
    }

    /// The 64-bit word at an address.
    pub(super) fn word(&self, addr: u64) -> Option<u64> {
        self.bytes(addr).map(u64::from_le_bytes)
    }

    /// The NUL-terminated text at an address; `None` if it is empty or longer than [`MAX_NAME`].
    pub(super) fn text(&self, addr: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for at in 0..MAX_NAME as u64 {
            match self.bytes::<1>(addr.checked_add(at)?)? {
                [0] => return (!text.is_empty()).then_some(text),
                [byte] => text.push(byte),
            }
        }
        None
    }

    /// Formats an address relative to its file: `libfoo.so+0x1234`. `None` if it belongs to no file.
    pub(super) fn in_file(&self, addr: u64) -> Option<String> {
        let (vma, module) = self.place(addr)?;
        let module = &self.modules[module as usize];
        let first = &self.vmas[module.vmas[0]];
        let bias = module.bias.unwrap_or(first.start.0);
        debug_assert!(vma.start >= first.start);
        Some(format!("{}+{:#x}", module.name, addr.wrapping_sub(bias)))
    }

    /// Names of the functions that begin at these addresses, from the symbol tables.
    pub(super) fn functions(&self, addrs: impl Iterator<Item = u64>) -> HashMap<u64, Vec<u8>> {
        let mut found = HashMap::new();
        for (elf, bias, addrs) in self.by_file(addrs) {
            for (kind, sparse) in [(SHT_SYMTAB, false), (SHT_DYNSYM, true)] {
                if table(&elf, kind).is_none() {
                    continue;
                }
                let symbols = lookup(&elf, kind, sparse, &addrs).unwrap_or_default();
                for (addr, symbol) in addrs.iter().zip(symbols) {
                    if let Some(symbol) = symbol.filter(|symbol| symbol.start == *addr) {
                        let addr = addr.wrapping_add(bias);
                        found.entry(addr).or_insert_with(|| symbol.name.to_vec());
                    }
                }
            }
        }
        found
    }

    /// The variables that contain these addresses: start and symbol name for each address.
    pub(super) fn variables(
        &self,
        addrs: impl Iterator<Item = u64>,
    ) -> HashMap<u64, (u64, Vec<u8>)> {
        let mut found: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for (elf, bias, addrs) in self.by_file(addrs) {
            let tables = [SHT_SYMTAB, SHT_DYNSYM].map(|kind| table(&elf, kind));
            let mut left = MAX_MATCHES;
            for table in tables.into_iter().flatten() {
                // An error in a damaged table does not discard the names read before it.
                let _ = elf.for_each_symbol(table, |symbol| {
                    let (start, size) = (u64_at(symbol, 8), u64_at(symbol, 16));
                    let defined = u16_at(symbol, 6) != 0;
                    if !defined || SymbolInfo(symbol[4]).st_type() != STT_OBJECT {
                        return Ok(());
                    }
                    let end = start.saturating_add(size);
                    let first = addrs.partition_point(|addr| *addr < start);
                    let inside = addrs[first..].iter().take_while(|addr| **addr < end);
                    let mut name = None;
                    for addr in inside {
                        let next = left.checked_sub(1);
                        left = next.ok_or_else(|| ElfError::Bad("too many symbols".into()))?;
                        let at = addr.wrapping_add(bias);
                        let start = start.wrapping_add(bias);
                        // The innermost variable wins; of several with the same start, the first.
                        if found.get(&at).is_some_and(|(known, _)| *known >= start) {
                            continue;
                        }
                        let read = || elf.symbol_name(table, symbol, MAX_NAME);
                        let Some(name) = name.get_or_insert_with(read) else {
                            break;
                        };
                        found.insert(at, (start, name.clone()));
                    }
                    Ok(())
                });
            }
        }
        found
    }

    /// The addresses grouped by file and converted to file addresses, sorted and without duplicates.
    fn by_file(
        &self,
        addrs: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = (Elf<'_>, u64, Vec<u64>)> {
        let mut by_module: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for addr in addrs {
            if let Some((_, module)) = self.place(addr) {
                by_module.entry(module).or_default().push(addr);
            }
        }
        by_module.into_iter().filter_map(|(module, mut addrs)| {
            let module = &self.modules[module as usize];
            let (elf, bias) = (Elf::read(module.file.as_ref()?).ok()?, module.bias?);
            addrs
                .iter_mut()
                .for_each(|addr| *addr = addr.wrapping_sub(bias));
            addrs.sort_unstable();
            addrs.dedup();
            Some((elf, bias, addrs))
        })
    }
}

/// The symbol table of this kind, unless it is larger than [`MAX_TABLE`].
fn table<'e>(elf: &'e Elf, kind: SectionType) -> Option<&'e Section> {
    elf.section_of_kind(kind)
        .filter(|table| table.size <= MAX_TABLE)
}
