//! New rows, and what happens when they come too fast or not at all.

use serde_json::json;

use crate::run::{KEYS, Run};

/// Whether the ids of messages are dense: no row is missing, none is shown twice.
#[track_caller]
fn assert_dense(ids: &[u64]) {
    assert!(ids.len() > 10, "{ids:?}");
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1] + 1), "{ids:?}");
}

/// The newest message that is shown.
const NEWEST: &str = "Math.max(...[...document.querySelectorAll('.rows > .message')].map((row) => Number(row.dataset.key.slice(8))))";

/// Scrolls down to this message; returns the ids of all messages on the way.
fn ids_down_to(run: &Run, last: u64) -> Vec<u64> {
    let script = "const list = document.querySelector('#list');
        const frame = () => new Promise((resolve) => setTimeout(resolve, 30));
        const ids = new Set();
        const scroll = async () => {
            for (let top = 0; ids.size < 20000; top += 600) {
                list.scrollTop = top;
                do await frame(); while (list.scrollTop < top && !list.parentElement.textContent.includes('all that'));
                await frame();
                for (const row of document.querySelectorAll('.rows > .message')) ids.add(Number(row.dataset.key.slice(8)));
                if (Math.min(...ids) <= arguments[0]) break;
            }
            return [...ids].sort((a, b) => b - a);
        };
        return scroll();";
    serde_json::from_value(run.browser.run(script, json!([last]))).unwrap()
}

#[test]
fn the_list_is_that_of_the_api_with_the_newest_first() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet");
    let mut expected = Vec::new();
    for (path, kind) in [("messages", "message"), ("logs", "log")] {
        let page = run.api(&format!("/v4/{path}?node=quiet&limit=50"));
        for item in page["items"].as_array().unwrap() {
            let time: u64 = item["time"].as_str().unwrap().parse().unwrap();
            let id = item["id"].as_u64().unwrap();
            expected.push((time, id, format!("{kind}-{id}")));
        }
    }
    expected.sort();
    let expected: Vec<String> = expected.into_iter().rev().map(|(_, _, key)| key).collect();
    let shown = run.keys();
    assert!(shown.len() > 20);
    assert_eq!(shown, expected[..shown.len()]);
    // Each view has its rows.
    for (view, other) in [("messages", "log"), ("logs", "message")] {
        run.turn(&format!("#node=quiet&view={view}"));
        run.browser.wait(&format!(
            "!{KEYS}.some((key) => key.startsWith('{other}')) && {KEYS}.length > 20"
        ));
    }
    run.end();
}

#[test]
fn older_rows_are_loaded_up_to_the_first() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet");
    let foot = "document.querySelector('.foot').textContent";
    run.browser.wait(&format!(
        "(document.querySelector('#list').scrollTop = 1e6, {foot} === '400 rows: all that there are')"
    ));
    run.browser.wait(&format!("{KEYS}.includes('message-0')"));
    assert_dense(&run.message_ids());
    run.end();
}

#[test]
fn new_rows_appear_on_top() {
    let Some(run) = Run::start() else { return };
    run.open("#node=lossy");
    let first: u64 = run.browser.eval(NEWEST).as_u64().unwrap();
    run.browser.wait(&format!("{NEWEST} > {}", first + 30));
    assert_dense(&run.message_ids());
    run.end();
}

#[test]
fn new_rows_wait_while_the_user_reads_older_ones() {
    let Some(run) = Run::start() else { return };
    run.open("#node=lossy&view=messages");
    run.browser
        .eval("document.querySelector('#list').scrollTop = 200");
    run.browser.wait("!document.querySelector('.fresh').hidden");
    let before = run.keys();
    run.browser
        .wait("parseInt(document.querySelector('.fresh').textContent.match(/\\d+/)) > 30");
    assert_eq!(run.keys(), before);
    run.click(".fresh");
    run.browser.wait(&format!(
        "{NEWEST} > {} + 30",
        before[0].trim_start_matches("message-")
    ));
    run.browser.wait("document.querySelector('.fresh').hidden");
    assert_dense(&run.message_ids());
    run.end();
}

#[test]
fn a_paused_page_stands_still() {
    let Some(run) = Run::start() else { return };
    run.open("#node=lossy");
    run.browser.press("p");
    assert_eq!(run.text("#connection"), "paused");
    let before = run.keys();
    run.browser
        .wait("parseInt(document.querySelector('.fresh').textContent.match(/\\d+/)) > 30");
    assert_eq!(run.keys(), before);
    assert!(
        run.browser
            .eval("location.hash")
            .as_str()
            .unwrap()
            .contains("pause=1")
    );
    run.browser.press("p");
    run.browser.wait(&format!(
        "{KEYS}[0] !== '{}' && document.querySelector('.fresh').hidden",
        before[0]
    ));
    assert_dense(&run.message_ids());
    run.end();
}

#[test]
fn a_thousand_rows_a_second_are_few_elements() {
    let Some(run) = Run::start() else { return };
    run.open("#node=busy");
    let first = run.browser.eval(NEWEST).as_u64().unwrap();
    run.browser.wait(&format!("{NEWEST} > {}", first + 3000));
    let keys = run.keys();
    assert!(keys.len() < 100, "{}", keys.len());
    // Also where rows of the stream follow those of the first page.
    run.browser.press("p");
    assert_dense(&ids_down_to(&run, first - 100));
    // While rows wait, only the 5,000 newest of them are kept: the others come from the API then.
    run.browser
        .wait("parseInt(document.querySelector('.fresh').textContent.replace(/\\D/g, '')) > 8000");
    run.browser.press("g");
    run.browser
        .wait(&format!("{NEWEST} > {}", first + 3000 + 5000));
    let newest = run.browser.eval(NEWEST).as_u64().unwrap();
    assert_dense(&ids_down_to(&run, newest - 5500));
    run.end();
}

#[test]
fn rows_that_the_recorder_left_out_are_counted() {
    let Some(run) = Run::start() else { return };
    run.open("#node=lossy");
    run.browser
        .wait("document.querySelector('.row.lost')?.textContent.startsWith('1,239 rows left out')");
    run.click(".row.lost button");
    run.browser.wait("!document.querySelector('.row.lost')");
    run.end();
}

#[test]
fn a_lost_connection_is_shown_and_nothing_is_missing_after_it() {
    let Some(run) = Run::start() else { return };
    run.open("#node=lossy");
    // With an id from which the stream continues.
    let first = run.browser.eval(NEWEST).as_u64().unwrap();
    run.browser.wait(&format!("{NEWEST} > {}", first + 10));
    run.ask("POST", "/mock?refuse=503&drop=1");
    let banner = "document.querySelector('#banner')";
    run.browser.wait(&format!(
        "!{banner}.hidden && {banner}.textContent.includes('refused by the test')"
    ));
    assert_eq!(run.text("#connection"), "connection lost");
    let last = run.browser.eval(NEWEST).as_u64().unwrap();
    run.ask("POST", "/mock?refuse=0");
    run.browser.wait(&format!(
        "{NEWEST} > {} && document.querySelector('#banner').hidden",
        last + 10
    ));
    assert_eq!(run.text("#connection"), "live");
    assert_dense(&run.message_ids());
    // The browser reports the refused requests.
    let errors = run.browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("503")),
        "{errors:?}"
    );
    run.end();
}
