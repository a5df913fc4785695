//! The table of commands, names that are shortened, and the source text of a function.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::common::memprof::Memprof;
use super::common::workload::{Workload, program};
use crate::common::browser::Browser;

const TABLE: &str =
    "[...document.querySelectorAll('.choices tbody code')].map((e) => e.textContent)";

#[test]
fn a_view_without_a_snapshot_says_which_command_answers_what() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid();
    let m = Memprof::attach(pid, &[]);
    m.said("following ");
    let browser = Browser::start(m.address());
    let wanted = format!("({TABLE}).includes('memprof heap --pid {pid}')");
    for view in ["heap", "allocations"] {
        browser.open(&format!("#view={view}"));
        browser.wait(&wanted);
    }
    browser.open("#view=flame");
    browser.click("#help-button");
    browser.wait(&wanted);
    browser.must_be_quiet();
}

#[test]
fn names_are_shortened_where_that_keeps_their_meaning() {
    let workload = Workload::start_with(&program("heap"), &["2", "31"]);
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    let browser = Browser::start(m.address());
    browser.open("#view=flame");
    browser.run(
        "import('./assets/js/tree/names.js').then((names) => (window.names = names))",
        json!([]),
    );
    browser.wait("window.names");
    let short = |name: &str| {
        let short = browser.run("return names.shortName(arguments[0])", json!([name]));
        short.as_str().unwrap().to_owned()
    };
    for (name, wanted) in [
        ("main", "main"),
        (
            "v8::Function::Call(v8::Local<v8::Value>, int)",
            "v8::Function::Call",
        ),
        (
            "v8::(anonymous namespace)::Invoke(v8::Isolate*, int (*)(int)) const",
            "v8::(anonymous namespace)::Invoke",
        ),
        (
            "Result v8::Stringifier::Serialize_<true>(bool)",
            "v8::Stringifier::Serialize_",
        ),
        ("drop_in_place<alloc::vec::Vec<u8>>", "drop_in_place"),
        ("<Vec<T> as Drop>::drop", "<Vec<T> as Drop>::drop"),
        ("parse.<locals>.<listcomp>", "parse.<locals>.<listcomp>"),
        ("java.util.HashMap.<init>", "java.util.HashMap.<init>"),
        ("A::operator()(int) const", "A::operator()(int) const"),
        ("f(int", "f(int"),
        ("[no symbol] (libc.so.6)", "[no symbol] (libc.so.6)"),
    ] {
        assert_eq!(short(name), wanted);
    }
    let drawn = "names.drawnName({ name: '<module>', module: 'shop.py' })";
    assert_eq!(browser.eval(drawn), "<module> shop.py");
    browser.must_be_quiet();
}

#[test]
fn each_line_of_the_source_has_a_bar() {
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("keep.py");
    let text = "import time\n\ndef keep():\n    return bytes(b'x' * (8 << 20))\n\nkept = keep()\ntime.sleep(1000)\n";
    fs::write(&script, text).unwrap();
    let (m, _lines) = Memprof::start_command(&[], &["python3", script.to_str().unwrap()]);
    let browser = Browser::start(m.address());
    let path = script.display();
    browser.open(&format!("#view=tree&fn=keep&path={path}&src=1"));
    let row = "[...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('keep.py:3'))";
    browser.wait(row);
    browser.run(&format!("{row}.click()"), json!([]));
    let line = "document.querySelector('.source [data-line=\"4\"]')";
    browser.wait(line);
    // The security policy of the page forbids style attributes, so this fails if the bar is one.
    let share = browser.eval(&format!("{line}.style.getPropertyValue('--share')"));
    assert_eq!(share, "100%");
    assert_eq!(
        browser.eval("document.querySelector('.source').ariaLabel"),
        "Source of keep"
    );
    let heads = "[...document.querySelectorAll('.source th')].map((e) => e.textContent).join()";
    assert!(
        browser
            .eval(heads)
            .as_str()
            .unwrap()
            .ends_with("Line,Source")
    );
    browser.must_be_quiet();
}
