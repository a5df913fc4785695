use std::fs::File;
use std::io::Write;

use super::*;

const TEXT: u64 = 0x40_1000;
const FUNCTIONS: [(u64, &str); 3] = [
    (0, "main.first"),
    (0x40, "main.(*T).Second"),
    (0x60, "go:last"),
];
const END: u64 = 0x100;

/// A table as the Go linker of one version lays it out.
fn table(magic: u32, text_start: u64) -> Vec<u8> {
    let offsets = magic == 0xffff_fff0 || magic == 0xffff_fff1;
    let size = if offsets { 4 } else { 8 };
    let number = |value: u64| value.to_le_bytes()[..size].to_vec();
    let address = |at: u64| number(if offsets { at } else { TEXT + at });
    let (mut names, mut places) = (Vec::new(), Vec::new());
    for (_, name) in FUNCTIONS {
        places.push(names.len() as u64);
        names.extend(name.bytes().chain([0]));
    }
    let header = match magic {
        0xffff_fffb => 16,
        0xffff_fffa => 64,
        _ => 72,
    };
    let old = magic == 0xffff_fffb;
    let list = (2 * FUNCTIONS.len() + 1) * size;
    // The old one: list, descriptions, names. The others: names, list, descriptions.
    let (functions, names_at) = match old {
        true => (16, 16 + list + FUNCTIONS.len() * (size + 4)),
        false => (header + names.len(), header),
    };
    let mut out = magic.to_le_bytes().to_vec();
    out.extend([0, 0, 1, 8]);
    out.extend((FUNCTIONS.len() as u64).to_le_bytes());
    if !old {
        let mut words = vec![1];
        words.extend(offsets.then_some(text_start));
        words.extend([names_at as u64, 0, 0, 0, functions as u64]);
        words
            .iter()
            .for_each(|word: &u64| out.extend(word.to_le_bytes()));
        out.extend(&names);
    }
    assert_eq!(out.len(), functions);
    let base = if old { functions + list } else { list };
    for (i, (at, _)) in FUNCTIONS.iter().enumerate() {
        out.extend(address(*at));
        out.extend(number((base + i * (size + 4)) as u64));
    }
    out.extend(address(END));
    for ((at, _), place) in FUNCTIONS.iter().zip(places) {
        out.extend(address(*at));
        let place = if old { names_at as u64 + place } else { place };
        out.extend((place as u32).to_le_bytes());
    }
    if old {
        out.extend(&names);
    }
    out
}

/// A file with these sections: name, address, contents.
fn file(sections: &[(&str, u64, &[u8])]) -> File {
    let mut names = vec![0];
    let mut places = vec![(0, 0, 0)];
    let mut bytes = vec![0; 64];
    for (name, addr, contents) in sections {
        places.push((names.len(), *addr, contents.len()));
        names.extend(name.bytes().chain([0]));
    }
    let own = names.len();
    names.extend(b".shstrtab\0");
    places.push((own, 0, names.len()));
    let mut headers = Vec::new();
    let contents = sections
        .iter()
        .map(|(_, _, contents)| *contents)
        .chain([&names[..]]);
    for ((name, addr, size), contents) in places.iter().zip([&[][..]].into_iter().chain(contents)) {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&(*name as u32).to_le_bytes());
        header[4] = u8::from(*size > 0);
        header[16..24].copy_from_slice(&addr.to_le_bytes());
        header[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(*size as u64).to_le_bytes());
        headers.extend(header);
        bytes.extend(contents);
    }
    let count = places.len() as u16;
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    bytes[16] = 2;
    let at = (bytes.len() as u64).to_le_bytes();
    bytes[40..48].copy_from_slice(&at);
    bytes[58..60].copy_from_slice(&64u16.to_le_bytes());
    bytes[60..62].copy_from_slice(&count.to_le_bytes());
    bytes[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    bytes.extend(headers);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    file
}

/// Reads all depths, as far as they can be.
fn read_depths(table: &GoFunctions) {
    for index in 0..table.count().min(8) {
        if let (Ok(Some(function)), Ok(start)) = (table.describe(index), table.start(index)) {
            let _ = table.depths(function, start, |_, _| true);
        }
    }
}

fn names(file: &File, addrs: &[u64]) -> Result<Vec<Option<(u64, String)>>, ElfError> {
    let elf = Elf::read(file).unwrap();
    let Some(table) = GoFunctions::read(&elf)? else {
        return Ok(vec![None; addrs.len()]);
    };
    read_depths(&table);
    let named = |addr: &u64| {
        let Some((index, start)) = table.function(*addr)? else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(&table.name(index)?).into_owned();
        Ok(Some((start.wrapping_sub(TEXT), name)))
    };
    addrs.iter().map(named).collect()
}

#[test]
fn each_version_is_read() {
    let asked = [0, 0x3f, 0x40, 0x5f, 0x60, END - 1, END].map(|at| TEXT + at);
    let wanted = [0, 0, 1, 1, 2, 2].map(|i| {
        let (at, name) = FUNCTIONS[i];
        Some((at, name.to_owned()))
    });
    let wanted: Vec<_> = wanted.into_iter().chain([None]).collect();
    for magic in MAGICS {
        // The section's name in position-independent programs; a header whose address the loader would fill in.
        for (name, said) in [(SECTIONS[0], TEXT), (SECTIONS[1], TEXT), (SECTIONS[0], 0)] {
            let table = table(magic, said);
            let file = file(&[(".text", TEXT, &[0x90; 8]), (name, 0x50_0000, &table)]);
            assert_eq!(names(&file, &asked).unwrap(), wanted, "{magic:#x}");
            assert_eq!(names(&file, &[TEXT - 1, u64::MAX]).unwrap(), [None, None]);
        }
    }
}

#[test]
fn a_table_is_found_among_other_data() {
    let table = table(MAGICS[2], TEXT);
    for before in [0, 32, BLOCK as usize - 32] {
        let data = [vec![0xff; before], table.clone()].concat();
        let text = (".text", TEXT, &[0x90; 8][..]);
        let relocated = (MERGED, 0x50_0000, &data[..]);
        let go = file(&[text, relocated, (BUILD_INFO, 0x60_0000, &[0; 16])]);
        let found = names(&go, &[TEXT + 0x40]).unwrap();
        assert_eq!(found, [Some((0x40, FUNCTIONS[1].1.to_owned()))]);
        let other = file(&[text, relocated]);
        assert!(
            GoFunctions::read(&Elf::read(&other).unwrap())
                .unwrap()
                .is_none()
        );
    }
}

/// Depths are changes, in groups of seven bits whose lowest bit is the sign, each before the size of its code.
#[test]
fn depths_of_a_function() {
    for (magic, flags_at) in [(MAGICS[2], 37), (MAGICS[3], 41)] {
        let mut table = table(magic, TEXT);
        // The first function's description: the position of its depths, and that it sets the stack pointer.
        let list = u64_at(&table, 64) as usize;
        let description = list + u32_at(&table, list + 4) as usize;
        let values = table.len() + 64;
        table.resize(values, 0);
        table[56..64].copy_from_slice(&(values as u64 - 8).to_le_bytes());
        table[description + 16..][..4].copy_from_slice(&8u32.to_le_bytes());
        table[description + flags_at] = 2;
        // From -1 to 0, to 200 (0x190 with the sign), to 0.
        table.extend([2, 4, 0x90, 3, 0x30, 0x8f, 3, 1, 0]);
        let file = file(&[
            (".text", TEXT, &[0x90; 8]),
            (SECTIONS[0], 0x50_0000, &table),
        ]);
        let elf = Elf::read(&file).unwrap();
        let functions = GoFunctions::read(&elf).unwrap().unwrap();
        let function = functions.describe(0).unwrap().unwrap();
        assert!(function.sets_sp && !function.outermost && !function.assembler);
        let mut found = Vec::new();
        let each = |range: std::ops::Range<u64>, depth| {
            found.push((range.start - TEXT, depth));
            true
        };
        functions.depths(function, TEXT, each).unwrap();
        assert_eq!(found, [(0, 0), (4, 200), (0x34, 0)]);
    }
}

#[test]
fn a_damaged_table_is_an_error_or_gives_other_names() {
    let asked: Vec<u64> = (TEXT - 1..TEXT + END + 1).collect();
    for magic in MAGICS {
        let good = table(magic, TEXT);
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let file = file(&[(SECTIONS[0], 0, &bad)]);
                let _ = names(&file, &asked);
            }
            let file = file(&[(SECTIONS[0], 0, &good[..at.max(1)])]);
            let _ = names(&file, &asked);
        }
    }
    let claims = [0xff; 8];
    let mut many = table(MAGICS[3], TEXT);
    many[8..16].copy_from_slice(&claims);
    let many = file(&[(SECTIONS[0], 0, &many)]);
    names(&many, &asked).expect_err("too many functions");
}
