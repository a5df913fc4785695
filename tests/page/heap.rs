//! The view of heap snapshots: one, the difference of two, and what is said when none can be taken.

use serde_json::{Value, json};

use super::common::memprof::Memprof;
use super::common::process::stop;
use super::common::workload::{Workload, program};
use super::layout::SIZES;
use super::lists::until;
use crate::common::browser::Browser;
use crate::common::contents::*;

/// Chooses an option of the select with this label.
fn choose(browser: &Browser, label: &str, value: &str) {
    let script =
        "const box = document.querySelector(`.heap-choice select[aria-label='${arguments[0]}']`);
        box.value = arguments[1];
        box.dispatchEvent(new Event('change'));";
    browser.run(script, json!([label, value]));
}

/// Draws the treemap by kind and size (``), type or arena.
pub fn divide(browser: &Browser, way: &str) {
    choose(browser, "Treemap by", way);
    browser.wait(&format!(
        "document.querySelector('.heap [data-way]').dataset.way === '{way}'"
    ));
}

/// The exact bytes in a row of a card, by the first cell of the row.
fn cell(browser: &Browser, card: &str, row: &str, column: usize) -> String {
    let script =
        "const rows = document.querySelectorAll(`.card[data-table='${arguments[0]}'] tbody tr`);
        const row = [...rows].find((row) => row.children[0].textContent === arguments[1]);
        return row?.children[arguments[2]].title ?? 'no such row'";
    let found = browser.run(script, json!([card, row, column]));
    found.as_str().unwrap().to_owned()
}

/// The number in a text such as `1,234 bytes`.
fn exact(text: &str) -> u64 {
    let digits = text.strip_suffix(" bytes").expect(text).replace(',', "");
    digits.parse().unwrap()
}

fn row<'a>(heap: &'a Value, what: &str) -> &'a Value {
    let rows = heap["rows"].as_array().unwrap();
    rows.iter().find(|row| row["what"] == what).unwrap()
}

const TAKEN: &str =
    "document.querySelectorAll('.heap-choice select[aria-label=Snapshot] option').length";

#[test]
fn snapshots_and_their_difference() {
    let mut workload = Workload::start_with(&program("heap"), &["2", "31"]);
    workload.lines.send("m");
    workload.lines.line();
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    m.said("following ");
    let browser = Browser::start(m.address());
    browser.open("#view=heap");
    browser.wait("document.querySelector('.notice button')");
    choose(&browser, "Maximum stop", "10000");
    browser.click(".notice button");
    browser.wait(&format!("{TAKEN} === 1"));
    browser.wait("document.querySelector(\".card[data-table='rows']\")");
    let heap = api(m.address(), "/v2/heap/1")["heap"].clone();
    let live = row(&heap, "live");
    for (column, name) in [(2, "bytes"), (3, "resident")] {
        let shown = exact(&cell(&browser, "rows", "in use", column));
        assert_eq!(Some(shown), live[name].as_u64(), "{heap}");
    }
    let whole = browser.figure(".heap .note", "data-total");
    assert_eq!(Some(whole), heap["anonymous"].as_u64());
    // The treemap has all chunks with their headers, and the rest.
    let sum = |rows: &str, column: &str| -> u64 {
        let rows = heap[rows].as_array().unwrap().iter();
        rows.map(|row| row[column].as_u64().unwrap()).sum()
    };
    for way in ["type", "arena", ""] {
        divide(&browser, way);
        let drawn = browser.figure(".heap .selection", "data-bytes");
        let all = sum("rows", "bytes") + sum("others", "resident");
        assert_eq!(drawn, all, "by {way:?}");
    }
    let pages = "[...document.querySelectorAll(\".card[data-table=occupancy] td\")].map((td) => Number(td.textContent.replaceAll(',', '')))";
    assert_eq!(browser.eval(pages), heap["occupancy"]);
    // The picture by address has all of it.
    let shown = "[...document.querySelectorAll('.address-map .legend [data-bytes]')].reduce((sum, part) => sum + Number(part.dataset.bytes), 0)";
    assert_eq!(browser.eval(shown), sum("rows", "bytes"));
    let squares = "document.querySelectorAll('.address-map .squares i').length";
    let ranges = heap["map"]["ranges"].as_array().unwrap().iter();
    let cells: usize = ranges.map(|r| r["cells"].as_array().unwrap().len()).sum();
    assert_eq!(browser.eval(squares), cells);
    // Who made it grow: all of it was there before.
    let grown = api(m.address(), "/v2/heap/1")["grown_by"].clone();
    let resident = sum("rows", "resident");
    assert_eq!(grown["resident"], resident, "{grown}");
    let said = browser.text(".card[data-table='grown_by.rows']");
    assert!(
        said.contains("before attach") && said.contains("not who owns"),
        "{said}"
    );
    // A list shows its first rows, and all on request; a heading sorts it.
    let rows = "document.querySelectorAll(\".card[data-table='sizes'] tbody tr\").length";
    let all = heap["sizes"].as_array().unwrap().len();
    assert!(browser.eval(rows).as_u64().unwrap() < all as u64);
    browser.click(".card[data-table='sizes'] .more");
    assert_eq!(browser.eval(rows), all);
    browser.click(".card[data-table='sizes'] th .sort");
    let first = "document.querySelector(\".card[data-table='sizes'] tbody td\").textContent";
    let smallest = heap["sizes"][0]["to"].as_u64().unwrap();
    assert_eq!(browser.eval(first), smallest.to_string());

    // Half of the blocks are freed. The link selects both snapshots.
    workload.lines.send("f");
    workload.lines.line();
    browser.click("#take-heap");
    browser.wait(&format!("{TAKEN} === 2"));
    choose(&browser, "Compared with", "1");
    let live = "[...document.querySelectorAll(\".card[data-table='rows'] tbody tr\")].find((row) => row.children[0].textContent === 'in use')";
    browser.wait(&format!("{live}?.querySelector('.less')"));
    assert!(browser.link().contains("hfrom=1"), "{}", browser.link());
    let before = row(&heap, "live")["resident"].as_u64().unwrap();
    let after = &api(m.address(), "/v2/heap/2")["heap"];
    let after = row(after, "live")["resident"].as_u64().unwrap();
    let change = format!("{live}.children[3].textContent");
    must_mean(
        browser
            .eval(&change)
            .as_str()
            .unwrap()
            .trim_start_matches('−'),
        before - after,
    );
    for (width, height) in SIZES {
        browser.size(width, height);
        let used = browser.eval("document.documentElement.scrollWidth");
        assert!(used.as_u64().unwrap() <= width.into(), "{width}: {used}");
    }
    let delete = "[...document.querySelectorAll('.heap-choice button')].at(-1).click()";
    browser.eval(delete);
    until(|| {
        api(m.address(), "/v2/heap")["snapshots"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
    browser.wait(&format!("{TAKEN} === 1"));
    browser.must_be_quiet();
    workload.end();
}

#[test]
fn why_there_is_no_snapshot_is_shown() {
    let workload = Workload::start_with(&program("heap"), &["1", "32"]);
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    let browser = Browser::start(m.address());
    browser.open("#view=heap");
    browser.wait("document.querySelector('.notice button')");
    stop(workload.pid());
    drop(workload);
    browser.wait("document.getElementById('alive').textContent.includes('ended')");
    browser.click("#take-heap");
    browser.wait("!document.querySelector('.trouble').hidden");
    let said = browser.text(".trouble");
    assert!(said.contains("has ended"), "{said}");
    // The page shows the error before it enables the button again.
    browser.wait("!document.getElementById('take-heap').disabled");
}

/// The verdict stands first, then what answers most, on two screens at most; the rest is behind a button.
#[test]
fn the_verdict_comes_first() {
    let mut workload = Workload::start_with(&program("heap"), &["2", "31"]);
    workload.lines.send("m");
    workload.lines.line();
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    let taken = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#);
    assert_eq!(taken.status, 201, "{}", taken.text());
    let info: Value = serde_json::from_str(taken.text()).unwrap();
    let browser = Browser::start(m.address());
    browser.size(1440, 900);
    browser.open("#view=heap");
    browser.wait("document.querySelector('.verdict p')");
    let said = "[...document.querySelectorAll('.verdict p')].map((p) => p.textContent)";
    assert_eq!(browser.eval(said), info["verdict"]);
    let first = "document.querySelector('.heap .diff-stage').firstElementChild.className";
    assert_eq!(browser.eval(first), "verdict");
    let height = browser.eval("document.documentElement.scrollHeight");
    assert!(height.as_u64().unwrap() <= 1800, "{height}");
    let seen = |table: &str| {
        browser.eval(&format!(
            "document.querySelector(\".card[data-table='{table}']\").checkVisibility()"
        ))
    };
    for table in ["types.rows", "occupancy", "rows", "sizes"] {
        assert_eq!(seen(table), true, "{table}");
    }
    for table in ["map", "arenas", "retained.roots"] {
        assert_eq!(seen(table), false, "{table}");
    }
    browser.click(".more > summary");
    assert_eq!(seen("map"), true);
    browser.must_be_quiet();
}
