//! All views of one stopped program agree with each other, with `/v1` and with the kernel.
//!
//! Needs root, `cc`, Linux 6.5, cargo's target directory on a file system with a page cache of its own,
//! and what the tests of the exports (`go`, `python3`) and of the page (`chromium`) need.

mod other_views;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop, wait_until};
use crate::common::reclaim::undisturbed;
use crate::common::terminal::Top;
use crate::common::workload::{Workload, program};
use crate::common::{Reply, exchange};
use memprof_sys::ids::Pid;
use memprof_sys::residency::cachestat::cachestat;
use memprof_sys::residency::{figures, page_size};

const MIB: u64 = 1 << 20;
const KINDS: [&str; 8] = [
    "all", "resident", "anon", "shmem", "cache", "file", "swap", "hugetlb",
];
/// The kinds of memory that mappings have.
const MAPPED: [&str; 5] = ["anon", "shmem", "file", "swap", "hugetlb"];

/// memprof, its target, and the summary, which several checks need.
struct Walk {
    m: Memprof,
    pid: Pid,
    summary: Value,
}

/// A number in a reply.
#[track_caller]
fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn column(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn rows(value: &Value) -> &[Value] {
    value["rows"].as_array().unwrap()
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Value>, key: &str) -> u64 {
    rows.into_iter().map(|row| number(&row[key])).sum()
}

fn get(m: &Memprof, path: &str) -> Value {
    let reply = m.get(path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.json()
}

fn mark(m: &Memprof, name: &str) -> String {
    let (address, body) = (m.address(), format!("{{\"name\":\"{name}\"}}"));
    let request = format!(
        "POST /v2/marks HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = Reply::parse(&exchange(address, request.as_bytes()));
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

impl Walk {
    fn get(&self, path: &str) -> Value {
        get(&self.m, path)
    }

    fn total(&self, kind: &str) -> u64 {
        number(&self.summary["total"][kind])
    }

    fn summary(&self) {
        let summary = &self.summary;
        let (status, rollup) = (
            figures::status(self.pid).unwrap(),
            figures::rollup(self.pid).unwrap(),
        );
        assert_eq!(self.total("resident"), status.rss_anon + status.rss_shmem);
        assert_eq!(self.total("anon"), rollup.anonymous);
        assert_eq!(self.total("file"), status.rss_file);
        assert_eq!(summary["agreement"]["verdict"], "equal");
        for side in ["before", "after"] {
            let kernel = &summary["kernel"][side];
            assert_eq!(number(&kernel["anonymous"]), rollup.anonymous);
            assert_eq!(number(&kernel["rss_shmem"]), status.rss_shmem);
        }
        for kind in KINDS {
            let reasons = summary["not_observed"].as_array().unwrap();
            let without: u64 = reasons.iter().map(|r| number(&r["bytes"][kind])).sum();
            let with = number(&summary["attributed"][kind]);
            assert_eq!(with + without, self.total(kind), "{kind}");
            assert_eq!(number(&summary["report"]["not_observed"][kind]), without);
        }
        let outcomes = summary["outcomes"].as_array().unwrap();
        assert_eq!(
            sum(outcomes, "bytes"),
            number(&summary["attributed"]["all"])
        );
    }

    fn trees(&self) {
        for kind in KINDS {
            for direction in ["callers", "callees"] {
                for rest in [
                    "",
                    "&merge=site",
                    "&inlined=true",
                    "&threshold=65536",
                    "&max_nodes=5",
                ] {
                    let path = format!("/v2/tree?kind={kind}&direction={direction}{rest}");
                    let tree = self.get(&path);
                    let (own, total) = (
                        column(&tree["nodes"]["self"]),
                        column(&tree["nodes"]["total"]),
                    );
                    assert_eq!(total[0], self.total(kind), "{path}");
                    assert_eq!(number(&tree["total"]), total[0], "{path}");
                    assert_eq!(own.iter().sum::<u64>(), total[0], "{path}");
                }
            }
        }
    }

    /// The functions, by name.
    fn functions(&self) {
        for kind in KINDS {
            let table = self.get(&format!("/v2/functions?kind={kind}&limit=10000"));
            let total: u64 = ["not_observed", "no_stack", "unmapped", "matched"]
                .iter()
                .map(|key| number(&table[*key]))
                .sum();
            assert_eq!(total, self.total(kind), "{kind}");
            assert_eq!(sum(rows(&table), "self"), number(&table["matched"]));
            assert_eq!(rows(&table).len() as u64, number(&table["count"]));
            // In the tree of callers, a function's self memory is at the first level.
            let tree = self.get(&format!("/v2/tree?kind={kind}"));
            let first = tops(&tree);
            for row in rows(&table).iter().filter(|row| number(&row["self"]) > 0) {
                let key = (row["function"].clone(), row["path"].clone());
                let found = first.iter().find(|(name, _)| *name == key).unwrap();
                assert_eq!(found.1, number(&row["self"]), "{row}");
            }
        }
    }

    fn files(&self, file: &std::path::Path) {
        let files = self.get("/v2/files?limit=10000");
        assert_eq!(number(&files["total"]), self.total("cache"));
        assert_eq!(
            number(&files["matched"]) + number(&files["other"]),
            self.total("cache")
        );
        assert_eq!(sum(rows(&files), "cached"), number(&files["matched"]));
        let path = file.to_str().unwrap();
        let found = rows(&files).iter().find(|row| row["path"] == path);
        let found = found.unwrap_or_else(|| panic!("{path} is not in {files}"));
        let stat = cachestat(File::open(file).unwrap().as_fd(), 0, 0).unwrap();
        assert_eq!(
            number(&found["cached"]),
            stat.nr_cache * page_size(),
            "{found}"
        );
        assert_eq!(found["path_from"], "maps");
        let id = found["id"].as_str().unwrap();
        let tree = self.get(&format!("/v2/files/stacks?file={id}&direction=callees"));
        assert_eq!(number(&tree["total"]), number(&found["cached"]));
        let strings = tree["strings"].as_array().unwrap();
        assert!(strings.contains(&"cmd_write".into()), "{tree}");
        let searched = self.get("/v2/files?search=*walked.dat");
        assert_eq!(number(&searched["count"]), 1);
    }

    fn maps(&self) {
        let maps = self.get("/v2/maps?limit=10000");
        for kind in MAPPED {
            assert_eq!(number(&maps["bytes"][kind]), self.total(kind), "{kind}");
        }
        // With and without a stack count the same memory as the totals.
        let attributed = number(&self.summary["attributed"]["resident"]);
        assert_eq!(sum(rows(&maps), "attributed"), attributed);
        let without = number(&self.summary["report"]["not_observed"]["resident"]);
        assert_eq!(sum(rows(&maps), "not_observed"), without);
        let groups = maps["categories"].as_array().unwrap();
        for key in ["size", "attributed", "not_observed", "huge"] {
            let sums = [sum(groups, key), sum(rows(&maps), key)];
            assert_eq!(sums, [number(&maps[key]); 2], "{key}");
        }
        for kind in MAPPED {
            let of = |row: &Value| number(&row["bytes"][kind]);
            assert_eq!(groups.iter().map(of).sum::<u64>(), self.total(kind));
        }
        assert_eq!(sum(groups, "mappings"), number(&maps["count"]));
        let kernel = smaps(self.pid);
        assert_eq!(rows(&maps).len(), kernel.len());
        for row in rows(&maps) {
            let figures = &kernel[row["start"].as_str().unwrap()];
            let figure = |key: &str| figures.get(key).copied().unwrap_or(0);
            assert_eq!(number(&row["size"]), figure("Size"), "{row}");
            assert_eq!(number(&row["bytes"]["anon"]), figure("Anonymous"), "{row}");
            assert_eq!(number(&row["bytes"]["swap"]), figure("Swap"), "{row}");
        }
    }

    fn metrics(&self) {
        let reply = self.m.get("/metrics");
        let text = reply.text();
        for (row, bytes) in [
            ("memprof_resident_bytes{kind=\"anon\"}", self.total("anon")),
            (
                "memprof_resident_bytes{kind=\"shmem\"}",
                self.total("shmem"),
            ),
            ("memprof_page_cache_bytes", self.total("cache")),
            ("memprof_swapped_bytes", self.total("swap")),
        ] {
            let line = format!("{row} {bytes}");
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let functions = text
            .lines()
            .filter(|l| l.starts_with("memprof_function_self_bytes{"));
        assert_eq!(functions.count(), 3);
    }

    fn health(&self) {
        let health = self.get("/v2/health");
        assert_eq!(health["losses"], self.summary["report"]["losses"]);
        assert_eq!(health["outcomes"], self.summary["outcomes"]);
        assert!(number(&health["own"]["rss"]) > 0);
        for map in health["maps"].as_array().unwrap() {
            assert!(number(&map["entries"]) <= number(&map["capacity"]), "{map}");
        }
        let entries = |name: &str| {
            let maps = health["maps"].as_array().unwrap();
            number(&maps.iter().find(|m| m["name"] == name).unwrap()["entries"])
        };
        assert!(entries("pages") > 0 && entries("stacks") > 0 && entries("cache") > 0);
    }

    /// Samples of the stopped program equal its status.
    fn series(&self, stopped: u64) {
        let status = figures::status(self.pid).unwrap();
        let attributed = number(&self.summary["attributed"]["all"]);
        wait_until(|| {
            let series = self.get(&format!("/v2/series?since={}", stopped + 2_000));
            let last = |name: &str| {
                let all = series["series"].as_array().unwrap();
                let values = &all.iter().find(|s| s["name"] == name).unwrap()["values"];
                values.as_array().unwrap().last().and_then(Value::as_u64)
            };
            let figures = ["rss_anon", "rss_shmem", "cache", "attributed"].map(last);
            // A moment without a report has the kernel's figures alone.
            if figures.contains(&None) {
                return false;
            }
            let cache = self.total("cache");
            let expected = [status.rss_anon, status.rss_shmem, cache, attributed];
            assert_eq!(figures, expected.map(Some));
            true
        });
    }
}

/// Nodes of functions right below the root: (function, path of its file) and bytes.
fn tops(tree: &Value) -> Vec<((Value, Value), u64)> {
    let (nodes, frames) = (&tree["nodes"], &tree["frames"]);
    let parents = nodes["parent"].as_array().unwrap();
    let of_root = (0..parents.len()).filter(|at| parents[*at] == 0);
    let top = of_root.filter_map(|at| {
        let frame = number(&nodes["frame"][at]) as usize;
        let module = frames["module"][frame].as_u64()? as usize;
        let name = frames["name"][frame].as_u64();
        let name = name.map_or(Value::Null, |name| tree["strings"][name as usize].clone());
        let path = tree["modules"][module]["path"].clone();
        Some(((name, path), number(&nodes["total"][at])))
    });
    top.collect()
}

/// The figures of `/proc/PID/smaps`, in bytes, by the mapping's first address.
fn smaps(pid: Pid) -> HashMap<String, HashMap<String, u64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut found = HashMap::new();
    let mut at = String::new();
    for line in text.lines() {
        let (key, rest) = line.split_once(|c: char| c.is_whitespace()).unwrap();
        if let Some(key) = key.strip_suffix(':') {
            let kib = rest
                .trim()
                .strip_suffix(" kB")
                .and_then(|n| n.parse::<u64>().ok());
            let of: &mut HashMap<_, _> = found.entry(at.clone()).or_default();
            kib.map(|kib| of.insert(key.to_owned(), kib << 10));
        } else {
            let start = key.split('-').next().unwrap();
            // memprof writes numbers without leading zeros.
            at = start.trim_start_matches('0').to_owned();
        }
    }
    found
}

fn now() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    since.as_millis() as u64
}

#[test]
fn every_view_shows_the_same_numbers() {
    undisturbed(walk);
}

fn walk() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir_path = dir.path().canonicalize().unwrap();
    let file = dir_path.join("walked.dat");
    let mut target = Workload::start(&program("scenarios"));
    // Memory that was allocated before the attach.
    target.lines.tell("mmap 3145728");
    let pid = target.pid();
    let m = Memprof::attach(pid, &["--metrics-functions", "3"]);
    m.said("following ");
    // Another memprof, which must see the same.
    let mut top = Top::start(&["--no-server", "--pid", &pid.to_string()]);
    top.shows("= kernel");
    for command in [
        "malloc_small 20000",
        "shared_anon 1048576",
        &format!("write {} 2097152", file.display()),
        &format!("fsync {}", file.display()),
        &format!("mapfile {}", file.display()),
        "thp 4194304",
    ] {
        target.lines.tell(command);
    }
    stop(pid);
    let before = mark(&m, "before");
    cont(pid);
    target.lines.tell("mmap 5242880");
    stop(pid);
    let stopped = now();
    let summary = get(&m, "/v2/summary");
    let walk = Walk { m, pid, summary };
    walk.summary();
    walk.trees();
    walk.functions();
    walk.files(&file);
    walk.maps();
    walk.metrics();
    walk.health();
    walk.series(stopped);
    difference(&walk, &before);
    walk.v1();
    walk.exports();
    walk.events();
    walk.breakdown();
    walk.terminal(&mut top);
    walk.page(&before);
    cont(pid);
    drop(walk);
    target.end();
}

/// The difference since the mark equals what the program touched.
fn difference(walk: &Walk, from: &str) {
    let to = mark(&walk.m, "after");
    for to in ["now", &to] {
        for direction in ["callers", "callees"] {
            let path = format!("/v2/diff?from={from}&to={to}&kind=anon&direction={direction}");
            let tree = walk.get(&path);
            assert_eq!(number(&tree["to"]["total"]), walk.total("anon"));
            let nodes = &tree["nodes"];
            for (own, side) in [("self_from", "from"), ("self_to", "to")] {
                let sum: u64 = column(&nodes[own]).iter().sum();
                assert_eq!(sum, number(&tree[side]["total"]), "{path} {side}");
                assert_eq!(sum, column(&nodes[side])[0], "{path} {side}");
            }
        }
        let path = format!("/v2/diff?from={from}&to={to}&kind=anon&by=function&search=cmd_mmap");
        let table = walk.get(&path);
        let [row] = rows(&table) else {
            panic!("{table}");
        };
        assert_eq!(row["self"].as_u64(), Some(5 * MIB), "{row}");
        assert_eq!(row["total"].as_u64(), Some(5 * MIB), "{row}");
    }
}
