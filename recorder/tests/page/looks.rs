//! Widths, colours, and the rules of accessibility, checked by axe-core in every view.

use serde_json::{Value, json};

use crate::run::Run;

const AXE: &str = include_str!("../../../tests/page/vendor/axe-core/axe.min.js");

/// A fragment, and what opens what the test looks at.
const VIEWS: [(&str, &str); 7] = [
    ("#node=quiet", ""),
    ("#node=quiet&row=message-297", ""),
    ("#node=hostile&row=message-297", ""),
    (
        "#node=quiet&view=connections",
        "document.querySelector('tbody .badge').click()",
    ),
    ("#node=empty", ""),
    (
        "#node=quiet&kinds=operation&host=203.0.113.7",
        "document.querySelector('#filter-button').click()",
    ),
    (
        "#node=quiet",
        "document.querySelector('#help-button').click()",
    ),
];

/// Runs axe-core's rules, or one of them, on what is shown; returns the violated ones, each with its elements.
fn violations(run: &Run, rule: Option<&str>) -> Vec<Value> {
    run.browser.run(AXE, json!([]));
    let check = "const only = arguments[0] ? { runOnly: [arguments[0]] } : {};
        return axe.run(document, { resultTypes: ['violations'], ...only }).then(({ violations }) =>
            violations.map(({ id, nodes }) => ({ id, nodes: nodes.slice(0, 3)
                .map(({ html, failureSummary }) => [html.slice(0, 200), failureSummary]) })))";
    serde_json::from_value(run.browser.run(check, json!([rule]))).unwrap()
}

#[track_caller]
fn show(run: &Run, (fragment, script): (&str, &str)) {
    run.open(fragment);
    if fragment.contains("row=") {
        run.wait_for_details();
    }
    run.browser.run(script, json!([]));
}

#[test]
fn no_view_violates_a_rule() {
    let Some(run) = Run::start() else { return };
    let mut found = Vec::new();
    // In the dark only colours differ.
    for (scheme, rule) in [("light", None), ("dark", Some("color-contrast"))] {
        run.browser.prefer(scheme);
        for (width, height) in [(1440, 900), (360, 740)] {
            run.browser.size(width, height);
            for view in VIEWS {
                show(&run, view);
                for rule in violations(&run, rule) {
                    found.push(format!("{view:?}, {scheme}, {width}: {rule}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    // It would find one.
    show(&run, VIEWS[0]);
    run.browser
        .eval("document.documentElement.removeAttribute('lang')");
    assert_eq!(violations(&run, None)[0]["id"], "html-has-lang");
    run.end();
}

#[test]
fn nothing_is_wider_than_the_screen() {
    let Some(run) = Run::start() else { return };
    for width in [360, 768, 1280, 2560] {
        run.browser.size(width, 740);
        for view in VIEWS {
            show(&run, view);
            let used = run.browser.eval("document.documentElement.scrollWidth");
            assert!(
                used.as_u64().unwrap() <= width.into(),
                "{view:?} at {width}: {used}"
            );
        }
        run.open("#node=quiet");
        let room = run
            .browser
            .eval("document.querySelector('#list').clientHeight");
        assert!(room.as_u64().unwrap() > 400, "{width}: {room}");
    }
    run.end();
}

#[test]
fn the_scheme_is_that_of_the_system_until_the_button_says_otherwise() {
    let Some(run) = Run::start() else { return };
    let dark =
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 128";
    for (scheme, is_dark) in [("light", false), ("dark", true)] {
        run.browser.prefer(scheme);
        run.open("#node=quiet");
        assert_eq!(run.browser.eval(dark), is_dark);
        run.click("#theme");
        run.open("#node=quiet");
        assert_eq!(run.browser.eval(dark), !is_dark);
        run.browser.eval("localStorage.clear()");
    }
    run.end();
}
