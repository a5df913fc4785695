//! The difference shows what grew, in the width of what grew; the rest on request.

use serde_json::json;

use super::live::{MIB, Run};

const ROWS: &str = "document.querySelectorAll('.diff-table .rows .row').length";
/// The figures of the column of changes.
const CHANGES: &str = "[...document.querySelectorAll('.diff-table .rows .row')].map((row) => [...row.children].find((cell) => cell.querySelector('.bar')).textContent)";

#[test]
fn what_grew_comes_first() {
    let (mut run, browser) = Run::shown("#view=flame");
    // After a mark, a button leads to the difference since it.
    assert_eq!(
        browser.eval("document.getElementById('compare').checkVisibility()"),
        false
    );
    browser.click("#mark");
    browser.wait("document.getElementById('compare').checkVisibility()");
    let id = run.api("/v2/marks")["marks"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    run.tell(&format!("mmap {}", 6 * MIB));
    browser.click("#compare");
    browser.wait(&format!(
        "location.hash.includes('view=diff') && location.hash.includes('from={id}')"
    ));
    browser.wait(&format!("{ROWS} > 0"));
    assert_eq!(
        browser.eval("document.getElementById('compare').checkVisibility()"),
        false
    );
    for (width, height) in super::layout::SIZES {
        browser.size(width, height);
        browser.open(&format!("#pause=1&view=diff&from={id}&kind=anon"));
        browser.wait(&format!("{ROWS} > 0"));
        let changes: Vec<String> = serde_json::from_value(browser.eval(CHANGES)).unwrap();
        assert!(
            changes.iter().all(|text| text.starts_with('+')),
            "{changes:?}"
        );
        // The table has the place of each function, and on a narrow screen it comes first.
        let tops =
            "[...document.querySelectorAll('.diff-table, canvas.flame')].map((e) => e.className)";
        let first = &browser.eval(tops)[0];
        assert_eq!(first, if width < 700 { "diff-table" } else { "flame" });
        // Everything: more rows, and frames as wide as their size.
        let few = browser.eval(ROWS).as_u64().unwrap();
        browser.click("[data-show=all]");
        browser.wait(&format!(
            "location.hash.includes('show=all') && {ROWS} > {few}"
        ));
        browser.click("[data-show=shrinkage]");
        browser.wait("location.hash.includes('show=shrinkage')");
        let changes: Vec<String> = serde_json::from_value(browser.eval(CHANGES)).unwrap();
        assert!(
            changes.iter().all(|text| text.starts_with('−')),
            "{changes:?}"
        );
    }
    browser.must_be_quiet();
}

/// A frame is as wide as the growth in it: siblings of 30 and 10 that grew by 0 and 5 are 0 and 5 wide.
#[test]
fn a_frame_is_as_wide_as_its_growth() {
    let (_run, browser) = Run::shown("#view=flame");
    let script = "return import(new URL('assets/js/tree/model.js', location.href)).then(({ Tree }) => {
        const frame = (name) => ({ name, text: name, module: 'm', type: 'function' });
        const tree = new Tree({ frames: [{ ...frame('all'), type: 'root' }, frame('a'), frame('b'), frame('c')], parent: [-1, 0, 0, 0], frame: [0, 1, 2, 3],
            value: [45, 30, 15, 0], self: [0, 30, 15, 0], before: [47, 30, 10, 7], selfBefore: [0, 30, 10, 7] });
        return ['all', '', 'shrinkage'].map((changes) => { tree.drawChanges(changes); return [...tree.width, tree.drawnChange(0)]; });
    })";
    let wanted = json!([[52, 30, 15, 7, -2], [5, 0, 5, 0, 5], [7, 0, 0, 7, -7]]);
    assert_eq!(browser.run(script, json!([])), wanted);
}
