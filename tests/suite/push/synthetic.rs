//! Reports that tests make: what a store receives of them, whatever its protocol.

use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::common::store::Store;
use crate::common::{at, kib, report};
use crate::push::decode::{Pushed, decode};
use crate::push::options;
use ::memprof::export::push::{self, Limits};
use memprof_profile::Report;
use memprof_profile::measure::{ColumnId, MEASURES};
use memprof_profile::symbol::Language;
use memprof_profile::{Amounts, Kind, Profile};

const PROTOCOLS: [&str; 3] = ["otlp", "pyroscope", "parca"];

fn column(name: &str) -> ColumnId {
    let named = ColumnId::ALL
        .into_iter()
        .find(|id| id.column().name == name);
    named.unwrap()
}

/// A report of two stacks and memory without one, which have allocated `allocated` bytes each, so many seconds from now.
fn heap(seconds: u64, allocated: u64) -> Arc<Report> {
    let names = [
        (at(0, 1), "main", Language::Rust),
        (at(1, 2), "malloc \u{e9}", Language::Other),
    ];
    let stacks = [
        (vec![at(1, 2), at(0, 1)], kib(8, 4, 0)),
        (vec![at(0, 1)], kib(0, 0, 16)),
    ];
    let made = report(&stacks, &[kib(32, 0, 0)], &names);
    let mut profile = Profile::clone(&made.profile);
    profile.measures = MEASURES.to_vec();
    profile.taken += Duration::from_secs(seconds);
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
    profile.taken_ns = (now + Duration::from_secs(seconds)).as_nanos() as u64;
    for sample in &mut profile.samples {
        for (name, amount) in [("inuse_space", 100), ("inuse_objects", 2)] {
            sample.amounts += Amounts::in_column(column(name), amount);
            profile.total += Amounts::in_column(column(name), amount);
        }
        sample.amounts += Amounts::in_column(column("alloc_space"), allocated);
        profile.total += Amounts::in_column(column("alloc_space"), allocated);
    }
    Arc::new(Report {
        profile: Arc::new(profile),
        ..Report::clone(&made)
    })
}

/// Pushes the reports; returns what arrives.
fn pushed(protocol: &str, reports: &[Arc<Report>]) -> Vec<Pushed> {
    let store = Store::start();
    let mut options = options(protocol, &store);
    options.labels = vec![
        ("service.name".into(), "shop".into()),
        ("deployment.environment.name".into(), "t\u{e9}st".into()),
    ];
    let (mut pusher, _pushing) = push::start(&options, Limits::default()).unwrap();
    for report in reports {
        pusher.push(report).unwrap();
    }
    let received = store.wait_for(reports.len());
    received.iter().map(|r| decode(protocol, r)).collect()
}

#[test]
fn every_store_receives_all_figures() {
    for protocol in PROTOCOLS {
        let report = heap(10, 1 << 20);
        let [first] = &pushed(protocol, std::slice::from_ref(&report))[..] else {
            panic!("one is expected");
        };
        let total = &report.profile.total;
        for (name, kind) in [
            ("resident_space", Kind::Resident),
            ("page_cache_space", Kind::Cache),
            ("inuse_space", Kind::Column(column("inuse_space"))),
            ("inuse_objects", Kind::Column(column("inuse_objects"))),
            ("alloc_space", Kind::Column(column("alloc_space"))),
        ] {
            assert_eq!(first.sums[name], kind.figure(total), "{protocol} {name}");
            let unit = if name.ends_with("objects") {
                "count"
            } else {
                "bytes"
            };
            assert_eq!(first.units[name], unit, "{protocol} {name}");
        }
        let has = |name: &str| first.functions.iter().any(|f| f.contains(name));
        assert!(has("main") && has("malloc"), "{protocol}: {first:?}");
        assert!(first.files.iter().any(|f| f == "/opt/node"), "{first:?}");
        let dotted = protocol == "otlp";
        let of = |name: &str| match dotted {
            true => first.about[name].as_str(),
            false => first.about[&name.replace('.', "_")].as_str(),
        };
        assert_eq!(of("service.name"), "shop", "{protocol}");
        assert_eq!(of("deployment.environment.name"), "t\u{e9}st", "{protocol}");
        assert_eq!(of("process.pid"), "4711", "{protocol}");
        assert_eq!(of("process.executable.name"), "node", "{protocol}");
        assert!(!of("host.name").is_empty(), "{protocol}");
    }
}

#[test]
fn counts_from_the_start_are_pushed_as_differences() {
    for protocol in PROTOCOLS {
        let [first, second, third] =
            &pushed(protocol, &[heap(0, 100), heap(10, 250), heap(30, 250)])[..]
        else {
            panic!("three are expected");
        };
        // Of two stacks.
        assert_eq!(first.sums["alloc_space"], 200, "{protocol}");
        assert_eq!(second.sums["alloc_space"], 300, "{protocol}");
        assert_eq!(
            third.sums.get("alloc_space").copied().unwrap_or(0),
            0,
            "{protocol}"
        );
        for pushed in [first, second, third] {
            assert_eq!(pushed.sums["resident_space"], 44 << 10, "{protocol}");
            assert_eq!(pushed.sums["inuse_space"], 200, "{protocol}");
            // A store adds up what has a duration.
            assert_eq!(pushed.durations["resident_space"], 0, "{protocol}");
            assert_eq!(pushed.durations["inuse_space"], 0, "{protocol}");
        }
        let seconds = (second.durations["alloc_space"] as f64 / 1e9).round();
        assert_eq!(seconds, 10.0, "{protocol}");
    }
}
