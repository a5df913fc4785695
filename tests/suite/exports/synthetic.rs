//! Synthetic profiles: every format's sums, options and differences, and reference files.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::skip::skip;
use crate::common::{Fixed, Server, at, kib, report};
use crate::exports::readers::{self, pprof_says, table, wanted};
use ::memprof::export::{self, ExportOptions};
use ::memprof::http::exporters::{self, EXPORTERS};
use ::memprof::http::server::ServerOptions;
use memprof_profile::measure::{ColumnId, MEASURES};
use memprof_profile::symbol::{Function, InlinedFunction, Language, Location, Symbol};
use memprof_profile::tree::Direction;
use memprof_profile::{Amounts, Frame, Kind, Outcome, PartialReason, Peak, Report, Stack};
use memprof_sys::usage::Usage;

pub fn written(format: &str, report: &Report, options: &ExportOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let format = exporters::by_name(format).unwrap();
    export::write(format, report, options, &mut out).unwrap();
    out
}

/// Writes the report in every format; each reader's sums must equal the report's.
#[track_caller]
pub fn readers_find_every_byte(report: &Report) {
    for format in EXPORTERS.iter().map(|e| e.name) {
        let bytes = written(format, report, &ExportOptions::default());
        assert_eq!(
            readers::read(format, &bytes),
            wanted(format, |kind| kind.figure(&report.profile.total)),
            "{format}"
        );
    }
}

fn small() -> Arc<Report> {
    let all = Usage {
        anon: 4096,
        shmem: 2 * 4096,
        file: 3 * 4096,
        swap: 4 * 4096,
        hugetlb: 2 << 20,
        cache: 5 * 4096,
    };
    let samples = [
        (vec![at(1, 0x30), at(0, 0x20), at(0, 0x10)], kib(6000, 8, 0)),
        (
            vec![at(0, 0x40), at(0, 0x20), at(0, 0x10)],
            kib(2000, 0, 1000),
        ),
        (vec![at(0, 0x50), Frame::unmapped(9), at(0, 0x10)], all),
        (vec![], kib(4, 0, 0)),
        (vec![at(0, 0x10)], kib(0, 0, 0)),
    ];
    let names = [
        (at(0, 0x10), "main", Language::Other),
        (at(0, 0x20), "app::run::h0123456789abcdef", Language::Rust),
        (at(1, 0x30), "malloc", Language::Other),
    ];
    let mut report = Report::clone(&report(&samples, &[kib(996, 0, 4), all], &names));
    let profile = Arc::make_mut(&mut report.profile);
    profile.taken = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    profile.losses.add("events", 3);
    let frames = profile.samples[2].stack.frames.clone();
    let outcome = Outcome::Partial(PartialReason::DepthLimit);
    profile.samples[2].stack = Arc::new(Stack { frames, outcome });
    // Each column, under a stack and without one.
    for id in ColumnId::ALL {
        let amounts = Amounts::in_column(id, 6 * 4096);
        profile.samples[2].amounts += amounts;
        profile.not_observed[1].amounts += amounts;
        profile.total += amounts;
        profile.total += amounts;
    }
    Arc::new(report)
}

#[test]
fn every_format_adds_up() {
    readers_find_every_byte(&small());
}

/// Optional measures are in the formats that hold more than one figure per stack, and in those of one kind if
/// they are chosen.
#[test]
fn optional_measures_add_up() {
    let mut report = Report::clone(&small());
    Arc::make_mut(&mut report.profile).measures = MEASURES[..5].to_vec();
    let total = report.profile.total;
    let bytes = written("pprof", &report, &ExportOptions::default());
    let sums = readers::read("pprof", &bytes);
    for id in ColumnId::ALL {
        assert_eq!(sums[id.column().sample_type], total.column(id));
        let options = ExportOptions {
            kind: Kind::Column(id),
            ..ExportOptions::default()
        };
        for format in ["folded", "svg", "functions", "text"] {
            let sums = readers::read(format, &written(format, &report, &options));
            assert_eq!(sums["all"], total.column(id), "{format}");
        }
    }
}

#[test]
fn nothing_is_written_as_nothing() {
    let report = report(&[], &[], &[]);
    for format in EXPORTERS.iter().map(|e| e.name).filter(|f| *f != "folded") {
        let bytes = written(format, &report, &ExportOptions::default());
        let sums = readers::read(format, &bytes);
        assert!(sums.values().all(|bytes| *bytes == 0), "{format}: {sums:?}");
    }
    // inferno rejects empty input.
    assert!(written("folded", &report, &ExportOptions::default()).is_empty());
}

/// A report of one kind has that kind's sum, in every format that supports a kind.
#[test]
fn every_kind_adds_up() {
    let report = small();
    for format in EXPORTERS.iter().filter(|e| e.supports.kind) {
        for kind in Kind::ALL {
            let options = ExportOptions {
                kind,
                ..ExportOptions::default()
            };
            let bytes = written(format.name, &report, &options);
            let (found, of) = readers::shown(format.name, &bytes, kind);
            assert_eq!(
                found,
                of.figure(&report.profile.total),
                "{} {}",
                format.name,
                kind.name()
            );
        }
    }
}

/// Neither the threshold nor the direction changes a sum.
#[test]
fn thresholds_and_directions_keep_the_sum() {
    let report = small();
    for format in EXPORTERS {
        let can = format.supports;
        for direction in Direction::ALL {
            for threshold in [0, 5 << 20, 1 << 40] {
                let options = ExportOptions {
                    direction: can.direction.then_some(direction),
                    threshold: can.threshold.then_some(threshold),
                    ..ExportOptions::default()
                };
                let bytes = written(format.name, &report, &options);
                let sums = readers::read(format.name, &bytes);
                assert_eq!(
                    sums,
                    wanted(format.name, |kind| kind.figure(&report.profile.total)),
                    "{}",
                    format.name
                );
            }
        }
    }
}

#[test]
fn memory_without_a_stack_is_in_every_format() {
    let report = small();
    for format in EXPORTERS.iter().map(|e| e.name) {
        let bytes = written(format, &report, &ExportOptions::default());
        let text = match format {
            "pprof" => readers::pprof(&bytes).raw,
            "html" => String::from_utf8(readers::html_data(&bytes)).unwrap(),
            _ => String::from_utf8(bytes).unwrap(),
        };
        let row = match format {
            // The name in the `/v1` contract.
            "json" => "\"unknown\"",
            "html" => "\"before_attach\"",
            "profile" => "\"reason\":\"before attach\"",
            _ => "[before attach: [anon]]",
        };
        assert!(text.contains(row), "{format}:\n{text}");
    }
}

/// The node of stacks that were cut off, except where each stack has its outcome.
#[test]
fn cut_off_stacks_say_so_in_every_format_that_has_stacks() {
    let report = small();
    for format in EXPORTERS.iter().map(|e| e.name) {
        let bytes = written(format, &report, &ExportOptions::default());
        let text = match format {
            "pprof" => readers::pprof(&bytes).raw,
            "html" => String::from_utf8(readers::html_data(&bytes)).unwrap(),
            _ => String::from_utf8(bytes).unwrap(),
        };
        let wanted = match format {
            // The text's node is below its threshold; it lists the outcomes, too.
            "profile" | "csv" | "text" => "partial: depth limit",
            "html" => "\"cut_off\"",
            // The contract of `/v1`, and functions.
            "json" | "functions" => continue,
            _ => "[cut off: depth limit, see --max-frames]",
        };
        assert!(text.contains(wanted), "{format}:\n{text}");
    }
}

/// `/v1` keeps the hashes of Rust names; the others have them if asked.
#[test]
fn rust_hashes_are_in_v1_and_on_request() {
    let report = small();
    let hash = "app::run::h0123456789abcdef";
    let mut with = Report::clone(&report);
    Arc::make_mut(&mut with.symbols).show_rust_hashes(true);
    // That of heaptrack has only what was allocated.
    for format in EXPORTERS
        .iter()
        .map(|e| e.name)
        .filter(|f| *f != "heaptrack")
    {
        let has = |report: &Report| {
            let bytes = written(format, report, &ExportOptions::default());
            let text = match format {
                "pprof" => readers::pprof(&bytes).raw,
                "html" => String::from_utf8(readers::html_data(&bytes)).unwrap(),
                _ => String::from_utf8(bytes).unwrap(),
            };
            assert!(text.contains("app::run"), "{format}:\n{text}");
            text.contains(hash)
        };
        assert_eq!(
            (has(&report), has(&with)),
            // A saved profile is read back: it has whole names, too.
            (["json", "profile"].contains(&format), true),
            "{format}"
        );
    }
}

#[test]
fn pprof_knows_functions_files_and_comments() {
    let mut report = Report::clone(&small());
    Arc::make_mut(&mut report.profile).peak = Some(Peak {
        rss: 7 << 20,
        high_water: Some(8 << 20),
        processes: 1,
        after_ms: 5,
        is_shown: false,
    });
    let bytes = written("pprof", &report, &ExportOptions::default());
    let top = pprof_says(
        &["-top", "-unit=KB", "-sample_index=resident_space"],
        &bytes,
    );
    let flat = |function: &str| {
        let line = top.lines().find(|line| line.ends_with(function));
        line.unwrap_or_else(|| panic!("no {function}:\n{top}"))
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(flat("malloc"), "6008kB");
    assert_eq!(flat("[no stack]"), "4kB");
    assert_eq!(flat("[before attach: [anon]]"), "1008kB");
    // The default is the resident memory.
    assert_eq!(top, pprof_says(&["-top", "-unit=KB"], &bytes));
    let raw = readers::pprof(&bytes).raw;
    assert!(
        raw.contains("/opt/node") && raw.contains("/opt/libc-2.31.so"),
        "{raw}"
    );
    assert!(raw.contains("reason:[before attach]"), "{raw}");
    assert!(raw.contains("outcome:[complete]"), "{raw}");
    assert!(raw.contains("Time: 2023-11-14"), "{raw}");
    let comments = pprof_says(&["-comments"], &bytes);
    for wanted in [
        "lost: 3 events",
        "RssAnon",
        "hugetlb 4194304 bytes",
        "peak so far, in bytes: resident 7340032 kernel 8388608",
        "target: node (pid 4711)",
    ] {
        assert!(comments.contains(wanted), "{comments}");
    }
}

/// pprof takes what it reads from a running memprof as it is: it merges no functions whose names differ in `<…>` or `(…)` alone,
/// and asks for no more names, although a file has none. Above the table are its own lines and what was lost.
#[test]
fn pprof_reads_a_server() {
    let names = [
        "<[u8; 4] as T>::go",
        "<(i32, &dyn Fn) as T>::go",
        "call<int>(int)",
        "<module>",
    ];
    let frames: Vec<_> = (0..4).map(|n| at(0, 0x10 + n)).collect();
    let mut samples: Vec<_> = frames.iter().map(|f| (vec![*f], kib(4000, 0, 0))).collect();
    samples.push((vec![at(1, 0x30), at(0, 0x10)], kib(2000, 0, 0)));
    let known: Vec<_> = frames.iter().zip(names).collect();
    let known: Vec<_> = known
        .iter()
        .map(|(f, n)| (**f, *n, Language::Other))
        .collect();
    let mut report = Report::clone(&report(&samples, &[], &known));
    let profile = Arc::make_mut(&mut report.profile);
    profile.measures = MEASURES.to_vec();
    profile.losses.add("events", 3);
    let server = Server::start(Fixed(Ok(Arc::new(report))), ServerOptions::default());
    for path in ["/debug/pprof/heap", "/v2/export/pprof"] {
        let dir = tempfile::tempdir().unwrap();
        let out = Command::new("go")
            .args(["tool", "pprof", "-top", "-unit=KB", "-nodefraction=0"])
            .arg(format!("http://{}{path}", server.address))
            .env("HOME", dir.path())
            .env("PPROF_TMPDIR", dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let top = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{said}");
        for name in names {
            let row = top
                .lines()
                .find(|line| line.ends_with(&format!("  {name}")));
            let flat = row.and_then(|row| row.split_whitespace().next());
            assert_eq!(flat, Some("4000kB"), "{name}: {top}");
        }
        assert!(top.contains("[no symbol] (libc-2.31.so)"), "{top}");
        let above: Vec<&str> = top
            .lines()
            .take_while(|l| !l.starts_with("Showing"))
            .collect();
        assert_eq!(above.len(), 4, "{top}");
        assert!(above.contains(&"lost: 3 events"), "{top}");
    }
    server.stop();
}

/// Inlined functions and source lines, if known.
#[test]
fn pprof_knows_lines() {
    let mut report = Report::clone(&small());
    let place = |file: &str, line| Location {
        file: file.to_owned(),
        line: Some(line),
    };
    let function = Function {
        name: "outer".to_owned(),
        language: Language::Other,
        offset_in_function: 4,
        first_line: None,
        inlined: vec![InlinedFunction {
            name: "inner".to_owned(),
            location: Some(place("inner.h", 7)),
        }],
        location: Some(place("outer.c", 42)),
    };
    let symbols = Arc::make_mut(&mut report.symbols);
    symbols.insert(at(0, 0x40), Arc::new(Symbol::Known(function)));
    let bytes = written("pprof", &report, &ExportOptions::default());
    let top = pprof_says(&["-top", "-lines", "-unit=KB"], &bytes);
    let row = |name: &str| {
        let line = top.lines().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("no {name}:\n{top}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[3].to_owned())
    };
    let (none, held) = ("0".to_owned(), "2000kB".to_owned());
    assert_eq!(row("inner inner.h:7"), (held.clone(), held.clone()));
    assert_eq!(row("outer outer.c:42"), (none, held));
    let raw = readers::pprof(&bytes).raw;
    assert!(raw.contains("[FN][FL][LN][IN]"), "{raw}");
}

/// The heap's sample types have the names and units that pprof's readers know, and the kind that was asked for is shown first.
#[test]
fn pprof_knows_the_heap() {
    let mut report = Report::clone(&small());
    Arc::make_mut(&mut report.profile).measures = MEASURES[..4].to_vec();
    let asked = |kind: &str| {
        let kind = Kind::by_name(kind).unwrap();
        let options = ExportOptions {
            kind,
            ..ExportOptions::default()
        };
        written("pprof", &report, &options)
    };
    let types = |bytes: &[u8]| {
        let raw = readers::pprof(bytes).raw;
        let (_, samples) = raw.split_once("Samples:\n").unwrap();
        samples.lines().next().unwrap().trim().to_owned()
    };
    let all = "resident_space/bytes page_cache_space/bytes swapped_space/bytes pss_space/bytes approximate_kernel_space/bytes \
               inuse_space/bytes inuse_objects/count alloc_space/bytes alloc_objects/count temporary_space/bytes \
               temporary_objects/count";
    assert_eq!(
        types(&asked("all")),
        all.replacen("bytes", "bytes[dflt]", 1)
    );
    let of = "inuse_space/bytes";
    assert_eq!(
        types(&asked("inuse_space")),
        all.replace(of, &format!("{of}[dflt]"))
    );
    // A kind that has no value type has one if it is asked for.
    assert_eq!(
        types(&asked("anon")),
        format!("{all} anon_space/bytes[dflt]")
    );
    let top = |kind: &str| pprof_says(&["-top"], &asked(kind));
    assert!(top("inuse_space").contains("Type: inuse_space"));
    // Objects are numbers: 24,576 under a stack, as many without one.
    let objects = top("alloc_objects");
    assert!(
        objects.contains("Type: alloc_objects") && objects.contains("of 49152 total"),
        "{objects}"
    );
}

/// heaptrack's own reader finds what is allocated, temporary and live, under the functions.
#[test]
fn heaptrack_print_reads_it() {
    if Command::new("heaptrack_print")
        .arg("--version")
        .output()
        .is_err()
    {
        skip("heaptrack_print is not installed (Debian: heaptrack)");
        return;
    }
    let stacks = [
        vec![at(0, 0x30), at(0, 0x10)],
        vec![at(1, 0x40), at(0, 0x30), at(0, 0x10)],
    ];
    let names = [
        (at(0, 0x10), "main", Language::Other),
        (at(0, 0x30), "parse", Language::Other),
        (at(1, 0x40), "read_line", Language::Other),
    ];
    let samples = stacks.map(|stack| (stack, kib(4, 0, 0)));
    let mut report = Report::clone(&report(&samples, &[], &names));
    let profile = Arc::make_mut(&mut report.profile);
    profile.measures = MEASURES[..4].to_vec();
    profile.observed = std::time::Duration::from_secs(90);
    profile.kernel_after.rss_anon = 50 << 20;
    profile.kernel_after.rss_file = 14 << 20;
    // Three million allocations: each event stands for 16 of them.
    let figures = [
        (0, "alloc_space", 9_000_000_000),
        (0, "alloc_objects", 3_000_000),
        (0, "inuse_space", 2_000_000_000),
        (0, "inuse_objects", 1_000_000),
        (0, "temporary_space", 4_000_000_000),
        (0, "temporary_objects", 1_500_000),
        (1, "alloc_space", 7_000),
        (1, "alloc_objects", 1),
        (1, "inuse_space", 7_000),
        (1, "inuse_objects", 1),
    ];
    for (stack, name, figure) in figures {
        let id = ColumnId::ALL
            .into_iter()
            .find(|id| id.column().name == name);
        profile.samples[stack].amounts += Amounts::in_column(id.unwrap(), figure);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.heaptrack");
    std::fs::write(
        &path,
        written("heaptrack", &report, &ExportOptions::default()),
    )
    .unwrap();
    let out = Command::new("heaptrack_print")
        .args(["-f".as_ref(), path.as_os_str(), "-T".as_ref(), "1".as_ref()])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && !said.contains("failed to parse"),
        "{said}"
    );
    for wanted in [
        "each call here stands for 16 calls",
        "total memory leaked: 2.00G",
        "peak heap memory consumption: 2.00G",
        "calls to allocation functions: 187501",
        "temporary memory allocations: 93750",
        "total runtime: 90.0",
        "peak RSS (including heaptrack overhead): 67.11M",
        "parse",
        "read_line",
    ] {
        assert!(text.contains(wanted), "no {wanted:?}:\n{text}");
    }
}

/// A difference with an earlier file, computed by pprof.
#[test]
fn pprof_subtracts() {
    let (before, now) = (
        written("pprof", &small(), &ExportOptions::default()),
        small(),
    );
    let mut now = Report::clone(&now);
    Arc::make_mut(&mut now.profile).samples[0]
        .amounts
        .usage
        .anon += 1 << 20;
    let now = written("pprof", &now, &ExportOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.pb.gz");
    std::fs::write(&base, before).unwrap();
    let base = format!("-base={}", base.display());
    let top = pprof_says(&["-top", "-unit=KB", &base], &now);
    let rows: Vec<&str> = top
        .lines()
        .filter(|l| l.trim_start().starts_with("1024kB"))
        .collect();
    assert!(rows.iter().any(|l| l.ends_with("malloc")), "{top}");
}

fn changed() -> (Arc<Report>, ExportOptions) {
    let before = small();
    let mut now = Report::clone(&before);
    let profile = Arc::make_mut(&mut now.profile);
    // One stack grew, one is gone.
    profile.samples[0].amounts.usage.anon += 1 << 20;
    profile.total.usage.anon += 1 << 20;
    let gone = profile.samples.remove(1).amounts;
    profile.total.usage.anon -= gone.usage.anon;
    profile.total.usage.cache -= gone.usage.cache;
    let options = ExportOptions {
        baseline: Some(before),
        ..ExportOptions::default()
    };
    (Arc::new(now), options)
}

/// Rows of both sides, including those that are empty on one side.
#[test]
fn csv_differences_have_both_numbers() {
    let (now, options) = changed();
    let before = options.baseline.clone().unwrap();
    let rows = table(&written("csv", &now, &options));
    let stated = |kind: &Kind| kind.measure().always_stated;
    for kind in Kind::single().filter(stated) {
        let sum = |side: &str| {
            let column = format!("{}{side}_{}", kind.name(), kind.unit().name());
            let cells = rows.iter().map(|row| &row[&column]);
            cells.map(|cell| cell.parse::<u64>().unwrap()).sum::<u64>()
        };
        assert_eq!(sum(""), kind.figure(&now.profile.total), "{kind:?}");
        assert_eq!(sum("_before"), kind.figure(&before.profile.total));
    }
    let gone = "main;app::run;node+0x40";
    let row = rows.iter().find(|row| row["frames"] == gone).unwrap();
    assert_eq!(
        (&*row["anon_bytes"], &*row["anon_before_bytes"]),
        ("0", "2048000")
    );
}

/// Every line of the tree has the old value, the new value and the difference.
#[test]
fn text_differences_have_both_numbers() {
    let (now, mut options) = changed();
    let first = String::from_utf8(written("text", &now, &options)).unwrap();
    assert!(
        first.contains("\nShrank:\n") && !first.contains("now, before, change"),
        "{first}"
    );
    // All changes are a tree.
    options.threshold = Some(0);
    let before = options.baseline.clone().unwrap();
    let text = String::from_utf8(written("text", &now, &options)).unwrap();
    let (_, tree) = text.split_once("now, before, change\n").unwrap();
    let read = |line: &str| {
        let mut words = line.split_whitespace().step_by(2);
        let mut next = || words.next().unwrap().parse::<i64>().unwrap();
        (next(), next(), next())
    };
    for line in tree.lines() {
        let (now, before, change) = read(line);
        assert_eq!(now - before, change, "{line}");
    }
    let kib = |report: &Report| (report.profile.total.usage.value() >> 10).cast_signed();
    let (all, was, _) = read(tree.lines().next().unwrap());
    assert_eq!((all, was), (kib(&now), kib(&before)));
    let gone = tree
        .lines()
        .find(|line| line.ends_with("[no symbol] (node)"));
    assert_eq!(read(gone.unwrap()), (0, 3000, -3000), "{tree}");
}

#[test]
fn folded_differences_have_both_numbers() {
    let (now, options) = changed();
    let before = options.baseline.clone().unwrap();
    let text = String::from_utf8(written("folded", &now, &options)).unwrap();
    let mut sums = (0, 0);
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.rsplitn(3, ' ');
        let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
        let (now, before) = (number(), number());
        sums = (sums.0 + before, sums.1 + now);
        lines.insert(parts.next().unwrap().to_owned(), (before, now));
    }
    assert_eq!(
        sums,
        (
            before.profile.total.usage.value(),
            now.profile.total.usage.value()
        )
    );
    assert_eq!(lines["main;app::run;malloc"], (6008 << 10, 7032 << 10));
    assert_eq!(lines["main;app::run;node+0x40"], (3000 << 10, 0));
    // As a differential flame graph.
    let mut out = Vec::new();
    let mut inferno = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_reader(&mut inferno, text.as_bytes(), &mut out).unwrap();
}

#[test]
fn flame_graphs_and_tables_differ_too() {
    let (now, options) = changed();
    let svg = written("svg", &now, &options);
    assert_eq!(readers::svg(&svg), now.profile.total.usage.value());
    let text = String::from_utf8(svg).unwrap();
    assert!(text.contains("malloc: 6.87 MiB (7200768 bytes)"), "{text}");
    assert!(text.contains(", change +1 MiB"), "{text}");
    assert!(
        text.contains("not drawn: 2.93 MiB (3072000 bytes)"),
        "{text}"
    );
    let rows = table(&written("functions", &now, &options));
    let malloc = rows.iter().find(|row| row["function"] == "malloc").unwrap();
    assert_eq!(
        (&*malloc["self_bytes"], &*malloc["self_before_bytes"]),
        ("7200768", "6152192")
    );
    let sum = |column: &str| {
        rows.iter()
            .map(|r| r[column].parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let before = options.baseline.unwrap();
    assert_eq!(sum("self_before_bytes"), before.profile.total.usage.value());
    assert_eq!(sum("self_bytes"), now.profile.total.usage.value());
}

/// The outputs equal the reference files; `MEMPROF_TEST_BLESS=1` rewrites these.
#[test]
fn kept_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/exports/kept");
    let report = small();
    // The page changes too often, and heaptrack's format has a line for each of many calls: both have readers.
    let left_out = ["html", "heaptrack"];
    for format in EXPORTERS.iter().filter(|e| !left_out.contains(&e.name)) {
        let bytes = written(format.name, &report, &ExportOptions::default());
        // The compressed bytes depend on the compressor, so the contents are compared.
        let (bytes, ending) = match format.name {
            "pprof" => (unpacked(&bytes), "pb"),
            _ => (bytes, format.extension),
        };
        let path = dir.join(format!("small.{ending}"));
        if std::env::var_os("MEMPROF_TEST_BLESS").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let kept = std::fs::read(&path).unwrap();
        assert!(
            kept == bytes,
            "{} is no longer what stands in {}:\n{}",
            format.name,
            path.display(),
            String::from_utf8_lossy(&bytes)
        );
    }
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    std::io::copy(&mut flate2::read::GzDecoder::new(bytes), &mut out).unwrap();
    out
}

/// Counts bytes and discards them.
#[derive(Default)]
struct Counted {
    bytes: usize,
    largest: usize,
}

impl std::io::Write for Counted {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.bytes += piece.len();
        self.largest = self.largest.max(piece.len());
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Exporters write incrementally.
#[test]
fn nothing_is_written_in_one_piece() {
    let stack = |n: u64| (0..30).map(|d| at(0, n % (d + 2) * 100 + d)).collect();
    let samples: Vec<_> = (0..5000).map(|n| (stack(n * 7919), kib(4, 0, 4))).collect();
    let report = report(&samples, &[], &[]);
    for format in EXPORTERS {
        let mut out = Counted::default();
        export::write(format, &report, &ExportOptions::default(), &mut out).unwrap();
        let Counted { bytes, largest } = out;
        println!("{}: {bytes} bytes, at most {largest} at once", format.name);
        assert!(
            largest <= 64 << 10,
            "{}: {largest} of {bytes} bytes at once",
            format.name
        );
    }
}
