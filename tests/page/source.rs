//! The source text beside a selected frame.

use super::lists::drawn;
use crate::common::browser::Browser;
use crate::common::memprof::Memprof;
use crate::common::workload::program;

const MIB: u64 = 1 << 20;

/// Selects the row of a function in the call tree.
fn choose(browser: &Browser, function: &str) {
    let rows = "[...document.querySelectorAll('.rows .row')]";
    let is_it =
        format!("[...row.children].some((cell) => cell.textContent.endsWith('{function}'))");
    browser.wait(&format!("{rows}.some((row) => {is_it})"));
    browser.eval(&format!("{rows}.find((row) => {is_it}).click()"));
}

#[test]
fn the_lines_of_a_function_are_shown_with_their_bytes() {
    let workload = program("inlined");
    let (m, mut lines) = Memprof::start_command(&[], &[workload.to_str().unwrap()]);
    for _ in 0..4 {
        lines.tell("more");
    }
    let browser = Browser::start(m.address());
    for (width, height) in [(1440, 900), (390, 844)] {
        browser.size(width, height);
        browser.open("#view=tree&kind=anon");
        drawn(&browser);
        choose(&browser, "inner");
        let button = "[...document.querySelectorAll('#selection button')].find((b) => b.textContent === 'source')";
        browser.eval(&format!("{button}.click()"));
        // The line with most memory is in view, marked and named for screen readers.
        let current = "document.querySelector('.source [aria-current]')";
        browser.wait(&format!("{current}?.textContent.includes('// INNER')"));
        let bytes = browser.figure(".source [aria-current]", "data-bytes");
        assert!(bytes >= 4 * MIB, "{bytes}");
        let [line, panel] = [current, "document.querySelector('.source')"]
            .map(|of| format!("{of}.getBoundingClientRect()"));
        let in_view = format!("{line}.top >= {panel}.top && {line}.bottom <= {panel}.bottom");
        assert_eq!(browser.eval(&in_view), true);
        assert!(browser.text(".source .note").contains("/inlined.c"));
        let marked = "[...document.querySelectorAll('.source [data-bytes]')].map((row) => row.lastChild.textContent.match(/[A-Z]+$/)?.[0] ?? '').join()";
        // Then there are lines of `main` without a marker.
        let marked = browser.eval(marked);
        assert!(
            marked.as_str().unwrap().starts_with("INNER,MIDDLE,OUTER,"),
            "{marked}"
        );

        // Another function: the same panel, its line. The panel stays until it is closed.
        choose(&browser, "outer");
        browser.wait(&format!("{current}?.textContent.includes('// OUTER')"));
        browser.eval(&format!("{button}.click()"));
        browser.wait("document.querySelector('.source').hidden");
        assert!(!browser.link().contains("src="));
    }
    browser.must_be_quiet();
}
