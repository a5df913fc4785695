//! A window in which every call is counted: what the page calls its figures, and what it does not offer.

use serde_json::json;

use super::common::memprof::Memprof;
use super::common::workload::program;
use crate::common::browser::Browser;

#[test]
fn figures_of_a_window_are_called_exact_and_no_filter_is_offered() {
    let every_call = program("every_call");
    let args = ["--heap=exact", "--duration", "600"];
    let (m, mut lines) = Memprof::start_command(&args, &[every_call.to_str().unwrap()]);
    lines.tell("hold 1000 24");
    let browser = Browser::start(m.address());
    // (A link of another run may have a filter.)
    browser.load("#view=functions&kind=alloc_space&filter=live");
    browser.wait("document.querySelector('.note')?.dataset.total >= 24000");
    let line = browser.text("#answer");
    assert!(
        line.starts_with(
            "Allocated (exact): who causes the traffic. All allocations in the window"
        ),
        "{line}"
    );
    let groups = "[...document.querySelectorAll('[data-name=kind] optgroup')].map((g) => g.label)";
    assert_eq!(
        browser.eval(groups),
        json!([
            "Resident (first touch)",
            "Live heap (exact)",
            "Allocated (exact)",
            "Temporary (exact)"
        ])
    );
    let offered = "[document.querySelectorAll('#filter').length, [...document.querySelectorAll('#tabs a')].filter((a) => a.dataset.name === 'Allocations').length]";
    assert_eq!(browser.eval(offered), json!([0, 0]));
    let meaning = browser.eval("document.querySelector('[data-name=kind]').title");
    assert!(
        meaning.as_str().unwrap().contains("Every call counted"),
        "{meaning}"
    );
}
