use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::export::ExportOptions;
use crate::export::FORMATS;
use crate::export::testing::bytes;
use crate::testing::{at, kib, profile};
use memprof_profile::measure::{KERNEL_BYTES, MEASURES};
use memprof_profile::saved::*;
use memprof_profile::symbol::{
    Function, InlinedFunction, Language, Location, Symbol, Symbols, UnknownReason, UnnamedFunction,
};
use memprof_profile::{
    Amounts, CachedFile, CgroupMemory, CodeLayout, CodeSegment, Ended, EndedProcess, Faults, Frame,
    FreezeOutcome, KnownPath, LastFigures, Losses, MappedBytes, Mapping, Module, OomKill, OomKills,
    Outcome, PartialReason, PathFrom, Peak, Places, ProcessProfile, Report, Sample, Stack,
    Unobserved,
};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::process::Container;
use memprof_sys::residency::cgroup::{GroupFigures, Version};
use memprof_sys::residency::{Category, PageKind};
use memprof_sys::usage::Usage;

const ONE: Pid = Pid(42);
const OTHER: Pid = Pid(43);
const PEAK: Peak = Peak {
    rss: 900 << 10,
    high_water: Some(904 << 10),
    processes: 1,
    after_ms: 1234,
    is_shown: false,
};

/// A report that uses every field.
fn full() -> Report {
    let mut p = profile(
        &[
            (&[at(1, 0x30), at(0, 0x20)], kib(600, 8)),
            (&[at(0, 0x40), Frame::unmapped(9), at(0, 0x20)], kib(200, 0)),
            (&[], kib(4, 4)),
        ],
        &[kib(12, 0)],
    );
    p.taken = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    p.observed = Duration::from_millis(61_234);
    let kernel = Amounts::in_column(KERNEL_BYTES, 8192);
    p.samples[1].amounts += kernel;
    p.total += kernel;
    // Without `EXACT`, which marks heap figures that are not estimates.
    p.measures = MEASURES[..4].to_vec();
    let partial = Stack {
        frames: [at(1, 0x31)].into(),
        outcome: Outcome::Partial(PartialReason::DepthLimit),
    };
    p.samples[2].stack = Arc::new(partial);
    p.not_observed[0].reason = Unobserved::NotWalked;
    p.target.pids = vec![ONE, OTHER];
    p.target.comm = "redis \"é\u{7}".to_owned();
    let between = |sample, variance| {
        memprof_profile::Uncertainty::between(PageKind::Shmem, [sample, Some(1)], variance)
    };
    p.uncertainties = vec![between(None, 1.0 / 3.0), between(Some(0), 1e9 / 7.0)];
    p.kernel_before = KernelFigures {
        anonymous: None,
        rss_anon: 4096,
        ..KernelFigures::default()
    };
    p.losses = Losses::default();
    p.losses.add("zebras", 3);
    p.losses.add("ants", u64::from(u32::MAX) << 10);
    p.faults = Some(Faults {
        all: 100,
        unwalked: 40,
    });
    p.freeze = FreezeOutcome::InTurn {
        longest: Duration::from_nanos(1_234_567),
        sum: Duration::from_nanos(2_345_678),
    };
    let layout = CodeLayout {
        build_id: vec![0, 0xab, 0xff],
        segments: vec![CodeSegment {
            offset: 0,
            address: 0x40_0000,
            size: 0x1000,
        }],
    };
    let mut modules = p.modules.to_vec();
    modules[0] = Arc::new(Module {
        path: "/opt/node".into(),
        tree: None,
        name: "node".into(),
        dev_ino: (0, 0),
        file: None,
        layout: Some(layout),
        functions: None,
        own_executable: true,
    });
    p.modules = modules.into();
    let shares = [(ONE, &p.samples[..2]), (OTHER, &p.samples[2..])];
    let share = |(pid, samples): (Pid, &[Sample])| {
        let mut total = Amounts::default();
        samples.iter().for_each(|sample| total += sample.amounts);
        ProcessProfile {
            pid,
            comm: format!("process {pid}"),
            container: (pid == ONE).then(|| Container {
                group: "/kubepods/pod7/abc".to_owned(),
                id: Some("abc".to_owned()),
                pod: Some("7".to_owned()),
            }),
            samples: samples.to_vec(),
            not_observed: Vec::new(),
            total,
            uncertainties: vec![memprof_profile::Uncertainty::between(
                PageKind::Shmem,
                [None, Some(0)],
                1.0 / 3.0,
            )],
            kernel_before: p.kernel_before,
            kernel_after: p.kernel_after,
            freeze: FreezeOutcome::Failed {
                why: "too \"long\"".to_owned(),
                stood: Duration::from_millis(3),
            },
            peak: (pid == ONE).then_some(PEAK),
        }
    };
    p.processes = shares.map(share).to_vec();
    let cached = |sample: &Sample| Sample {
        stack: Arc::clone(&sample.stack),
        amounts: Usage {
            cache: 4096,
            ..Usage::default()
        }
        .into(),
    };
    let alone = Sample {
        stack: Arc::new(Stack {
            frames: [at(0, 0x77)].into(),
            outcome: Outcome::Complete,
        }),
        amounts: Amounts::default(),
    };
    let known = KnownPath {
        path: "/var/data".to_owned(),
        deleted: true,
        from: PathFrom::OpenFile,
        seen: UNIX_EPOCH + Duration::from_millis(1_700_000_000_001),
    };
    let file = |ino, path, samples| CachedFile {
        id: FileId { dev: (254, 0), ino },
        path,
        samples,
        lost: 4096,
    };
    p.places = Arc::new(Places {
        mappings: vec![Mapping {
            pid: ONE,
            start: 0x7f00_0000_0000,
            end: 0x7f00_0010_0000,
            permissions: "rw-p".to_owned(),
            name: "[heap]".to_owned(),
            category: Category::Arena,
            bytes: MappedBytes {
                attributed: kib(600, 0),
                not_observed: kib(12, 0),
                huge: 4096,
            },
        }],
        files: vec![
            file(7, Some(known), vec![cached(&p.samples[0]), cached(&alone)]),
            file(8, None, vec![cached(&p.samples[2])]),
        ],
        other_files: 12_288,
    });
    p.cgroup = Some(Arc::new(group()));
    p.ended = ended();
    p.oom_kills = OomKills::default().with(oom_kill()).with(OomKill {
        container: None,
        last: None,
        ..oom_kill()
    });
    let place = |line| Location {
        file: "a.c".to_owned(),
        line,
    };
    let function = Function {
        name: "main<T>".to_owned(),
        language: Language::Rust,
        offset_in_function: 5,
        first_line: None,
        inlined: vec![InlinedFunction {
            name: "inner".to_owned(),
            location: Some(place(None)),
        }],
        location: Some(place(Some(7))),
    };
    let symbols: Symbols = [
        (at(0, 0x20), Symbol::Known(function)),
        (
            at(1, 0x30),
            Symbol::Unknown(UnknownReason::Unreadable("no: such".to_owned())),
        ),
        (at(1, 0x31), Symbol::Unknown(UnknownReason::NoSymbol)),
        (
            at(0, 0x40),
            Symbol::Unnamed(UnnamedFunction {
                name: "node+0x40".to_owned(),
                offset_in_function: 3,
            }),
        ),
    ]
    .into_iter()
    .map(|(frame, symbol)| (frame, Arc::new(symbol)))
    .collect();
    Report {
        profile: Arc::new(p),
        symbols: Arc::new(symbols.finally()),
        sequence: 9,
    }
}

fn oom_kill() -> OomKill {
    OomKill {
        pid: OTHER,
        comm: "shop".to_owned(),
        container: Some(Container {
            group: "/shop".to_owned(),
            id: Some("abc".to_owned()),
            pod: None,
        }),
        killed: UNIX_EPOCH + Duration::from_millis(4_080),
        last: Some(LastFigures {
            resident: 4096,
            taken: UNIX_EPOCH + Duration::from_millis(4_000),
            after_kill: true,
        }),
    }
}

fn written(report: &Report) -> Vec<u8> {
    bytes("profile", report, &ExportOptions::default())
}

fn read_all(bytes: &[u8]) -> Result<Saved, SavedError> {
    read(bytes, 16 << 20)
}

#[test]
fn everything_is_read_back() {
    let live = full();
    let saved = Report::from(read_all(&written(&live)).unwrap());
    // Compares every field, whatever its purpose.
    let fields = |report: &Report| format!("{:?}", report.profile).replace("(1, 1)", "(0, 0)");
    assert_eq!(fields(&saved), fields(&live));
    assert_eq!(saved.sequence, live.sequence);
    assert_eq!(saved.symbols, live.symbols);
    for format in FORMATS {
        for pid in [None, Some(ONE), Some(OTHER)] {
            let of = |report: &Report| {
                let mut report = report.clone();
                if let Some(pid) = pid {
                    report.profile = Arc::new(report.profile.for_process(pid).unwrap());
                }
                bytes(format.name, &report, &ExportOptions::default())
            };
            assert!(of(&saved) == of(&live), "{} of {pid:?}", format.name);
        }
    }
}

/// Detects unintended changes of the format. `MEMPROF_TEST_BLESS=1` rewrites the file, which is also a seed of the fuzzer.
#[test]
fn the_format_is_that_of_the_kept_file() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/corpus-saved/full.memprof.json"
    );
    let written = written(&full());
    if std::env::var_os("MEMPROF_TEST_BLESS").is_some() {
        std::fs::write(path, &written).unwrap();
    }
    let kept = std::fs::read(path).unwrap();
    assert!(kept == written, "{}", String::from_utf8_lossy(&written));
    read_all(&kept).unwrap();
}

fn group() -> CgroupMemory {
    let figures = GroupFigures {
        usage: Some(9 << 20),
        anon: 5 << 20,
        file: 3 << 20,
        mapped: 1 << 20,
        kernel: 96 << 10,
        kernel_parts: vec![("slab".into(), 64 << 10), ("percpu".into(), 8 << 10)],
        oom_kills: Some(2),
        limit: Some(16 << 20),
        tolerance: 512 << 10,
        ..GroupFigures::default()
    };
    CgroupMemory {
        dir: "/sys/fs/cgroup/shop".into(),
        charged: Ok((Version::Two, figures)),
    }
}

fn ended() -> Ended {
    let process = EndedProcess {
        pid: Pid(77),
        comm: "gone".into(),
        container: None,
        total: kib(40, 4).into(),
        scanned: UNIX_EPOCH + Duration::from_secs(1_700_000_001),
        peak: Some(PEAK),
        ended: UNIX_EPOCH + Duration::from_secs(1_700_000_002),
    };
    Ended {
        processes: vec![process],
        unscanned: 3,
    }
}

#[test]
fn the_balance_of_a_control_group_is_kept() {
    let report = full();
    let saved = read_all(&written(&report)).unwrap();
    let [before, after] = [&report.profile, &Arc::new(saved.profile)].map(|p| {
        let group = p.cgroup.clone().unwrap();
        let rows = group.balance(&p.total.usage);
        (group, rows)
    });
    assert_eq!(before, after);
    assert!(before.1.iter().any(|row| row.name == "unexplained"));
    // The reason for missing figures is also read back.
    let mut report = full();
    let without = CgroupMemory {
        dir: "/sys/fs/cgroup".into(),
        charged: Err("it is gone".into()),
    };
    Arc::make_mut(&mut report.profile).cgroup = Some(Arc::new(without.clone()));
    let saved = read_all(&written(&report)).unwrap();
    assert_eq!(saved.profile.cgroup.as_deref(), Some(&without));
    let version = refused(|v| v["cgroup"]["charged"]["Ok"]["version"] = json!(3));
    assert!(version.contains("no version 3"), "{version}");
    let much = refused(|v| v["cgroup"]["charged"]["Ok"]["anon"] = json!(u64::MAX));
    assert!(much.contains("larger than any memory"), "{much}");
}

#[test]
fn processes_that_have_ended_are_kept() {
    let saved = read_all(&written(&full())).unwrap();
    assert_eq!(
        format!("{:?}", saved.profile.ended),
        format!("{:?}", ended())
    );
}

#[test]
fn who_was_killed_may_be_missing_and_the_list_is_limited() {
    let mut value: Value = serde_json::from_slice(&written(&full())).unwrap();
    value.as_object_mut().unwrap().remove("oomKills");
    let saved = read_all(value.to_string().as_bytes()).unwrap();
    assert_eq!(saved.profile.oom_kills, OomKills::default());
    let many = refused(|v| {
        let newest = v["oomKills"]["newest"].as_array_mut().unwrap();
        *newest = vec![newest[0].clone(); 65];
    });
    assert!(many.contains("at most 64 items"), "{many}");
}

/// The text of the error for a file that differs from a valid one.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_slice(&written(&full())).unwrap();
    change(&mut value);
    let text = value.to_string();
    let error = read_all(text.as_bytes()).expect_err(&text);
    error.to_string()
}

#[test]
fn what_does_not_fit_together_is_refused() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (
            |v| v["format"] = json!("speedscope"),
            "its format is \"speedscope\"",
        ),
        (
            |v| v["version"] = json!(4),
            "of version 4, and this memprof",
        ),
        (|v| v["version"] = json!(1), "of version 1, which lacks"),
        (|v| v["frames"][0]["module"] = json!(2), "in module 2 of 2"),
        (
            |v| v["frames"][0]["offset"] = json!(1u64 << 48),
            "larger than any",
        ),
        (|v| v["frames"][0]["address"] = json!(1), "or an address"),
        (|v| v["stacks"][0]["frames"] = json!([99]), "frame 99 of"),
        (
            |v| v["stacks"][0]["frames"] = json!(vec![0; 1025]),
            "1025 frames",
        ),
        (
            |v| v["stacks"][0]["outcome"] = json!("fine"),
            "unknown outcome \"fine\"",
        ),
        (|v| v["stacks"][0]["bytes"]["anon"] = json!(1), "add up to"),
        (
            |v| v["stacks"][0]["bytes"]["anon"] = json!(-1),
            "invalid value",
        ),
        (
            |v| v["stacks"][0]["bytes"] = json!({}),
            "missing field `anon`",
        ),
        (
            |v| v["total"]["anon"] = json!(u64::MAX),
            "larger than any memory",
        ),
        (|v| v["total"]["gold"] = json!(1), "unknown variant `gold`"),
        (
            |v| v["processes"][0]["stacks"] = json!([[1, {"anon": 0, "shmem": 0, "cache": 0, "file": 0, "swap": 0, "hugetlb": 0}], [0, {"anon": 0, "shmem": 0, "cache": 0, "file": 0, "swap": 0, "hugetlb": 0}]]),
            "not in order",
        ),
        (
            |v| v["processes"][1]["pid"] = json!(42),
            "process 42 occurs twice",
        ),
        (
            |v| v["processes"][0]["total"]["anon"] = json!(0),
            "the rows of process 42",
        ),
        (|v| v["files"][1]["inode"] = json!(7), "twice"),
        (|v| v["files"][0]["stacks"][0][0] = json!(77), "stack 77 of"),
        (
            |v| v["uncertainties"][0][1][0][0] = json!(3),
            "names stack 3 of 3",
        ),
        (
            |v| v["uncertainties"][0][1][0][1] = json!(1.5),
            "not a share",
        ),
        (
            |v| v["uncertainties"][0][1][0][2] = json!(-1.0),
            "not the variance",
        ),
        (
            |v| v["uncertainties"][0][1][0][3] = json!(1e300),
            "not the variance",
        ),
        (|v| v["mappings"][0]["end"] = json!(0), "before its start"),
        (
            |v| v["mappings"][0]["huge"] = json!(u64::MAX),
            "larger than any memory",
        ),
        (
            |v| v["kernelAfter"]["rssAnon"] = json!(1u64 << 63),
            "larger than any memory",
        ),
        (
            |v| v["losses"]["zebras"] = json!(u64::MAX),
            "larger than any memory",
        ),
        (
            |v| v["modules"] = json!(vec![v["modules"][0].clone(); 65_536]),
            "at most 65535 items",
        ),
        (
            |v| v["modules"][0]["layout"]["buildId"] = json!("xy"),
            "hexadecimal",
        ),
        (
            |v| v["mappings"][0]["category"] = json!("zebras"),
            "a mapping has an unknown category",
        ),
        (
            |v| drop(v.as_object_mut().unwrap().remove("mappings")),
            "missing field `mappings`",
        ),
        (|v| v["target"] = json!(1), "invalid type"),
    ];
    for (change, wanted) in cases {
        let said = refused(change);
        assert!(said.contains(wanted), "{said:?} lacks {wanted:?}");
        assert!(
            !said.contains(memprof_profile::saved::schema::VERSION_MARK),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_profile_is_named() {
    let whole = written(&full());
    for size in (0..whole.len() - 2).step_by(97) {
        let error = read_all(&whole[..size]).unwrap_err();
        assert!(matches!(error, SavedError::Truncated(_)), "{size}: {error}");
    }
    let twice = [&whole[..], &whole[..]].concat();
    let deep = "[".repeat(100_000);
    let cases: [(&[u8], &str); 7] = [
        (b"\x7fELF\x02\x01", "not a saved profile, which is JSON"),
        (b"\x1f\x8b\x08", "not a saved profile, which is JSON"),
        (
            br#"{"value":0,"cacheValue":0,"frames":[]}"#,
            "missing field `format`",
        ),
        (b"{\"format\":\"\xff\xfe\"}", "not a saved profile"),
        (b"[]", "not a valid saved profile"),
        (deep.as_bytes(), "not a"),
        (&twice, "trailing characters"),
    ];
    for (bytes, wanted) in cases {
        let said = read_all(bytes).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said:?} lacks {wanted:?}");
    }
    // An unknown field may nest to any depth.
    let mut value: Value = serde_json::from_slice(&whole).unwrap();
    value["later"] = json!({"a": [1, 2]});
    read_all(value.to_string().as_bytes()).unwrap();
}

#[test]
fn size_is_limited() {
    let whole = written(&full());
    let size = whole.len() as u64;
    read(&whole[..], size).unwrap();
    let error = read(&whole[..], size - 1).unwrap_err();
    assert!(matches!(error, SavedError::TooLarge(_)), "{error}");
    let endless = read(std::io::repeat(b' '), 1 << 20).unwrap_err();
    assert!(matches!(endless, SavedError::TooLarge(_)), "{endless}");
    let error = open(std::path::Path::new("/nowhere/p")).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}
