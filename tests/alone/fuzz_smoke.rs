//! Damaged files, made from the valid ones in tests/corpus, cause no panic, no hang and no excessive memory use.
//!
//! The damage is pseudo-random, the same in every run, and aims at headers and unwind information.
//! `scripts/fuzz.sh` fuzzes the same code, guided by coverage. `MEMPROF_TEST_SECS` and `MEMPROF_TEST_ROUNDS` ask for
//! more files, `MEMPROF_TEST_SEED` for other damage.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::common::random::Random;
use memprof::export::{self, ExportOptions};
use memprof::http::exporters::EXPORTERS;
use memprof_profile::Report;

/// The minimum number of damaged files, 50,000 in full. `scripts/fuzz.sh` tries far more.
const ROUNDS: u64 = 12_000;
/// Time limit for one file. A valid file of this size takes less than a millisecond.
const LONGEST: Duration = Duration::from_secs(3);
/// Limit of the peak memory use, in KiB.
const MAX_MEMORY: u64 = 512 << 10;

fn corpus() -> Vec<Vec<u8>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    let files: Vec<Vec<u8>> = files.iter().map(|f| fs::read(f).unwrap()).collect();
    assert!(files.len() >= 3);
    files
}

fn word(bytes: &[u8], at: usize, size: usize) -> usize {
    let word = bytes.get(at..at + size).unwrap_or_default();
    word.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))
}

/// Where to damage the file: in one of the headers, in unwind information, or anywhere.
fn place(r: &mut Random, bytes: &[u8]) -> usize {
    let (segments, sections) = (word(bytes, 32, 8), word(bytes, 40, 8));
    let at = match r.index(5) {
        0 => r.index(64),
        1 => segments.wrapping_add(r.index(56 * 6)),
        2 => sections.wrapping_add(r.index(64 * word(bytes, 60, 2))),
        3 => {
            // The contents of a section; many sections of these files are unwind information.
            let section = sections.wrapping_add(64 * r.index(word(bytes, 60, 2)));
            let (from, size) = (section.wrapping_add(24), section.wrapping_add(32));
            let (from, size) = (from.min(bytes.len()), size.min(bytes.len()));
            word(bytes, from, 8).wrapping_add(r.index(word(bytes, size, 8)))
        }
        _ => r.index(bytes.len()),
    };
    at % bytes.len()
}

fn damage(r: &mut Random, bytes: &mut Vec<u8>) {
    const VALUES: [u64; 12] = [
        0,
        1,
        0x7f,
        0x80,
        0xff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        1 << 47,
        u64::MAX >> 1,
        u64::MAX - 8,
        u64::MAX,
    ];
    let at = place(r, bytes);
    match r.index(8) {
        0 | 1 => bytes[at] ^= 1 << r.index(8),
        2 => bytes[at] = r.index(256) as u8,
        3 | 4 => {
            let value = r.choose(&VALUES).to_le_bytes();
            let size = r.choose(&[1, 2, 4, 8]);
            let end = (at + size).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        5 => {
            let from = r.index(bytes.len());
            let size = r.index(64).min(bytes.len() - at.max(from));
            bytes.copy_within(from..from + size, at);
        }
        6 => {
            let size = r.index(256).min(bytes.len() - at);
            let value = r.choose(&VALUES) as u8;
            bytes[at..at + size].fill(value);
        }
        _ if r.index(4) == 0 => bytes.truncate(at.max(1)),
        _ => bytes[at] = bytes[at].wrapping_add(1),
    }
}

/// Calls `each` with at least `rounds` damaged files, with more until `time` has passed, and with every file
/// truncated at many places.
fn damaged(rounds: u64, time: Duration, mut each: impl FnMut(&[u8])) {
    let files = corpus();
    let mut timed = |bytes: &[u8], what: &dyn Fn() -> String| {
        let began = Instant::now();
        each(bytes);
        assert!(
            began.elapsed() < LONGEST,
            "{}: {:?}",
            what(),
            began.elapsed()
        );
    };
    let seed = crate::common::effort::fixed_seed(0x2545_f491_4f6c_dd1d);
    let began = Instant::now();
    for round in (0..).take_while(|n| *n < rounds || began.elapsed() < time) {
        let mut r = Random(seed ^ (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes = files[r.index(files.len())].clone();
        for _ in 0..=r.index(6) {
            damage(&mut r, &mut bytes);
        }
        timed(&bytes, &|| format!("round {round}"));
    }
    for (n, file) in files.iter().enumerate() {
        for size in (0..file.len()).step_by(1 + file.len() * 16 / rounds as usize) {
            timed(&file[..size], &|| format!("file {n}, {size} bytes"));
        }
    }
}

fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn tables_of_damaged_files() {
    let _alone = crate::alone();
    for good in corpus() {
        assert!(crate::check::table(&good), "the corpus itself must work");
    }
    let (mut files, mut tables) = (0, 0);
    let (began, rounds) = (Instant::now(), crate::common::effort::rounds(ROUNDS));
    let time = crate::common::effort::duration(0);
    damaged(rounds, time, |bytes| {
        files += 1;
        tables += usize::from(crate::check::table(bytes));
    });
    println!(
        "{files} files in {:?}, {tables} of them still had a table; peak {} KiB",
        began.elapsed(),
        peak_memory()
    );
    assert!(
        tables > files / 10,
        "the damage is too heavy to reach anything"
    );
    assert!(peak_memory() < MAX_MEMORY);
}

#[test]
fn names_in_damaged_files() {
    let _alone = crate::alone();
    let symbolizer = crate::check::symbolizer();
    // Debug information is also read, which takes longer.
    let rounds = crate::common::effort::rounds(ROUNDS) / 8;
    for good in corpus() {
        crate::check::symbols(&symbolizer, &good, 61);
    }
    damaged(rounds, Duration::ZERO, |bytes| {
        crate::check::symbols(&symbolizer, bytes, 61)
    });
    println!("{rounds} files; peak {} KiB", peak_memory());
    assert!(peak_memory() < MAX_MEMORY);
}

#[test]
fn types_in_damaged_files() {
    let _alone = crate::alone();
    let rounds = crate::common::effort::rounds(ROUNDS) / 4;
    let good: usize = corpus().iter().map(|good| crate::check::types(good)).sum();
    assert!(good >= 20, "the corpus itself must have types: {good}");
    let mut named = 0;
    damaged(rounds, Duration::ZERO, |bytes| {
        named += crate::check::types(bytes)
    });
    println!("{rounds} files, {named} types; peak {} KiB", peak_memory());
    assert!(named > 0, "the damage is too heavy to reach anything");
    assert!(peak_memory() < MAX_MEMORY);
}

/// A perf map and a jitdump file, damaged.
#[test]
fn names_of_jit_code() {
    let _alone = crate::alone();
    let mut dump: Vec<u8> = [0x4a69_5444u32, 1, 40, 62, 0, 7, 1, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    for (kind, addr) in [
        (2u32, 0x1000u64),
        (0, 0x1000),
        (0, 0x2000),
        (1, 0x2000),
        (3, 0),
    ] {
        let words = [
            addr,
            if kind == 2 { 1 } else { addr },
            addr,
            64,
            1,
            0x6600_6666,
        ];
        dump.extend(
            [kind, 16 + 8 * words.len() as u32]
                .iter()
                .flat_map(|w| w.to_ne_bytes()),
        );
        dump.extend(7u64.to_ne_bytes());
        dump.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    let map = b"1000 40 JS:~f /a b.js:1:2\n1020 10 py::g:/c.py\n0x2000 0x8 L;::h\n".to_vec();
    let mut r = Random(crate::common::effort::fixed_seed(1));
    for round in 0..crate::common::effort::rounds(ROUNDS) / 2 {
        let mut bytes = if round % 2 == 0 {
            dump.clone()
        } else {
            map.clone()
        };
        for _ in 0..=r.index(6) {
            let at = r.index(bytes.len());
            match r.index(4) {
                0 => bytes[at] ^= 1 << r.index(8),
                1 => bytes[at] = r.choose(&[0, b' ', b'\n', 0x7f, 0xff]),
                2 => bytes.insert(at, r.index(256) as u8),
                _ => bytes.truncate(at.max(1)),
            }
        }
        crate::check::names(&bytes);
    }
}

/// Damages the text of a saved profile: numbers, names, brackets and pieces of it.
fn damage_text(r: &mut Random, bytes: &mut Vec<u8>) {
    const NUMBERS: [&str; 9] = [
        "0",
        "1",
        "-1",
        "4096",
        "65536",
        "4294967296",
        "9223372036854775808",
        "18446744073709551615",
        "1e308",
    ];
    let at = r.index(bytes.len());
    match r.index(6) {
        // The next number becomes another one.
        0..3 => {
            let digit = |b: &u8| b.is_ascii_digit();
            let Some(start) = bytes[at..].iter().position(digit) else {
                return;
            };
            let start = at + start;
            let end = bytes[start..].iter().position(|b| !digit(b)).unwrap_or(1);
            let number = r.choose(&NUMBERS).bytes();
            bytes.splice(start..start + end, number);
        }
        3 => bytes[at] = r.choose(b"[]{},:\"n\\\xff"),
        4 => {
            // A piece occurs twice.
            let size = r.index(200).min(bytes.len() - at);
            let piece = bytes[at..at + size].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let size = r.index(60).min(bytes.len() - at);
            bytes.drain(at..at + size);
        }
    }
}

/// Damaged saved profiles are refused, or can be shown in every format.
#[test]
fn damaged_saved_profiles() {
    let _alone = crate::alone();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus-saved");
    let seeds: Vec<Vec<u8>> = fs::read_dir(dir)
        .unwrap()
        .map(|e| fs::read(e.unwrap().path()).unwrap())
        .collect();
    let (mut opened, rounds) = (0, crate::common::effort::rounds(ROUNDS) / 20);
    for round in 0..rounds {
        let mut r = Random(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut bytes = seeds[r.index(seeds.len())].clone();
        for _ in 0..=r.index(2) {
            damage_text(&mut r, &mut bytes);
        }
        let began = Instant::now();
        if let Some(saved) = crate::check::saved(&bytes) {
            opened += 1;
            let report = Report::from(saved);
            // The page in a file takes as long as all others together.
            let others = EXPORTERS
                .iter()
                .filter(|e| e.name != "html" || round % 50 == 0);
            for format in others {
                let written =
                    export::write(format, &report, &ExportOptions::default(), &mut io::sink());
                written.unwrap_or_else(|e| panic!("round {round}, {}: {e}", format.name));
            }
        }
        assert!(
            began.elapsed() < LONGEST,
            "round {round}: {:?}",
            began.elapsed()
        );
    }
    println!("{rounds} files, {opened} of them could be opened");
    assert!(opened > rounds / 20, "{opened}: the damage is too heavy");
    assert!(peak_memory() < MAX_MEMORY);
}

/// Heaps with damage: in any word, several at once.
#[test]
fn damaged_heaps() {
    let _alone = crate::alone();
    let (mut read, rounds) = (0, crate::common::effort::rounds(ROUNDS) / 10);
    for round in 0..rounds {
        let mut r = Random(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (sizes, changes) = (r.index(60), r.index(8));
        let mut bytes = vec![sizes as u8];
        bytes.extend((0..sizes + changes * 12).map(|_| r.index(256) as u8));
        let began = Instant::now();
        read += u64::from(crate::check::heap(&bytes));
        assert!(
            began.elapsed() < LONGEST,
            "round {round}: {:?}",
            began.elapsed()
        );
    }
    println!(
        "{rounds} heaps, {read} of them could be read; peak {} KiB",
        peak_memory()
    );
    assert!(read > rounds / 20 && read < rounds, "{read}");
    assert!(peak_memory() < MAX_MEMORY);
}

/// Cores with damage: in their headers, their notes and their memory, and cut off.
#[test]
fn damaged_cores() {
    let _alone = crate::alone();
    let (mut read, rounds) = (0, crate::common::effort::rounds(ROUNDS) / 10);
    for round in 0..rounds {
        let mut r = Random(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (sizes, changes) = (r.index(60), r.index(6));
        let mut bytes = vec![sizes as u8];
        bytes.extend((0..sizes + changes * 8).map(|_| r.index(256) as u8));
        let began = Instant::now();
        read += u64::from(crate::check::core(&bytes));
        assert!(
            began.elapsed() < LONGEST,
            "round {round}: {:?}",
            began.elapsed()
        );
    }
    println!("{rounds} cores, {read} of them could be read");
    assert!(read > rounds / 20 && read < rounds, "{read}");
    assert!(peak_memory() < MAX_MEMORY);
}
