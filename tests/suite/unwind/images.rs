//! The code of a process as a walk sees it: mappings, and the tables of their files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use crate::unwind::synthetic::file_of;
use memprof_code::elf::Elf;
use memprof_code::unwind::Table;
use memprof_code::unwind::walk::Mapped;

/// Tables that were made before, by file.
pub type Tables = HashMap<String, Option<Rc<Table>>>;

/// A mapping of code, and the table of its file with the offset to add to the table's addresses.
pub struct Code {
    pub mapping: Mapping,
    table: Option<(Rc<Table>, u64)>,
}

pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub code: bool,
    pub offset: u64,
    pub path: String,
}

/// The mappings of a process: a number, or `self`.
pub fn mappings(process: &str) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        Mapping {
            start: u64::from_str_radix(start, 16).unwrap(),
            end: u64::from_str_radix(end, 16).unwrap(),
            code: words[1].contains('x'),
            offset: u64::from_str_radix(words[2], 16).unwrap(),
            path: words.get(5).map_or_else(String::new, |p| (*p).to_owned()),
        }
    };
    maps.lines().map(parse).collect()
}

pub fn image(process: &str, mapping: &Mapping) -> Option<File> {
    if mapping.path == "[vdso]" {
        let mut image = vec![0; (mapping.end - mapping.start) as usize];
        let memory = File::open(format!("/proc/{process}/mem")).unwrap();
        memory.read_exact_at(&mut image, mapping.start).unwrap();
        return Some(file_of(&image));
    }
    File::open(&mapping.path).ok()
}

/// The code of a process.
pub fn modules(process: &str, tables: &mut Tables) -> Vec<Code> {
    let mut table = |m: &Mapping| {
        let file = image(process, m)?;
        let elf = Elf::read(&file).ok()?;
        let address = elf.address_of_mapping(m.offset, m.end - m.start)?;
        let known = tables.entry(m.path.clone());
        let table = known.or_insert_with(|| Table::build(&file).ok().map(Rc::new));
        Some((table.clone()?, m.start.wrapping_sub(address)))
    };
    let code = mappings(process).into_iter().filter(|m| m.code);
    code.map(|mapping| Code {
        table: table(&mapping),
        mapping,
    })
    .collect()
}

/// The code at an address.
pub fn code_at(modules: &[Code], pc: u64) -> Option<&Code> {
    let holds = |c: &&Code| (c.mapping.start..c.mapping.end).contains(&pc);
    modules.iter().find(holds)
}

/// The same for a walk.
pub fn mapped(modules: &[Code], pc: u64) -> Mapped<'_> {
    match code_at(modules, pc).map(|code| &code.table) {
        Some(Some((table, bias))) => Mapped::Table(table, *bias),
        Some(None) => Mapped::NoTable,
        None => Mapped::Nothing,
    }
}
