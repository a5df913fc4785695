//! Call frame information of a file, as printed by `readelf`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::{Command, Stdio};

/// A column: where the caller's value of a register is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterRule {
    /// Printed as `u`: undefined or unspecified.
    Unsaid,
    /// `s`
    Same,
    /// `c-16`
    AtCfa(i64),
    /// `exp`
    Expression,
    /// `vexp`, `v-16` or another register
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cfa {
    Sum(String, i64),
    Expression,
}

/// One row, which applies from this address on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadelfRow {
    pub pc: u64,
    pub cfa: Cfa,
    pub rsp: RegisterRule,
    pub rbp: RegisterRule,
    pub rbx: RegisterRule,
    pub ra: RegisterRule,
}

#[derive(Clone, Debug)]
pub struct Fde {
    pub start: u64,
    pub end: u64,
    pub signal: bool,
    pub rows: Vec<ReadelfRow>,
    /// Section and offset, the key of its expressions.
    pub id: (u8, u64),
}

/// The expressions of an FDE in order: the address from which each applies, whether it is for the CFA (or for `rbp` or
/// the return address), and its text.
pub type Expressions = HashMap<(u8, u64), Vec<(u64, Column, String)>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Cfa,
    Rbp,
    Ra,
}

/// The address of the first instruction that the header names.
pub fn entry(path: &Path) -> u64 {
    let text = run(path, &["-hW"]).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|l| l.trim().strip_prefix("Entry point address:"));
    line.map_or(0, |l| hex(l.trim()))
}

/// A section, as a range of addresses.
pub struct Section {
    pub name: String,
    pub start: u64,
    pub end: u64,
    /// What is in it is run.
    pub code: bool,
}

/// The sections that are loaded.
pub fn sections(path: &Path) -> Vec<Section> {
    let text = run(path, &["-SW"]).unwrap_or_default();
    let sections = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(']')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [name, _, addr, _, size, _, flags, ..] = words.as_slice() else {
            return None;
        };
        let start = hex(addr);
        flags.contains('A').then(|| Section {
            name: (*name).to_owned(),
            start,
            end: start + hex(size),
            code: flags.contains('X'),
        })
    });
    sections.collect()
}

/// The loaded, executable ranges of the file; `None` where it is not an x86-64 ELF file.
pub fn code(path: &Path) -> Option<Vec<(u64, u64)>> {
    let text = run(path, &["-hlW"])?;
    if !text.contains("X86-64") || !(text.contains("DYN (") || text.contains("EXEC (")) {
        return None;
    }
    let loads = text.lines().filter(|l| l.trim_start().starts_with("LOAD"));
    let ranges = loads.filter_map(|l| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let flags = words[6..words.len() - 1].join("");
        let (addr, size) = (hex(words[2]), hex(words[4]));
        flags.contains('E').then_some((addr, addr + size))
    });
    Some(ranges.collect())
}

/// The FDEs of `.eh_frame` and `.debug_frame` (number 0 and 1), in the order of the file.
///
/// Files have millions of rows, most of which differ only in their address: each distinct row is parsed once.
pub fn frames(path: &Path) -> Option<Vec<Fde>> {
    let text = run(path, &["--debug-dump=frames-interp", "-W"])?;
    let mut section = 0;
    let mut cies: BTreeMap<u64, (bool, Option<ReadelfRow>)> = BTreeMap::new();
    let mut fdes: Vec<Fde> = Vec::new();
    // The known rows by text, for each column header.
    let mut tables: HashMap<&str, HashMap<&str, ReadelfRow>> = HashMap::new();
    let mut columns = "";
    let mut cie = None;
    for line in text.lines() {
        let row_of = line.split_at_checked(16).and_then(|(pc, rest)| {
            let pc = u64::from_str_radix(pc, 16).ok()?;
            Some((pc, rest.strip_prefix(' ')?))
        });
        if let Some((pc, rest)) = row_of {
            let rows = tables.get_mut(columns)?;
            let known = rows.entry(rest).or_insert_with(|| row(columns, rest));
            let row = ReadelfRow {
                pc,
                ..known.clone()
            };
            match cie {
                Some(cie) => cies.get_mut(&cie)?.1 = Some(row),
                None => fdes.last_mut()?.rows.push(row),
            }
        } else if line.starts_with("Contents of the") {
            section = u8::from(line.contains(".debug_frame"));
            cies.clear();
        } else if line.trim_start().starts_with("LOC ") {
            columns = line;
            tables.entry(columns).or_default();
            if let (None, Some(fde)) = (cie, fdes.last_mut()) {
                fde.rows.clear();
            }
        } else {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [offset, _, _, "CIE", augmentation, ..] => {
                    cie = Some(hex(offset));
                    cies.insert(hex(offset), (augmentation.contains('S'), None));
                }
                [offset, _, _, "FDE", of, pc, ..] => {
                    cie = None;
                    let of = hex(of.strip_prefix("cie=")?);
                    let (start, end) = pc.strip_prefix("pc=")?.split_once("..")?;
                    let (signal, row) = cies.get(&of)?.clone();
                    let start = hex(start);
                    fdes.push(Fde {
                        start,
                        end: hex(end),
                        signal,
                        rows: row
                            .map(|r| ReadelfRow { pc: start, ..r })
                            .into_iter()
                            .collect(),
                        id: (section, hex(offset)),
                    });
                }
                _ => {}
            }
        }
    }
    Some(fdes)
}

/// A row at address 0, from its column header and the text after its address.
fn row(columns: &str, rest: &str) -> ReadelfRow {
    // A register is printed twice: `r8 (r8)`.
    let words_of = |text| str::split_whitespace(text).filter(|w| !w.starts_with('('));
    let names: Vec<&str> = words_of(columns).skip(1).collect();
    let words: Vec<&str> = words_of(rest).collect();
    assert_eq!(names.len(), words.len(), "{columns}\n{rest}");
    let column = |name: &str| {
        let at = names.iter().position(|c| *c == name);
        at.map_or(RegisterRule::Unsaid, |i| place(words[i]))
    };
    let cfa = match words[0].find(['+', '-']) {
        Some(at) => Cfa::Sum(words[0][..at].into(), words[0][at..].parse().unwrap()),
        None => Cfa::Expression,
    };
    ReadelfRow {
        pc: 0,
        cfa,
        rsp: column("rsp"),
        rbp: column("rbp"),
        rbx: column("rbx"),
        ra: column("ra"),
    }
}

fn place(word: &str) -> RegisterRule {
    match word {
        "u" => RegisterRule::Unsaid,
        "s" => RegisterRule::Same,
        "exp" => RegisterRule::Expression,
        _ => match word.strip_prefix('c').and_then(|n| n.parse().ok()) {
            Some(offset) => RegisterRule::AtCfa(offset),
            None => RegisterRule::Other,
        },
    }
}

/// The texts of the expressions in the file.
pub fn expressions(path: &Path) -> Option<Expressions> {
    let text = run(path, &["--debug-dump=frames", "-W"])?;
    let mut section = 0;
    // Lines that give the function and the start address of the next expression.
    let (mut function, mut from) = ("", None);
    let mut all = Expressions::new();
    for line in text.lines() {
        if line.starts_with("  DW_CFA_advance_loc") || line.starts_with("  DW_CFA_set_loc") {
            from = Some(line);
        } else if line.starts_with("Contents of the") {
            section = u8::from(line.contains(".debug_frame"));
        } else if !line.starts_with(' ') && line.contains(" FDE ") {
            (function, from) = (line, None);
        } else if let Some((before, rest)) = line.split_once(" (DW_OP") {
            let column = match before.split_whitespace().collect::<Vec<&str>>().as_slice() {
                ["DW_CFA_def_cfa_expression", ..] => Column::Cfa,
                ["DW_CFA_expression:", "r6", ..] => Column::Rbp,
                ["DW_CFA_expression:", "r16", ..] => Column::Ra,
                _ => continue,
            };
            let words: Vec<&str> = function.split_whitespace().collect();
            let [offset, _, _, "FDE", _, range, ..] = words.as_slice() else {
                continue;
            };
            let pc = match from {
                Some(line) => line.split_whitespace().last()?,
                None => range.strip_prefix("pc=")?.split_once("..")?.0,
            };
            let text = format!("DW_OP{}", rest.trim_end().trim_end_matches(')'));
            let key = (section, hex(offset));
            all.entry(key).or_default().push((hex(pc), column, text));
        }
    }
    Some(all)
}

fn hex(word: &str) -> u64 {
    let digits = word.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap_or(0)
}

fn run(path: &Path, options: &[&str]) -> Option<String> {
    let mut command = Command::new("readelf");
    command.args(options).arg(path).stderr(Stdio::null());
    let out = command.output().expect("readelf (binutils) is installed");
    String::from_utf8(out.stdout).ok()
}
