//! A heap snapshot in one HTML file, of a process whose names are markup.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::common::memprof::BINARY;
use super::common::workload::{Lines, Running, Workload, program};
use super::heap::divide;
use super::layout::SIZES;
use crate::common::browser::Browser;

const MARKUP: &str =
    "</script><img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script><!--";

/// Names its type and itself so, keeps objects of that type, and waits.
const PROGRAM: &str = "
import sys
name = sys.argv[1]
T = type(name, (), {})
kept = [T() for _ in range(1000)]
forgotten = bytearray(1 << 20)
open('/proc/self/comm', 'w').write('</script><b>')
print('ok', flush=True)
sys.stdin.read()
";

/// Keeps what is written on canvases.
const KEEP_TEXTS: &str = "
    window.texts = [];
    const pen = CanvasRenderingContext2D.prototype;
    const fillText = pen.fillText;
    pen.fillText = function (text, ...place) {
        window.texts.push(text);
        return fillText.call(this, text, ...place);
    };";

/// What `memprof heap` prints.
fn heap(pid: &str, format: &str) -> Vec<u8> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(BINARY)
        .args(["heap", "--pid", pid, "--max-stop", "10000"])
        .args(["--format", format, "--top", "500"])
        .output()
        .unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    stdout
}

/// The texts of the first cells of a card's rows, all of them shown.
fn first_cells(browser: &Browser, card: &str) -> Vec<String> {
    let script = "const card = document.querySelector(`.card[data-table='${arguments[0]}']`);
        const more = card?.querySelector('.more');
        if (more && !more.hidden && more.textContent.startsWith('show all')) more.click();
        return [...card?.querySelectorAll('tbody tr') ?? []].map((row) => row.children[0].textContent);";
    let cells = browser.run(script, json!([card]));
    let texts = cells.as_array().unwrap().iter();
    texts
        .map(|cell| cell.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_snapshot_in_a_file() {
    let mut child = Command::new("python3")
        .args(["-c", PROGRAM, MARKUP])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Lines::new(&mut child);
    let child = Running(child);
    assert_eq!(lines.line(), "ok");
    let pid = child.pid().to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("heap.html");
    std::fs::write(&file, heap(&pid, "html")).unwrap();
    // It waits, so that the next snapshot has the same figures.
    let wanted: Value = serde_json::from_slice(&heap(&pid, "json")).unwrap();
    drop((lines, child));

    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let browser = Browser::start(nowhere);
    let url = format!("file://{}", file.display());
    browser.before_each_page(KEEP_TEXTS);
    browser.asked();
    browser.open_url(&url);
    assert!(browser.text("#target").starts_with("</script><b> (pid "));
    let figure = browser.figure("#totals .total:last-child dd", "data-bytes");
    assert_eq!(Some(figure), wanted["anonymous"].as_u64());
    let sum = |rows: &str, column: &str| -> u64 {
        let rows = wanted[rows].as_array().unwrap().iter();
        rows.map(|row| row[column].as_u64().unwrap()).sum()
    };
    for (way, name) in [("arena", "main arena"), ("type", "Python"), ("", "in use")] {
        browser.run("window.texts = []", json!([]));
        divide(&browser, way);
        let drawn = browser.figure(".heap .selection", "data-bytes");
        let all = sum("rows", "bytes") + sum("others", "resident");
        assert_eq!(drawn, all, "by {way:?}");
        let texts = browser.eval("window.texts.join('\\n')");
        assert!(texts.as_str().unwrap().contains(name), "{way:?}: {texts}");
    }
    // A block that Python owns has Python's type among the chunks, and Python's arenas are a root with a name.
    let types = wanted["types"]["rows"].as_array().unwrap();
    let data = types
        .iter()
        .find(|row| row["kind"] == "python" && row["name"] == "bytearray (memory)");
    let data = data.unwrap_or_else(|| panic!("{types:?}"));
    assert!(data["bytes"].as_u64().unwrap() >= 1 << 20, "{data}");
    assert_eq!(data["retained_by"][0]["root"], "Python's arenas", "{data}");
    // Every list of the report is a table with all of its rows.
    let lists = [
        ("sizes", &wanted["sizes"]),
        ("largest", &wanted["largest"]),
        ("types.rows", &wanted["types"]["rows"]),
        ("retained.roots", &wanted["retained"]["roots"]),
        ("python.types", &wanted["python"]["types"]),
        ("python.classes", &wanted["python"]["classes"]),
    ];
    for (card, rows) in lists {
        let rows = rows.as_array().unwrap().len();
        assert_eq!(first_cells(&browser, card).len(), rows, "{card}");
    }
    let pages = "[...document.querySelectorAll(\".card[data-table=occupancy] td\")].map((td) => Number(td.textContent.replaceAll(',', '')))";
    assert_eq!(browser.eval(pages), wanted["occupancy"]);
    let types = first_cells(&browser, "python.types");
    assert!(types.iter().any(|name| name == MARKUP), "{types:?}");
    // The roots of types and of the largest chunks.
    let by = &wanted["types"]["rows"][0]["retained_by"][0]["root"];
    let shown = browser.text(".card[data-table='types.rows']");
    assert!(shown.contains(by.as_str().unwrap()), "{by}: {shown}");
    let root = wanted["retained"]["largest"][0]["root"].as_str().unwrap();
    let shown = browser.text(".card[data-table='largest']");
    assert!(shown.contains(root), "{root}: {shown}");
    for (width, height) in SIZES {
        browser.size(width, height);
        let used = browser.eval("document.documentElement.scrollWidth");
        assert!(used.as_u64().unwrap() <= width.into(), "{width}: {used}");
    }
    // A click on the treemap selects, the button changes the colours.
    browser.point(".treemap canvas", 0.5);
    browser.drag(".treemap canvas", 0.3, 0.3);
    browser.wait("location.hash.includes('sel=')");
    let dark = "document.documentElement.dataset.theme ?? ''";
    let before = browser.eval(dark);
    browser.click("#theme");
    assert_ne!(browser.eval(dark), before);
    assert!(browser.eval("window.hacked ?? null").is_null());
    let mut outside: Vec<_> = browser.asked().into_iter().collect();
    outside.retain(|url| url.starts_with("http") || url.starts_with("ws"));
    assert_eq!(outside, Vec::<String>::new());
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// A snapshot that lacks memory says so, in the file as in the text.
#[test]
fn what_is_missing_is_named() {
    let path = program("kept_back");
    let mut workload = Workload::start_with(&path, &["dontfork", "256"]);
    assert_eq!(workload.lines.line(), "ok");
    let pid = workload.pid().to_string();
    let args = [
        "heap",
        "--pid",
        &pid,
        "--format",
        "html",
        "--max-stop",
        "100",
    ];
    let taken = Command::new(BINARY)
        .args(args)
        .args(["--snapshot", "fork"])
        .output()
        .unwrap();
    assert!(taken.status.success(), "{taken:?}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("heap.html");
    std::fs::write(&file, &taken.stdout).unwrap();
    let browser = Browser::start(std::net::SocketAddr::from(([127, 0, 0, 1], 9)));
    browser.asked();
    browser.open_url(&format!("file://{}", file.display()));
    let note = browser.eval("document.querySelector('.heap .note').textContent");
    let note = note.as_str().unwrap();
    for said in [
        "Not in the snapshot: 256 MiB of memory that a forked child does not have",
        "No chunk is called unreachable: ",
    ] {
        assert!(note.contains(said), "{note}");
    }
    assert!(!note.contains("changed meanwhile"), "{note}");
    assert!(!note.contains(" unreachable;"), "{note}");
    workload.end();
}
