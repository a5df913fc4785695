//! Every table row of every file, compared with `readelf`.

use crate::common::effort;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::unwind::readelf::{self, Cfa, Column, Expressions, Fde, ReadelfRow, RegisterRule};
use memprof_code::elf::Elf;
use memprof_code::unwind::{BX_KEPT, BX_SAVED, CfaKind, FpKind, Rule, Table, TableError};

/// After this time no further file is compared, unless `MEMPROF_TEST_FULL=1` is set: a machine with compilers and graphical libraries
/// has 1,240 files.
const TIME: Duration = Duration::from_secs(30);

/// The comparison of one file: numbers, and the rows that differ.
#[derive(Default)]
struct Compared {
    files: usize,
    no_table: usize,
    rows: usize,
    unsupported: usize,
    lost_fp: usize,
    found_by_code: usize,
    /// From Go's own table, which `readelf` does not read (`go.rs` checks those).
    by_go: usize,
    overlapping: usize,
    wrong: Vec<String>,
}

#[test]
fn every_row_is_what_readelf_says() {
    let files = system_files();
    let all = effort::is_full();
    let (next, compared, began) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !all && began.elapsed() > TIME {
                        return;
                    }
                    let one = compare(path);
                    compared.lock().unwrap().push(one);
                }
            });
        }
    });
    let compared = compared.into_inner().unwrap();
    let sum = |of: fn(&Compared) -> usize| compared.iter().map(of).sum::<usize>();
    let wrong: Vec<&String> = compared.iter().flat_map(|c| &c.wrong).collect();
    let rows = sum(|c| c.rows);
    println!(
        "{} of {} files ({} % by number) in {:?}: {} rows, {} differ; {} rows without a rule, {} \
         with the frame pointer lost, {} overlapping functions, {} rows found by their code, {} by Go's own table; {} files have no table",
        compared.len(),
        files.len(),
        compared.len() * 100 / files.len(),
        began.elapsed(),
        rows,
        wrong.len(),
        sum(|c| c.unsupported),
        sum(|c| c.lost_fp),
        sum(|c| c.overlapping),
        sum(|c| c.found_by_code),
        sum(|c| c.by_go),
        sum(|c| c.no_table),
    );
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(40)]);
    assert!(
        sum(|c| c.files) > 10 && rows > 10_000,
        "too little was compared"
    );
}

/// ELF files of the system, each once, in an order that mixes large and small.
fn system_files() -> Vec<PathBuf> {
    let dirs = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/bin",
        "/lib64",
    ];
    let mut files = BTreeSet::new();
    for entry in dirs.iter().flat_map(fs::read_dir).flatten().flatten() {
        let Ok(path) = fs::canonicalize(entry.path()) else {
            continue;
        };
        let mut magic = [0; 4];
        let read =
            File::open(&path).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut magic));
        if path.is_file() && read.is_ok() && magic == *b"\x7fELF" {
            files.insert(path);
        }
    }
    let mut files: Vec<PathBuf> = files.into_iter().collect();
    let hash = |p: &PathBuf| {
        let bytes = p.as_os_str().as_encoded_bytes();
        bytes
            .iter()
            .fold(0u32, |h, b| h.wrapping_mul(16_777_619) ^ u32::from(*b))
    };
    files.sort_by_key(hash);
    files
}

/// The expected rule from an address on, according to `readelf`.
enum Expected<'a> {
    NotCovered,
    Row(&'a Fde, &'a ReadelfRow),
}

fn compare(path: &Path) -> Compared {
    let mut this = Compared::default();
    let file = File::open(path).unwrap();
    let (Some(code), Some(fdes)) = (readelf::code(path), readelf::frames(path)) else {
        this.no_table = 1;
        return this;
    };
    let table = match Table::build(&file) {
        Ok(table) => table,
        Err(TableError::NoUnwindInformation) if fdes.is_empty() => {
            this.no_table = 1;
            return this;
        }
        Err(e) => {
            this.wrong.push(format!("{}: {e}", path.display()));
            return this;
        }
    };
    this.files = 1;
    let is_go = has_gopclntab(&file);
    let has_expressions = fdes.iter().flat_map(|f| &f.rows).any(|r| {
        r.cfa == Cfa::Expression
            || r.rbp == RegisterRule::Expression
            || r.ra == RegisterRule::Expression
    });
    let expressions = match has_expressions {
        true => readelf::expressions(path).unwrap(),
        false => Expressions::new(),
    };
    let expected = expected(&fdes, &mut this.overlapping);
    let mut points: BTreeSet<u64> = expected.iter().map(|(pc, _)| *pc).collect();
    points.extend(table.rows.iter().map(|r| r.pc));
    points.extend(code.iter().map(|c| c.0));
    for pc in points {
        if !code.iter().any(|(start, end)| (*start..*end).contains(&pc)) {
            if *table.rule_at(pc) != Rule::NOT_COVERED {
                this.wrong
                    .push(format!("{}: {pc:x} is no code", path.display()));
            }
            continue;
        }
        let after = expected.partition_point(|(at, _)| *at <= pc);
        let want = after
            .checked_sub(1)
            .map_or(&Expected::NotCovered, |i| &expected[i].1);
        let rule = table.rule_at(pc);
        this.rows += 1;
        if matches!(want, Expected::NotCovered) && *rule != Rule::NOT_COVERED {
            if is_go {
                this.by_go += 1;
                continue;
            }
            this.found_by_code += 1;
            // (Those of functions are compared with compilers' in code.rs.)
            if !of_function(rule) && !recognised(path, &file, pc, rule) {
                let what = format!("{}: {pc:x}: {rule:?} is not covered", path.display());
                this.wrong.push(what);
            }
            continue;
        }
        this.unsupported += usize::from(*rule == Rule::UNSUPPORTED);
        this.lost_fp += usize::from(rule.fp_kind() == FpKind::Lost);
        if !agrees(want, rule, &expressions) {
            let want = match want {
                Expected::NotCovered => "not covered".into(),
                Expected::Row(fde, row) => format!("{row:?} of {:x?}", fde.id),
            };
            this.wrong.push(format!(
                "{}: {pc:x}: {rule:?} is not {want}",
                path.display()
            ));
        }
    }
    this
}

fn has_gopclntab(file: &File) -> bool {
    let elf = Elf::read(file).unwrap();
    let names = [".gopclntab", ".data.rel.ro.gopclntab"];
    names.iter().any(|name| elf.section_named(name).is_some())
}

/// Whether a rule of uncovered code may be one of a function.
fn of_function(rule: &Rule) -> bool {
    matches!(rule.cfa_kind(), CfaKind::Sp | CfaKind::Fp | CfaKind::Stop) && rule.flags == 0
}

/// Whether a rule of uncovered code belongs to a program's first instruction, a signal trampoline or a
/// PLT.
fn recognised(path: &Path, file: &File, pc: u64, rule: &Rule) -> bool {
    let elf = Elf::read(file).unwrap();
    if *rule == Rule::STOP {
        return readelf::entry(path) == pc;
    }
    let (segment, inside) = elf.loaded_at(pc).unwrap();
    let mut code = [0; 10];
    elf.read_at(&mut code, segment.offset + inside).unwrap();
    if matches!(rule.cfa_kind(), CfaKind::Plt | CfaKind::Sp) {
        // Compilers also generate functions that consist only of such a jump.
        let jump = code.starts_with(b"\xff\x25") && (rule.cfa_offset, rule.ra_offset) == (8, -8);
        // Linkers contain these instructions as data, which may be next to their code.
        let sections = readelf::sections(path);
        let here = sections.iter().find(|s| (s.start..s.end).contains(&pc));
        return jump || here.is_some_and(|s| s.name.starts_with(".plt") || !s.code);
    }
    let trampoline = b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05";
    rule.cfa_kind() == CfaKind::Signal
        && (rule.cfa_offset, rule.fp_offset, rule.ra_offset) == (160, 120, 168)
        && (code[1..] == trampoline[..] || code[..9] == trampoline[..])
}

/// The rows in order. Where functions overlap, the one with the greatest start wins, up to its end.
fn expected<'a>(fdes: &'a [Fde], overlapping: &mut usize) -> Vec<(u64, Expected<'a>)> {
    let mut all: Vec<&Fde> = Vec::new();
    for section in [0, 1] {
        let mut own: Vec<&Fde> = fdes
            .iter()
            .filter(|f| f.id.0 == section && f.start != 0 && f.start < f.end)
            .collect();
        own.sort_by_key(|f| f.start);
        let before = own.len();
        own.dedup_by_key(|f| f.start);
        *overlapping += before - own.len();
        // No file has both sections for the same address.
        own.retain(|f| section == 0 || !all.iter().any(|a| a.start < f.end && f.start < a.end));
        all.extend(own);
    }
    all.sort_by_key(|f| f.start);
    let mut expected = Vec::new();
    for (i, fde) in all.iter().enumerate() {
        let next = all.get(i + 1).map_or(u64::MAX, |f| f.start);
        *overlapping += usize::from(next < fde.end);
        let end = fde.end.min(next);
        let rows = fde.rows.iter().filter(|r| r.pc < end);
        for row in rows {
            // The last row of an address applies.
            if expected
                .last()
                .is_some_and(|(pc, _): &(u64, _)| *pc == row.pc)
            {
                expected.pop();
            }
            expected.push((row.pc, Expected::Row(fde, row)));
        }
        if end < next {
            expected.push((end, Expected::NotCovered));
        }
    }
    expected
}

fn agrees(want: &Expected, rule: &Rule, expressions: &Expressions) -> bool {
    let Expected::Row(fde, row) = want else {
        return *rule == Rule::NOT_COVERED;
    };
    let holds = |column: Column, text: &str| {
        let known = expressions.get(&fde.id).into_iter().flatten();
        known
            .clone()
            .any(|(pc, c, t)| *pc <= row.pc && *c == column && t == text)
    };
    if fde.signal {
        let breg = |n| format!("DW_OP_breg7 (rsp): {n}");
        return rule.cfa_kind() == CfaKind::Signal
            && holds(
                Column::Cfa,
                &format!("{}; DW_OP_deref", breg(rule.cfa_offset)),
            )
            && holds(Column::Rbp, &breg(rule.fp_offset))
            && holds(Column::Ra, &breg(rule.ra_offset));
    }
    match row.ra {
        RegisterRule::Unsaid => return *rule == Rule::STOP,
        RegisterRule::AtCfa(offset) if *rule != Rule::UNSUPPORTED => {
            if row.rsp != RegisterRule::Unsaid {
                return false;
            }
            let (ra, bx) = match rule.flags & 0xff {
                0 => (rule.ra_offset, None),
                BX_KEPT => (rule.ra_offset, Some(RegisterRule::Unsaid)),
                BX_SAVED => (-8, Some(RegisterRule::AtCfa(i64::from(rule.ra_offset)))),
                _ => return false,
            };
            if i64::from(ra) != offset || bx.is_some_and(|bx| bx != row.rbx) {
                return false;
            }
        }
        RegisterRule::AtCfa(_) if row.rsp != RegisterRule::Unsaid => {
            return *rule == Rule::UNSUPPORTED;
        }
        RegisterRule::AtCfa(_) => {}
        _ => return *rule == Rule::UNSUPPORTED,
    }
    cfa_agrees(
        row,
        rule,
        holds,
        expressions.get(&fde.id).map_or(&[], Vec::as_slice),
    ) && (*rule == Rule::UNSUPPORTED || fp_agrees(row, rule, holds))
}

fn cfa_agrees(
    row: &ReadelfRow,
    rule: &Rule,
    holds: impl Fn(Column, &str) -> bool,
    all: &[(u64, Column, String)],
) -> bool {
    let n = i64::from(rule.cfa_offset);
    let kind = rule.cfa_kind();
    let register = match kind {
        CfaKind::Fp | CfaKind::DerefFp => "breg6 (rbp)",
        _ => "breg7 (rsp)",
    };
    match (&row.cfa, kind) {
        (Cfa::Sum(r, offset), CfaKind::Sp) => r == "rsp" && *offset == n,
        (Cfa::Sum(r, offset), CfaKind::Fp) => r == "rbp" && *offset == n,
        (Cfa::Sum(r, offset), CfaKind::Bx) => r == "rbx" && *offset == n,
        (Cfa::Sum(r, _), CfaKind::Unsupported) => r != "rsp" && r != "rbp" && r != "rbx",
        (Cfa::Expression, CfaKind::Plt) => holds(
            Column::Cfa,
            &format!(
                "DW_OP_breg7 (rsp): 8; DW_OP_breg16 (rip): 0; DW_OP_lit15; DW_OP_and; \
                 DW_OP_lit{n}; DW_OP_ge; DW_OP_lit3; DW_OP_shl; DW_OP_plus"
            ),
        ),
        (Cfa::Expression, CfaKind::DerefSp | CfaKind::DerefFp) => {
            let plain = format!("DW_OP_{register}: {n}; DW_OP_deref");
            match rule.cfa_addend() {
                0 => holds(Column::Cfa, &plain),
                a => {
                    let added = [
                        format!("DW_OP_plus_uconst: {a}"),
                        format!("DW_OP_lit{a}; DW_OP_plus"),
                    ];
                    added
                        .iter()
                        .any(|added| holds(Column::Cfa, &format!("{plain}; {added}")))
                }
            }
        }
        // Only rows of an unsupported kind may be missing.
        (Cfa::Expression, CfaKind::Unsupported) => all
            .iter()
            .any(|(_, c, t)| *c == Column::Cfa && t.matches(';').count() > 2),
        _ => false,
    }
}

fn fp_agrees(row: &ReadelfRow, rule: &Rule, holds: impl Fn(Column, &str) -> bool) -> bool {
    let n = i64::from(rule.fp_offset);
    match (&row.rbp, rule.fp_kind()) {
        // `u` means either "unspecified" or "undefined".
        (RegisterRule::Unsaid, FpKind::Same | FpKind::Lost) => true,
        (RegisterRule::Same, FpKind::Same) => true,
        (RegisterRule::AtCfa(offset), FpKind::AtCfa) => *offset == n,
        (RegisterRule::Expression, FpKind::AtFp) => {
            holds(Column::Rbp, &format!("DW_OP_breg6 (rbp): {n}"))
        }
        (RegisterRule::Expression, FpKind::Lost) => !holds(Column::Rbp, "DW_OP_breg6 (rbp): 0"),
        (RegisterRule::Other, FpKind::Lost) => true,
        _ => false,
    }
}
