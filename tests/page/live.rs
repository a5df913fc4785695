//! The page of a real memprof that profiles a real program.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::common::memprof::Memprof;
use super::common::process::{cont, stop};
use super::common::workload::{Lines, program};
use crate::common::browser::{Browser, PATIENCE};
use crate::common::contents::*;
use memprof_sys::ids::Pid;

pub const MIB: u64 = 1 << 20;

/// A stopped program with memory of every kind.
pub struct Run {
    pub m: Memprof,
    lines: Lines,
    target: Pid,
    pub dir: tempfile::TempDir,
}

impl Run {
    pub fn start() -> Run {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = program("scenarios");
        let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
        lines.tell(&format!("malloc_large {}", 8 * MIB));
        lines.tell(&format!("mmap {}", 4 * MIB));
        lines.tell(&format!("shared_anon {}", 2 * MIB));
        lines.tell(&format!("write {}/data {MIB}", dir.path().display()));
        let target = m.followed();
        stop(target);
        Run {
            m,
            lines,
            target,
            dir,
        }
    }

    /// A program, and a browser that shows this view of it.
    pub fn shown(link: &str) -> (Run, Browser) {
        let run = Run::start();
        let browser = Browser::start(run.m.address());
        browser.open(link);
        (run, browser)
    }

    pub fn api(&self, path: &str) -> Value {
        api(self.m.address(), path)
    }

    /// Runs a command in the program, and stops it again.
    pub fn tell(&mut self, command: &str) {
        cont(self.target);
        self.lines.tell(command);
        stop(self.target);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        cont(self.target);
    }
}

#[test]
fn totals() {
    let (run, browser) = Run::shown("#view=flame");
    let mut summary = run.api("/v2/summary");
    for kind in ["resident", "anon", "shmem", "cache"] {
        let amount = format!("#totals [data-kind={kind}] dd");
        // The kernel may drop page cache even of a stopped program.
        let start = Instant::now();
        while Some(browser.figure(&amount, "data-bytes")) != summary["total"][kind].as_u64() {
            assert!(start.elapsed() < PATIENCE, "{kind}: {summary}");
            std::thread::sleep(Duration::from_millis(50));
            summary = run.api("/v2/summary");
        }
        must_mean(
            &browser.text(&amount),
            browser.figure(&amount, "data-bytes"),
        );
    }
    let verdict = summary["agreement"]["verdict"].as_str().unwrap();
    let shown = browser.eval("document.getElementById('sum').dataset.verdict");
    assert_eq!(shown, verdict);
    let green = browser.eval("document.getElementById('sum').classList.contains('good')");
    assert_eq!(green, verdict == "equal");
    let target = browser.text("#target");
    assert!(
        target.contains(&format!("(pid {})", run.target.0)),
        "{target}"
    );
    browser.wait("/^as of [\\d:]{8}$/.test(document.getElementById('taken').textContent)");
    let lost = summary["report"]["losses"].as_array().unwrap().is_empty();
    assert_eq!(browser.text("#losses") == "nothing lost", lost);
    browser.must_be_quiet();
}

#[test]
fn graphs() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    let graphs = ["", "#shape=flame", "#view=treemap", "#view=tree"];
    for (graph, direction) in graphs.iter().flat_map(|g| [(g, "callees"), (g, "callers")]) {
        let joint = if graph.is_empty() { "#" } else { "&" };
        browser.open(&format!("{graph}{joint}dir={direction}&kind=anon"));
        let tree = run.api(&format!("/v2/tree?kind=anon&direction={direction}"));
        let total = tree["total"].as_u64().unwrap();
        assert_eq!(browser.figure("#selection", "data-bytes"), total, "{graph}");
        must_mean(&browser.text("#selection .fact b"), total);
    }
    // The search finds as many bytes as the API.
    browser.open("#q=cmd_malloc_large&kind=anon");
    let found = run.api("/v2/tree?kind=anon&search=cmd_malloc_large")["matched"].clone();
    let matched = browser.figure("#matched", "data-bytes");
    assert_eq!(Some(matched), found.as_u64());
    assert!(matched >= 8 * MIB, "{matched}");
    browser.must_be_quiet();
}

#[test]
fn functions() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    for (sort, api) in [
        ("-self", "sort=self"),
        ("-total", "sort=total"),
        ("name", "sort=name"),
    ] {
        browser.open(&format!("#view=functions&sort={sort}&kind=resident"));
        let table = run.api(&format!("/v2/functions?kind=resident&{api}"));
        assert_eq!(
            browser.figure(".note", "data-total"),
            table["total"].as_u64().unwrap()
        );
        let count = table["count"].as_u64().unwrap();
        assert_eq!(browser.figure(".note", "data-count"), count);
        let row = &table["rows"][0];
        let cell = |n: usize| browser.text(&format!(".rows .row:first-child > :nth-child({n})"));
        let name = cell(4);
        assert!(
            row["function"].is_null() || row["function"] == name,
            "{row}: {name}"
        );
        for (at, column) in [(1, "self"), (2, "total")] {
            must_mean(&cell(at), row[column].as_u64().unwrap());
        }
    }
    browser.open("#view=functions&q=cmd_");
    let count = run.api("/v2/functions?search=cmd_")["count"]
        .as_u64()
        .unwrap();
    assert_eq!(browser.figure(".note", "data-count"), count);
    // A click on a function shows it in the graph.
    browser.click(".rows .row:first-child");
    browser.wait("location.hash.includes('fn=cmd_') && document.querySelector('canvas.flame')");
    browser.wait("document.getElementById('matched').dataset.bytes > 0");
    browser.must_be_quiet();
}

#[test]
fn refreshing_moves_nothing() {
    let (mut run, browser) = Run::shown("#kind=anon");
    browser.eval("document.querySelector('canvas.flame').focus()");
    // Moves down to the largest child a few times, and zooms in.
    browser.press(&DOWN.repeat(4));
    browser.press(ENTER);
    browser.wait("location.hash.includes('zoom=')");
    let (link, name) = (browser.link(), browser.text("#selection .name"));
    let before = browser.figure("#totals [data-kind=anon] dd", "data-bytes");
    run.tell(&format!("mmap {}", 16 * MIB));
    browser.wait(&format!(
        "document.querySelector('#totals [data-kind=anon] dd').dataset.bytes >= {}",
        before + 16 * MIB
    ));
    // The graph is updated with the totals.
    browser.wait("Number(document.querySelector('#selection').dataset.bytes) > 0");
    assert_eq!(
        (browser.link(), browser.text("#selection .name")),
        (link.clone(), name.clone())
    );
    // The link restores the view.
    browser.open(&link);
    assert_eq!(
        (browser.link(), browser.text("#selection .name")),
        (link, name)
    );
    // While paused, nothing changes.
    browser.press("p");
    browser.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'");
    browser.must_be_quiet();
}

/// The totals and the view change together, so that they never show two moments.
#[test]
fn the_totals_are_those_of_the_view() {
    let (mut run, browser) = Run::shown("#view=flame");
    let script = "window.changes = new Set(); window.different = [];
        const bytes = (selector) => Number(document.querySelector(selector).dataset.bytes);
        setInterval(() => {
            const header = bytes('#totals [data-kind=resident] dd') + bytes('#totals [data-kind=cache] dd');
            const view = bytes('#selection');
            changes.add(view);
            if (header !== view) different.push([header, view]);
        }, 10);";
    browser.run(script, serde_json::json!([]));
    for changes in 2..4 {
        run.tell(&format!("mmap {}", 3 * MIB));
        browser.wait(&format!("changes.size >= {changes}"));
    }
    assert_eq!(browser.eval("different"), serde_json::json!([]));
    browser.must_be_quiet();
}

#[test]
fn a_new_mark_is_what_the_difference_begins_with() {
    let (run, browser) = Run::shown("#view=flame");
    browser.press("m");
    browser.wait("location.hash.includes('from=')");
    let id = run.api("/v2/marks")["marks"][0]["id"].clone();
    browser.run(
        "[...document.querySelectorAll('.tabs a')].find((a) => a.textContent === 'Change').click()",
        serde_json::json!([]),
    );
    browser.wait("document.querySelector('.diff-stage #selection')?.dataset.bytes");
    assert_eq!(
        browser.eval("document.querySelector('.choice select').value"),
        id
    );
    // A link without a mark begins with the newest one, too.
    browser.open("#view=diff");
    browser.wait("document.querySelector('.diff-stage #selection')?.dataset.bytes");
    assert_eq!(
        browser.eval("document.querySelector('.choice select').value"),
        id
    );
    browser.must_be_quiet();
}

#[test]
fn an_end_is_shown() {
    let (mut run, browser) = Run::shown("#view=flame");
    cont(run.target);
    run.lines.send("exit 0");
    browser.wait(
        "/ended/.test(document.getElementById('alive').textContent) \
         || !document.getElementById('banner').hidden",
    );
    // The last view stays.
    assert!(browser.figure("#selection", "data-bytes") >= 8 * MIB);
    assert!(run.dir.path().is_dir());
}

#[test]
fn a_lost_connection_is_shown() {
    let (mut run, browser) = Run::shown("#view=flame");
    run.m.child.kill().unwrap();
    browser.wait("!document.getElementById('banner').hidden");
    assert_eq!(browser.text("#connection"), "no connection");
    assert!(browser.figure("#selection", "data-bytes") >= 8 * MIB);
}
