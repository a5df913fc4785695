//! Before there is a target, the page says what memprof waits for, and offers nothing that needs a report.

use serde_json::json;

use super::common::memprof::Memprof;
use super::common::workload::{Workload, named, unique_name};
use crate::common::browser::Browser;

/// What a person can see and use: controls, links and the timeline.
const OFFERED: &str =
    "return [...document.querySelectorAll('button, a, select, input, canvas, .timeline')]
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > 0)
    .map((e) => e.id || e.textContent)";

#[test]
fn the_page_waits_for_a_process() {
    let named = named("scenarios", &unique_name("w"));
    let m = Memprof::start(&["--comm", &named.name]);
    let browser = Browser::start(m.address());
    let awaited = format!("Waiting for a process named {}", named.name);
    for (width, height) in [(390, 844), (1440, 900)] {
        browser.size(width, height);
        browser.load("");
        browser.wait(&format!(
            "document.getElementById('target').textContent === '{awaited}'"
        ));
        browser.wait("document.querySelector('#content .notice')?.textContent.includes('as soon as it runs')");
        assert_eq!(
            browser.run(OFFERED, json!([])),
            json!(["theme", "help-button"])
        );
        // Nor do keys set a mark or open a view.
        browser.press("m2");
        assert_eq!(browser.link(), "");
    }
    let workload = Workload::start(&named.path);
    browser.wait("document.querySelector('#totals .total')?.checkVisibility()");
    browser.wait("document.querySelector('.overview .card')?.checkVisibility()");
    let offered = browser.run(OFFERED, json!([])).to_string();
    for control in ["pause", "mark", "freeze", "export", "Overview", "Where"] {
        assert!(offered.contains(control), "{control}: {offered}");
    }
    workload.end();
}
