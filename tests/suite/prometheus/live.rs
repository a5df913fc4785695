//! A Prometheus that scrapes memprof while that follows programs.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually, wait_until};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::prometheus::{Prometheus, configuration, deploy, get, has};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const MIB: u64 = 1 << 20;
const MAX_MEMORY: u64 = 96 * MIB;

/// A token file and a directory for Prometheus.
struct TokenDirectory {
    dir: tempfile::TempDir,
    token: PathBuf,
}

impl TokenDirectory {
    fn new() -> TokenDirectory {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        TokenDirectory { dir, token }
    }

    fn memprof(&self, args: &[&str]) -> Memprof {
        let token = self.token.to_str().unwrap();
        Memprof::start(&[&["--token-file", token], args].concat())
    }

    fn prometheus(&self, targets: &[SocketAddr]) -> Prometheus {
        let file = configuration(self.dir.path(), targets, &self.token);
        Prometheus::start(self.dir.path(), &file)
    }
}

#[track_caller]
fn asked(m: &Memprof, path: &str) -> Value {
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let reply = get(m.address(), path, &token);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.json()
}

/// A group with a limit, and a workload in it.
fn limited() -> Option<(Group, Workload)> {
    let (group, version) = Group::new_where_memory_is_limited()?;
    let (limit, swap) = match version {
        1 => ("memory.limit_in_bytes", "memory.swappiness"),
        _ => ("memory.max", "memory.swap.max"),
    };
    fs::write(group.dir.join(limit), MAX_MEMORY.to_string()).unwrap();
    // There may be no swap.
    let _ = fs::write(group.dir.join(swap), "0");
    let workload = start_in(&group.dir);
    Some((group, workload))
}

fn start_in(group: &Path) -> Workload {
    let (procs, program) = (group.join("cgroup.procs"), program("scenarios"));
    let script = format!(
        "echo $$ > {} && exec {}",
        procs.display(),
        program.display()
    );
    let mut workload = Workload::start_with(Path::new("/bin/sh"), &["-c", &script]);
    workload.lines.tell("mmap 4096");
    workload
}

/// Waits until Prometheus has a report that was made after this request.
fn wait_for_scrape(prometheus: &Prometheus, m: &Memprof) {
    let taken = asked(m, "/v2/summary")["report"]["taken"].as_f64().unwrap() / 1000.0;
    let newest = format!(
        "memprof_report_timestamp_seconds{{instance=\"{}\"}}",
        m.address()
    );
    wait_until(|| {
        prometheus
            .query(&newest)
            .first()
            .is_some_and(|(_, at)| *at >= taken)
    });
}

/// The series that follow from a summary, with their values.
fn series_of(summary: &Value) -> Vec<(String, &Value)> {
    let mut wanted = Vec::new();
    let total = &summary["total"];
    for kind in ["anon", "shmem", "file", "hugetlb"] {
        wanted.push((
            format!("memprof_resident_bytes{{kind=\"{kind}\"}}"),
            &total[kind],
        ));
    }
    wanted.push(("memprof_swapped_bytes".to_owned(), &total["swap"]));
    wanted.push(("memprof_page_cache_bytes".to_owned(), &total["cache"]));
    for kind in ["anon", "shmem", "cache", "file"] {
        let attributed = format!("memprof_attributed_bytes{{kind=\"{kind}\"}}");
        wanted.push((attributed, &summary["attributed"][kind]));
        for row in summary["not_observed"].as_array().unwrap() {
            let reason = row["reason"].as_str().unwrap();
            let without =
                format!("memprof_not_observed_bytes{{kind=\"{kind}\",reason=\"{reason}\"}}");
            wanted.push((without, &row["bytes"][kind]));
        }
    }
    for read in ["before", "after"] {
        for (name, value) in summary["kernel"][read].as_object().unwrap() {
            // The metrics have the kernel's own names.
            let figure = match name.as_str() {
                "anonymous" => "smaps_rollup_anonymous",
                "swap" => "vm_swap",
                "page_tables" => "vm_pte",
                name => name,
            };
            if !value.is_null() {
                let figure = format!("memprof_kernel_bytes{{figure=\"{figure}\",read=\"{read}\"}}");
                wanted.push((figure, value));
            }
        }
    }
    for row in summary["outcomes"].as_array().unwrap() {
        let outcome = row["outcome"].as_str().unwrap();
        wanted.push((
            format!("memprof_stacks{{outcome=\"{outcome}\"}}"),
            &row["stacks"],
        ));
    }
    wanted
}

#[test]
fn prometheus_has_the_figures_of_the_summary() {
    if !has("prometheus") {
        return;
    }
    let place = TokenDirectory::new();
    let mut workload = Workload::start(&program("scenarios"));
    let m = place.memprof(&["--pid", &workload.pid().to_string()]);
    m.said("following ");
    let prometheus = place.prometheus(&[m.address()]);
    workload.lines.tell(&format!("mmap {}", 24 * MIB));
    workload.lines.tell(&format!("memfd {}", 4 * MIB));
    wait_for_scrape(&prometheus, &m);
    let summary = asked(&m, "/v2/summary");
    assert_eq!(summary["agreement"]["verdict"], "equal", "{summary}");
    assert!(summary["attributed"]["anon"].as_u64().unwrap() >= 24 * MIB);
    let series = series_of(&summary);
    assert!(series.len() > 20, "{series:?}");
    for (series, wanted) in series {
        assert_eq!(
            prometheus.value(&series),
            wanted.as_f64().unwrap(),
            "{series}: {summary}"
        );
    }
    for (series, wanted) in [
        ("memprof_target_up", 1.0),
        ("memprof_target_processes", 1.0),
        ("memprof_report_complete", 1.0),
        ("memprof_kernel_difference_bytes", 0.0),
    ] {
        assert_eq!(prometheus.value(series), wanted, "{series}");
    }
    let resident = summary["agreement"]["resident"].as_f64().unwrap();
    wait_until(|| !prometheus.query("memprof:resident_bytes").is_empty());
    wait_until(|| prometheus.value("memprof:resident_bytes") == resident);
    assert_eq!(prometheus.query("ALERTS"), []);
    // Without the token it gets nothing.
    fs::write(&place.token, "another-token-of-0123456789").unwrap();
    wait_until(|| prometheus.value("up") == 0.0);
    m.interrupt();
    workload.end();
}

/// The expressions of the dashboard, with whether their panel says that they are conditional.
fn expressions() -> Vec<(String, bool)> {
    let text = fs::read_to_string(deploy("memprof-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let conditional = panel["description"]
            .as_str()
            .is_some_and(|d| d.starts_with("Only "));
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((target["expr"].as_str().unwrap().to_owned(), conditional));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        all.push((annotation["expr"].as_str().unwrap().to_owned(), true));
    }
    all
}

/// What not even the memprof with all options has: nothing is lost, nobody was killed yet, nothing is sampled.
const RARE: [&str; 3] = [
    "increase(memprof_losses_total{",
    "increase(memprof_cgroup_oom_kills_total{job=~\"$job\", instance=~\"$instance\"}[2m]) > 0 or increase(memprof_oom_kills_total{job=~\"$job\", instance=~\"$instance\"}[2m]) > 0",
    "memprof_standard_error{",
];

/// What there is only once ten moments are recorded; tests/suite/recording.rs asks for it.
const LATE: [&str; 2] = [
    "memprof_growth_bytes_per_second{",
    "memprof_function_growth_bytes_per_second{",
];

/// Every expression of the dashboard, asked about a memprof with all options and about one with none.
#[test]
fn the_dashboard_shows_something_everywhere() {
    if !has("prometheus") {
        return;
    }
    let Some((group, mut workload)) = limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    let place = TokenDirectory::new();
    // Nobody takes the profiles.
    let all = [
        "--metrics-functions",
        "3",
        "--heap",
        "--kernel",
        "--push",
        "otlp+http://127.0.0.1:1",
    ];
    let dir = group.dir.display().to_string();
    let full = place.memprof(&[&["--cgroup", &dir], &all[..]].concat());
    let plain = place.memprof(&["--pid", &workload.pid().to_string()]);
    for m in [&full, &plain] {
        m.said("following ");
    }
    let prometheus = place.prometheus(&[full.address(), plain.address()]);
    workload.lines.tell(&format!("mmap {}", 16 * MIB));
    wait_for_scrape(&prometheus, &full);
    wait_for_scrape(&prometheus, &plain);
    let ask = |expression: &str, m: &Memprof, wanted: bool| {
        let asked = expression.replace("$job", "memprof");
        let asked = asked.replace("$instance", &m.address().to_string());
        let asked = asked.replace("$__rate_interval", "1m");
        assert!(!asked.contains('$'), "{asked}");
        match wanted {
            // Rates need two scrapes.
            true => eventually(LIMIT, &asked, || !prometheus.query(&asked).is_empty()),
            false => assert_eq!(prometheus.query(&asked), [], "{asked}"),
        }
    };
    let expressions = expressions();
    assert!(expressions.len() > 30, "{}", expressions.len());
    for (expression, conditional) in expressions {
        if LATE.iter().any(|late| expression.starts_with(late)) {
            assert!(conditional, "{expression}");
            continue;
        }
        let rare = RARE.iter().any(|rare| expression.starts_with(rare));
        assert!(!rare || conditional, "{expression}");
        ask(&expression, &full, !rare);
        // Both have stacks.
        let stacks = expression.starts_with("memprof_stacks{");
        ask(&expression, &plain, !conditional || stacks);
    }
    let cgroup = asked(&full, "/v2/cgroup")["cgroup"].clone();
    assert_eq!(cgroup["limit"], MAX_MEMORY, "{cgroup}");
    assert_eq!(
        prometheus.value("memprof_cgroup_limit_bytes"),
        MAX_MEMORY as f64
    );
    // One process more than there is memory for. It is killed, as it has most.
    let mut second = start_in(&group.dir);
    second.lines.send(&format!("mmap {}", 2 * MAX_MEMORY));
    let status = second.child.0.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    wait_until(|| prometheus.value("memprof_cgroup_oom_kills_total") == 1.0);
    assert_eq!(asked(&full, "/v2/cgroup")["cgroup"]["oom_kills"], 1);
    let firing = "ALERTS{alertname=\"MemprofOomKill\", alertstate=\"firing\"}";
    wait_until(|| !prometheus.query(firing).is_empty());
    full.interrupt();
    plain.interrupt();
    workload.end();
}
