//! The view of sampled allocations in groups.

use serde_json::json;

use super::filter::{filter, must_total, speaker};
use crate::common::browser::Browser;

/// The text of each row's first cell.
fn groups(browser: &Browser) -> Vec<String> {
    let cells = browser.eval(
        "[...document.querySelectorAll('.rows .row')].map((row) => row.firstChild.textContent)",
    );
    serde_json::from_value(cells).unwrap()
}

fn choose_groups(browser: &Browser, by: &str) {
    let script = "const box = document.querySelector('[data-name=aby]');
        box.value = arguments[0];
        box.dispatchEvent(new Event('change'));";
    browser.run(script, json!([by]));
    browser.wait(&format!("location.hash.includes('aby={by}')"));
}

#[test]
fn groups_have_averages_and_a_course_and_lead_to_their_stacks() {
    let (workload, m) = speaker();
    let browser = Browser::start(m.address());
    browser.open("#view=allocations");
    let all = 100_000 + (3 << 20) + 50 * 6_400;
    must_total(&browser, all);
    assert!(groups(&browser).contains(&"hold_one".to_owned()));
    let row = |name: &str| -> Vec<String> {
        let script = "const rows = [...document.querySelectorAll('.rows .row')];
            const row = rows.find((row) => row.firstChild.textContent === arguments[0]);
            return [...row.children].map((cell) => cell.textContent)";
        serde_json::from_value(browser.run(script, json!([name]))).unwrap()
    };
    let held = row("hold_one");
    assert_eq!(
        (&*held[2], &*held[5]),
        ("68.4 KiB ± 15.2 KiB", "100 B"),
        "{held:?}"
    );
    assert_eq!(row("large_one")[6], "–");
    // One bar for each part in which something was allocated, and the line of what lives.
    let drawn = "[document.querySelectorAll('.course polyline').length, document.querySelectorAll('.course rect').length]";
    let drawn: [usize; 2] = serde_json::from_value(browser.eval(drawn)).unwrap();
    assert!(
        drawn[0] == groups(&browser).len() && drawn[1] >= drawn[0],
        "{drawn:?}"
    );

    choose_groups(&browser, "size");
    browser.wait("document.querySelector('.note')?.dataset.count === '2'");
    assert_eq!(groups(&browser), ["64 B to 128 B", "1 MiB to 2 MiB"]);
    choose_groups(&browser, "lifetime");
    browser.wait("[...document.querySelectorAll('.rows .row')].some((row) => row.firstChild.textContent === 'live')");
    // A row is a filter of the flame graph.
    browser.run(
        "const rows = [...document.querySelectorAll('.rows .row')];
        rows.find((row) => row.firstChild.textContent === 'live').click()",
        json!([]),
    );
    browser.wait("location.hash.includes('filter=live') && document.querySelector('canvas')");
    browser.open("#view=allocations&aby=thread");
    must_total(&browser, all);
    filter(&browser, "size > 1000");
    must_total(&browser, 3 << 20);
    browser.must_be_quiet();
    drop(workload);
}
