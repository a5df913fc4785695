//! Page cache by file, address space, difference, health and exports of a real program.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::memprof::Memprof;
use super::common::process::{cont, stop};
use super::common::workload::{Workload, program};
use super::live::{MIB, Run};
use crate::common::browser::{Browser, PATIENCE};
use crate::common::contents::*;

/// Waits until a table has the number of rows that the API returns.
#[track_caller]
fn must_have_rows(browser: &Browser, count: impl Fn() -> Value) {
    until(|| browser.figure(".table", "aria-rowcount") == count().as_u64().unwrap() + 1);
}

/// The title of a cell in the row that contains this text. It has the exact number of bytes.
#[track_caller]
fn title(browser: &Browser, text: &str, cell: usize) -> String {
    let script = "const row = [...document.querySelectorAll('.rows .row')]
            .find((row) => row.textContent.includes(arguments[0]));
        return row?.children[arguments[1]].title ?? 'no such row'";
    browser
        .run(script, json!([text, cell]))
        .as_str()
        .unwrap()
        .to_owned()
}

fn in_full(bytes: &Value) -> String {
    let digits = bytes.as_u64().unwrap().to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|g| std::str::from_utf8(g).unwrap())
        .collect();
    format!("{} bytes", groups.join(","))
}

/// The row of a file.
fn file(files: &Value, inode: u64) -> &Value {
    let rows = files["rows"].as_array().unwrap();
    rows.iter().find(|row| row["inode"] == inode).unwrap()
}

#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn files() {
    let (run, browser) = Run::shown("#view=files");
    let controls = "document.querySelectorAll('#controls select').length";
    assert_eq!(
        browser.eval(controls),
        0,
        "a list has no selection of shapes"
    );
    // The kernel may drop page cache even of a stopped program.
    let files = || run.api("/v2/files?limit=10000");
    must_have_rows(&browser, || files()["count"].clone());
    let path = run.dir.path().join("data");
    let inode = std::fs::metadata(&path).unwrap().ino();
    // A file that is no longer open has an inode, but no path.
    let shown = match file(&files(), inode)["path"].as_str() {
        Some(_) => path.display().to_string(),
        None => format!("[file {inode} on device"),
    };
    let cached = || file(&files(), inode)["cached"].clone();
    until(|| title(&browser, &shown, 0) == in_full(&cached()));
    // The stacks of a file hold as much as the file.
    let click = "[...document.querySelectorAll('.rows .row')]
        .find((row) => row.textContent.includes(arguments[0])).click()";
    browser.run(click, json!([shown]));
    browser.wait(
        "location.hash.includes('file=') && document.querySelector('#selection')?.dataset.bytes",
    );
    until(|| Some(browser.figure("#selection", "data-bytes")) == cached().as_u64());
    assert!(browser.eval(controls).as_u64().unwrap() > 2);
    assert!(browser.text(".sub").contains(&shown));
    // The header shows the target, not the file.
    for kind in ["resident", "anon"] {
        let amount = format!("#totals [data-kind={kind}] dd");
        let wanted = run.api("/v2/summary")["total"][kind].as_u64();
        until(|| Some(browser.figure(&amount, "data-bytes")) == wanted);
    }
    // On a phone, too, the last part of a path can be read.
    browser.size(390, 844);
    browser.open("#view=files");
    let cut = "[...document.querySelectorAll('.rows .path > :last-child')].filter((e) => !e.textContent.startsWith('[') && e.scrollWidth > e.clientWidth).map((e) => e.textContent)";
    assert_eq!(browser.eval(cut), json!([]));
    assert_ne!(
        browser.eval("document.querySelectorAll('.rows .path').length"),
        0
    );
    browser.must_be_quiet();
}

#[test]
fn address_space() {
    let (run, browser) = Run::shown("#view=space&sort=-size&group=none");
    let maps = run.api("/v2/maps?sort=size&limit=10000");
    must_have_rows(&browser, || maps["count"].clone());
    let largest = &maps["rows"][0];
    let text = |key: &str| largest[key].as_str().unwrap();
    // First address and end.
    let addresses = format!("{}–{}", text("start"), text("end"));
    for (cell, bytes) in [
        (2, "size"),
        (3, "attributed"),
        (4, "not_observed"),
        (6, "huge"),
    ] {
        assert_eq!(
            title(&browser, &addresses, cell),
            in_full(&largest[bytes]),
            "{bytes}"
        );
    }
    browser.must_be_quiet();
}

/// The rows of the open table: level, first cell, and the titles of all others but the last two.
fn groups(browser: &Browser) -> Vec<(u64, String, Vec<String>)> {
    let script = "return [...document.querySelectorAll('.rows .row')].map((row) =>
        [Number(row.getAttribute('aria-level')), row.children[0].innerText.replace(/\\s+/g, ' ').trim(),
         [...row.children].slice(1, 7).map((cell) => cell.title)])";
    serde_json::from_value(browser.run(script, json!([]))).unwrap()
}

#[test]
fn the_address_space_in_groups() {
    let (run, browser) = Run::shown("#view=space");
    let maps = run.api("/v2/maps?limit=10000");
    let categories = maps["categories"].as_array().unwrap();
    until(|| groups(&browser).len() == categories.len());
    let mut shown: Vec<Vec<String>> = groups(&browser)
        .into_iter()
        .map(|(_, _, cells)| cells)
        .collect();
    let figures = |row: &Value| {
        let resident =
            ["anon", "shmem", "file", "hugetlb"].map(|kind| row["bytes"][kind].as_u64().unwrap());
        let swap = &row["bytes"]["swap"];
        let resident = json!(resident.iter().sum::<u64>());
        let all = [
            &resident,
            &row["size"],
            &row["attributed"],
            &row["not_observed"],
            swap,
            &row["huge"],
        ];
        all.map(in_full).to_vec()
    };
    let mut wanted: Vec<_> = categories.iter().map(figures).collect();
    shown.sort();
    wanted.sort();
    assert_eq!(shown, wanted);
    let names: Vec<String> = groups(&browser)
        .into_iter()
        .map(|(_, name, _)| name)
        .collect();
    let has = |name: &str| names.iter().any(|shown| shown.contains(name));
    for name in [
        "heap",
        "stack of the main thread",
        "shared libraries",
        "the program's own file",
    ] {
        assert!(has(name), "{name}: {names:?}");
    }
    assert!(!has("[anon]"), "{names:?}");

    // A group opens and closes, by a click and by the keyboard.
    let libraries = |row: &&Value| row["category"] == "library";
    let inside = maps["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(libraries)
        .count();
    let row = "[...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('shared libraries'))";
    browser.eval(&format!("{row}.click()"));
    until(|| {
        groups(&browser)
            .iter()
            .filter(|(level, ..)| *level == 2)
            .count()
            == inside
    });
    assert_eq!(
        browser.eval(&format!("{row}.getAttribute('aria-expanded')")),
        "true"
    );
    browser.eval("document.querySelector('.table').focus()");
    browser.press("\u{e012}");
    until(|| groups(&browser).len() == categories.len());

    // By file, each file is one row, with the same sums.
    browser.open("#view=space&group=file");
    let is_file = |row: &&Value| row["name"].as_str().unwrap().contains("libc.so");
    let rows: Vec<&Value> = maps["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_file)
        .collect();
    let sum: u64 = rows.iter().map(|row| row["size"].as_u64().unwrap()).sum();
    let libc = || {
        groups(&browser)
            .into_iter()
            .find(|(_, name, _)| name.contains("libc.so"))
    };
    until(|| libc().is_some());
    let (_, name, cells) = libc().unwrap();
    assert!(name.ends_with(&format!(" {}", rows.len())), "{name}");
    assert_eq!(cells[1], in_full(&json!(sum)));
    browser.must_be_quiet();
}

/// The header and the address space count the same memory without a stack.
#[test]
fn memory_without_a_stack() {
    let mut workload = Workload::start(&program("scenarios"));
    workload.lines.tell(&format!("malloc_large {}", 8 * MIB));
    stop(workload.pid());
    let m = Memprof::attach(workload.pid(), &[]);
    let browser = Browser::start(m.address());
    browser.open("#view=space");
    let header = browser.text("#unseen");
    let without = header.strip_suffix(" without a stack").unwrap();
    assert!(without.ends_with("MiB"), "{header}");
    let note = browser.text(".note");
    assert!(
        note.ends_with(&format!(" {without} without a stack.")),
        "{header}: {note}"
    );
    browser.must_be_quiet();
    cont(workload.pid());
    workload.end();
}

#[test]
fn difference() {
    let (mut run, browser) = Run::shown("#view=diff&kind=anon");
    browser.click("#mark");
    // The new mark is in the list, and selected.
    browser.wait(
        "document.querySelector('.choice select')?.selectedOptions[0].text.startsWith('mark at')",
    );
    let id = run.api("/v2/marks")["marks"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    run.tell(&format!("mmap {}", 6 * MIB));
    browser.open(&format!("#view=diff&kind=anon&from={id}"));
    browser.wait("document.querySelector('#selection')?.dataset.bytes");
    let diff = run.api(&format!("/v2/diff?from={id}&kind=anon&direction=callees"));
    let (from, to) = (&diff["nodes"]["from"][0], &diff["nodes"]["to"][0]);
    assert!(
        to.as_u64().unwrap() >= from.as_u64().unwrap() + 6 * MIB,
        "{from} {to}"
    );
    browser.wait(&format!(
        "document.querySelector('#selection').dataset.bytes === '{to}'"
    ));
    let fact = |n: usize| {
        let title = format!("document.querySelector('#selection .fact:nth-child({n})').title");
        browser.eval(&title).as_str().unwrap().to_owned()
    };
    let change = to.as_u64().unwrap() - from.as_u64().unwrap();
    assert_eq!(fact(1), in_full(&json!(change)));
    // By function, the largest change first.
    let rows = run.api(&format!(
        "/v2/diff?from={id}&kind=anon&by=function&sort=self&order=desc"
    ));
    let most = &rows["rows"][0];
    let name = most["function"].as_str().unwrap();
    assert!(
        most["self"].as_i64().unwrap() >= (6 * MIB).cast_signed(),
        "{most}"
    );
    assert_eq!(title(&browser, name, 4), in_full(&most["self_to"]));
    // The exported file contains the difference, if the format can hold one.
    browser.click("#export");
    let held = "[...document.querySelectorAll('#exports a')]
        .filter((a) => a.search.includes('from=')).map((a) => a.textContent)";
    browser.wait(&format!("({held}).length > 0"));
    let formats = run.api("/v2/exports");
    let formats = formats.as_array().unwrap().iter();
    let can = |f: &&Value| f["options"].as_array().unwrap().contains(&json!("from"));
    let names: Vec<Value> = formats.filter(can).map(|f| f["name"].clone()).collect();
    assert_eq!(browser.eval(held), json!(names));
    for link in links(&browser) {
        assert!(link.contains("to=now"), "{link}");
        let reply = run.m.get(&format!("/{link}"));
        assert_eq!(reply.status, 200, "{link}: {}", reply.text());
    }
    browser.must_be_quiet();
}

/// The targets of the export menu.
fn links(browser: &Browser) -> Vec<String> {
    let links = browser
        .eval("[...document.querySelectorAll('#exports a')].map((a) => a.getAttribute('href'))");
    serde_json::from_value(links).unwrap()
}

#[test]
fn health_and_exports() {
    let (run, browser) = Run::shown("#view=health");
    let health = run.api("/v2/health");
    // The first report of a busy machine may come before any stack.
    let outcomes = health["outcomes"].as_array().unwrap();
    let outcomes: Vec<&str> = outcomes
        .iter()
        .map(|row| row["outcome"].as_str().unwrap())
        .collect();
    let cells = "[...document.querySelectorAll('#content td')].map((cell) => cell.textContent)";
    until(|| {
        let cells: Vec<String> = serde_json::from_value(browser.eval(cells)).unwrap();
        outcomes
            .iter()
            .all(|outcome| cells.iter().any(|cell| cell == outcome))
    });
    let text = browser.text("#content");
    // Tables are named in words, and the kernel's figures have units.
    for name in ["Pages with a stack", "Stacks", "Unwind rules", "Processes"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert!(!text.contains("unwind_pages"), "{text}");
    let first = "document.querySelector('.card td:nth-child(2) [title]')";
    let resident = run.api("/v2/summary")["kernel"]["before"].clone();
    let resident = ["rss_anon", "rss_shmem"].map(|name| resident[name].as_u64().unwrap());
    let resident = resident[0] + resident[1];
    must_mean(
        browser
            .eval(&format!("{first}.textContent"))
            .as_str()
            .unwrap(),
        resident,
    );
    assert_eq!(
        browser.eval(&format!("{first}.title")),
        in_full(&json!(resident))
    );
    assert!(text.contains(health["version"].as_str().unwrap()));
    browser.click("#export");
    let formats = run.api("/v2/exports");
    let count = formats.as_array().unwrap().len();
    browser.wait(&format!(
        "document.querySelectorAll('#exports a').length === {count}"
    ));
    for link in links(&browser) {
        let reply = run.m.get(&format!("/{link}"));
        assert_eq!(
            reply.status,
            200,
            "{link}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        assert!(!reply.body.is_empty(), "{link}");
    }
    browser.press(ESCAPE);
    browser.wait("!document.getElementById('exports').open");
    browser.must_be_quiet();
}

pub const PLOT: &str = "#timeline .u-over";

/// Waits until the timeline is drawn. memprof takes its samples by itself.
pub fn drawn(browser: &Browser) {
    browser.wait("document.querySelector('#timeline .u-over')");
    browser
        .wait("document.querySelector('.plot').getAttribute('aria-label').includes('Anonymous')");
}

/// A range of the timeline in seconds, as in the link.
fn range(browser: &Browser) -> Option<(i64, i64)> {
    let script = "const link = new URLSearchParams(location.hash.slice(1));
        return [Number(link.get('t0')), Number(link.get('t1'))]";
    let [from, to] = [0, 1].map(|n| browser.run(script, json!([]))[n].as_i64().unwrap());
    (from > 0 && to > 0).then_some((from, to))
}

#[test]
fn a_range_of_time_is_dragged() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    until(|| run.api("/v2/series")["times"].as_array().unwrap().len() > 8);
    browser.open("#pause=1");
    drawn(&browser);
    let times = run.api("/v2/series")["times"].clone();
    let times: Vec<i64> = times
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_i64().unwrap())
        .collect();
    assert_eq!(range(&browser), None);
    // A drag shows the difference of two moments; the wheel zooms.
    browser.drag(PLOT, 0.3, 0.7);
    browser.wait("/from=%40\\d+&to=%40\\d+/.test(location.hash)");
    browser.open("#pause=1");
    drawn(&browser);
    let wheel = "const over = document.querySelector(arguments[0]), box = over.getBoundingClientRect();
        over.dispatchEvent(new WheelEvent('wheel', { deltaY: -100, clientX: box.left + box.width / 2, clientY: box.top + 9, bubbles: true, cancelable: true }))";
    browser.run(wheel, json!([PLOT]));
    browser.wait("location.hash.includes('t0=') && location.hash.includes('t1=')");
    let (from, to) = range(&browser).unwrap();
    assert!(
        times[0] / 1000 <= from && from < to,
        "{from} {to} {times:?}"
    );
    let whole = times.last().unwrap() - times[0];
    assert!((to - from - 2) * 1000 < whole, "{from} {to} {times:?}");
    // The point under the mouse is in the range; between samples there is no text.
    let said = "document.querySelector('.timeline-foot .faint').textContent";
    let clock = "return new Date(arguments[0] * 1000).toTimeString().slice(0, 8)";
    let within: Vec<_> = (from..=to)
        .map(|time| format!("at {}", browser.run(clock, json!([time])).as_str().unwrap()))
        .collect();
    let mut places = (1..10).cycle();
    until(|| {
        browser.point(PLOT, f64::from(places.next().unwrap()) / 10.0);
        within.iter().any(|time| browser.eval(said) == **time)
    });
    // The link restores the range; a button shows the whole time again.
    let link = browser.link();
    browser.open(&link);
    drawn(&browser);
    assert_eq!(range(&browser), Some((from, to)));
    let all = "[...document.querySelectorAll('.timeline-foot button')]
        .find((button) => button.textContent === 'show all time')";
    assert_eq!(browser.eval(&format!("{all}.hidden")), false);
    browser.eval(&format!("{all}.click()"));
    browser.wait("!location.hash.includes('t0=')");
    browser.must_be_quiet();
}

#[test]
fn a_mark_on_the_time_line_leads_to_its_difference() {
    let (run, browser) = Run::shown("#view=flame");
    drawn(&browser);
    browser.press("m");
    until(|| !run.api("/v2/marks")["marks"].as_array().unwrap().is_empty());
    let mark = run.api("/v2/marks")["marks"][0].clone();
    let taken = mark["taken"].as_f64().unwrap() / 1000.0;
    let (from, to) = (taken.floor() - 5.0, taken.floor() + 5.0);
    // A mark is drawn only between samples.
    until(|| run.api("/v2/series")["times"].as_array().unwrap().len() > 2);
    browser.open(&format!("#pause=1&t0={from}&t1={to}"));
    drawn(&browser);
    let place = (taken - from) / (to - from);
    // A click beside the mark shows the moment there, and a drag that ends on it the difference of two moments.
    browser.drag(PLOT, place - 0.2, place - 0.2);
    browser.wait("/mark=%40\\d+/.test(location.hash)");
    assert!(browser.link().contains("view=flame"), "{}", browser.link());
    browser.drag(PLOT, place - 0.3, place);
    browser.wait("/from=%40\\d+&to=%40\\d+/.test(location.hash)");
    browser.open(&format!("#pause=1&t0={from}&t1={to}"));
    drawn(&browser);
    // A click may move the mouse by a pixel or two.
    browser.drag(PLOT, place - 0.001, place);
    browser.wait("location.hash.includes('view=diff')");
    let id = mark["id"].as_str().unwrap();
    assert!(
        browser.link().contains(&format!("from={id}")),
        "{}",
        browser.link()
    );
    browser.wait("document.querySelector('#selection')?.dataset.bytes");
    browser.must_be_quiet();
}

#[test]
fn every_view_fits_a_narrow_screen() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    browser.size(360, 740);
    for view in [
        "flame",
        "treemap",
        "tree",
        "functions",
        "files",
        "space",
        "diff",
        "health",
    ] {
        browser.open(&format!("#view={view}"));
        let used = browser
            .eval("document.documentElement.scrollWidth")
            .as_u64()
            .unwrap();
        assert!(used <= 360, "{view}: {used}");
    }
    browser.must_be_quiet();
}
