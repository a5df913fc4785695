//! The filter of sampled allocations, and the tables of a heap snapshot by stack.

use serde_json::{Value, json};

use super::common::memprof::Memprof;
use super::common::process::wait_until;
use super::common::workload::{Workload, program};
use crate::common::browser::Browser;

/// A process whose samples are made up, with known figures: 100 allocations that stand for 1,000 bytes each, of which the
/// last 30 are freed; three of 1 MiB; and 50 that stand for 6,400 bytes and are freed at once.
pub fn speaker() -> (Workload, Memprof) {
    let mut workload = Workload::start(&program("speaker"));
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    wait_until(|| {
        workload.lines.send("listeners");
        workload.lines.line() == "4 1"
    });
    for command in ["hold 100", "large 3", "release 30", "churn 50"] {
        workload.lines.tell(command);
    }
    (workload, m)
}

/// Types a filter, and presses Enter.
pub fn filter(browser: &Browser, text: &str) {
    let script = "const box = document.querySelector('#filter');
        box.focus();
        box.value = arguments[0];
        box.dispatchEvent(new Event('change'));";
    browser.run(script, json!([text]));
}

/// Chooses the option of the list beside the filter that begins with this text.
fn choose_example(browser: &Browser, text: &str) {
    let script = "const box = document.querySelector('.filter select');
        const option = [...box.options].find((option) => option.textContent.startsWith(arguments[0]));
        if (!option) return false;
        box.value = option.value;
        box.dispatchEvent(new Event('change'));
        return true";
    assert_eq!(browser.run(script, json!([text])), true, "{text}");
}

/// Waits until the list of functions has this total.
pub fn must_total(browser: &Browser, total: u64) {
    browser.wait(&format!(
        "document.querySelector('.note')?.dataset.total === '{total}'"
    ));
}

const ERROR: &str = "document.querySelector('#filter-error')";

#[test]
fn a_filter_chooses_what_is_shown() {
    let (workload, m) = speaker();
    let browser = Browser::start(m.address());
    browser.open("#view=functions&kind=alloc_space");
    let all = 100_000 + (3 << 20) + 50 * 6_400;
    must_total(&browser, all);
    filter(&browser, "size == 64");
    must_total(&browser, 50 * 6_400);
    assert!(
        browser.link().contains("filter=size+%3D%3D+64"),
        "{}",
        browser.link()
    );
    // The top shows the whole heap.
    let top = browser.figure("#totals [data-kind=alloc_space] dd", "data-bytes");
    assert_eq!(top, all);
    // The link has it, and other views and the export do, too.
    browser.open("#view=flame&kind=alloc_space&filter=live");
    assert_eq!(
        browser.eval("document.querySelector('#filter').value"),
        "live"
    );
    let live = 70_000 + (3 << 20);
    assert_eq!(browser.figure("#selection", "data-bytes"), live);
    browser.click("#export");
    let links = browser.wait(
        "[...document.querySelectorAll('.formats a')].map((a) => [a.textContent, a.search]).length > 0
         && [...document.querySelectorAll('.formats a')].map((a) => [a.textContent, a.search])",
    );
    let of = |format: &str| {
        let links = links.as_array().unwrap().iter();
        let mut found = links.filter(|link| link[0] == format);
        found.next().unwrap()[1].as_str().unwrap().to_owned()
    };
    assert!(of("folded").contains("filter=live"), "{links}");
    assert!(!of("profile").contains("filter"), "{links}");
    browser.open("#view=sandwich&kind=alloc_space&filter=size+%3E+1000");
    must_total(&browser, 3 << 20);
    browser.click(".rows .row");
    browser.wait("document.querySelector('#focus')?.dataset.total");
    assert_eq!(browser.figure("#focus", "data-total"), 3 << 20);
    // Nothing of it.
    browser.open("#view=tree&kind=alloc_space&filter=false");
    let said = browser.text("#content .notice");
    assert!(said.contains("The filter matches no allocation"), "{said}");
    // Only what is sampled can be filtered.
    let hidden = "document.querySelector('.filter').hidden";
    assert_eq!(browser.eval(hidden), false);
    browser.open("#view=tree&kind=resident&filter=live");
    assert_eq!(browser.eval(hidden), true);
    browser.open("#view=health&kind=alloc_space");
    assert_eq!(browser.eval(hidden), true);
    browser.must_be_quiet();
    workload.end();
}

#[test]
fn a_filter_that_cannot_be_used_says_why_beside_it() {
    let (workload, m) = speaker();
    let browser = Browser::start(m.address());
    browser.open("#view=functions&kind=alloc_space");
    assert_eq!(browser.eval(&format!("{ERROR}.hidden")), true);
    filter(&browser, "siz > 64");
    browser.wait(&format!("!{ERROR}.hidden"));
    let said = browser.text("#filter-error");
    assert!(said.contains("unknown name siz"), "{said}");
    let invalid = "document.querySelector('#filter').getAttribute('aria-invalid')";
    assert_eq!(browser.eval(invalid), "true");
    // What was shown before is not what the filter says.
    assert_eq!(browser.eval("document.querySelector('.rows')"), Value::Null);
    choose_example(&browser, "no filter");
    must_total(&browser, 100_000 + (3 << 20) + 50 * 6_400);
    assert_eq!(browser.eval(&format!("{ERROR}.hidden")), true);
    assert_eq!(browser.eval(invalid), Value::Null);
    choose_example(&browser, "live at the maximum");
    must_total(&browser, 100_000 + (3 << 20));
    // The only error is the reply that was expected.
    let errors = browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("filter=siz")),
        "{errors:#?}"
    );
    workload.end();
}

/// What was allocated since a mark and is still there is a choice, and as much as the heap has grown since.
#[test]
fn growth_since_a_mark_is_a_choice() {
    let (mut workload, m) = speaker();
    let browser = Browser::start(m.address());
    browser.open("#view=functions&kind=inuse_space");
    browser.click("#mark");
    browser.wait("document.querySelector('.filter optgroup')?.label.startsWith('Allocated since')");
    for command in ["hold 20", "churn 10", "release 5"] {
        workload.lines.tell(command);
    }
    choose_example(&browser, "since mark at ");
    must_total(&browser, 15_000);
    let link = browser.link();
    assert!(link.contains("mark%281%29"), "{link}");
    browser.must_be_quiet();
    workload.end();
}

/// The text of each cell of a row of a card, by a part of its first cell.
fn cells(browser: &Browser, card: &str, row: &str) -> Vec<String> {
    let script =
        "const rows = document.querySelectorAll(`.card[data-table='${arguments[0]}'] tbody tr`);
        const row = [...rows].find((row) => row.children[0].textContent.includes(arguments[1]));
        return [...(row?.children ?? [])].map((cell) => cell.title || cell.textContent)";
    let found = browser.run(script, json!([card, row]));
    let cells = found.as_array().unwrap().iter();
    cells
        .map(|cell| cell.as_str().unwrap().to_owned())
        .collect()
}

/// The rows of a table before the others are asked for, as in src/http/web/js/heap/tables.js.
const FEW_ROWS: usize = 7;

#[test]
fn a_snapshot_is_shown_by_stack() {
    let program = program("owners");
    let args = ["--heap", "--heap-interval", "16KiB"];
    let (m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
    for command in ["fill", "leak", "thin", "empty"] {
        lines.tell(command);
    }
    let reply = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#);
    assert_eq!(reply.status, 201, "{}", reply.text());
    let by_stack = &m.get("/v2/heap/1").json()["by_stack"];
    let browser = Browser::start(m.address());
    browser.open("#view=heap");
    let rows = |name: &str| by_stack[name].as_array().unwrap().clone();
    for name in ["rows", "leaks", "free_pages", "rest"] {
        let count = format!(
            "document.querySelectorAll(\".card[data-table='by_stack.{name}'] tbody tr\").length"
        );
        let shown = browser.wait(&count).as_u64().unwrap() as usize;
        assert_eq!(shown, rows(name).len().min(FEW_ROWS), "{name}");
    }
    // The innermost function first, without the sampler's own.
    let innermost = |row: &Value| {
        let stack = row["stack"].as_str().unwrap();
        stack.rsplit(';').next().unwrap().to_owned()
    };
    for row in rows("rows") {
        assert!(
            !row["stack"].as_str().unwrap().contains("report_alloc"),
            "{row}"
        );
    }
    let largest = &rows("rows")[0];
    let first = cells(&browser, "by_stack.rows", "");
    assert!(first[0].starts_with(&innermost(largest)), "{first:?}");
    let bytes = |text: &str| -> u64 {
        let digits = text.split(' ').next().unwrap().replace(',', "");
        digits.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    };
    assert_eq!(largest["live"]["bytes"], bytes(&first[1]));
    assert_eq!(largest["resident"]["bytes"], bytes(&first[2]));
    let leak = &rows("leaks")[0];
    let shown = cells(&browser, "by_stack.leaks", &innermost(leak));
    assert_eq!(leak["requested"]["bytes"], bytes(&shown[2]));
    assert_eq!(leak["unreachable"]["bytes"], bytes(&shown[4]));
    assert!(
        [" ← ", "refers", "not sampled"]
            .iter()
            .any(|part| shown[1].contains(part)),
        "{shown:?}"
    );
    let rest = cells(&browser, "by_stack.rest", "the allocator’s own");
    assert!(!rest.is_empty());
    for (width, height) in super::layout::SIZES {
        browser.size(width, height);
        let used = browser.eval("document.documentElement.scrollWidth");
        assert!(used.as_u64().unwrap() <= width.into(), "{width}: {used}");
    }
    browser.must_be_quiet();
}
