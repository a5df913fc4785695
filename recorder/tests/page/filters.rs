//! Filters: set by a click, by typing, in the form, and by a link.

use serde_json::json;

use crate::run::{ENTER, KEYS, Run};

/// Whether there are rows of messages, and all have this text in a column.
fn all(column: &str, text: &str) -> String {
    format!(
        "(() => {{ const cells = [...document.querySelectorAll('.rows > .message .{column}')];
            return cells.length > 5 && cells.every((cell) => cell.textContent === '{text}'); }})()"
    )
}

fn search(run: &Run, text: &str) {
    run.browser.press("/");
    assert_eq!(run.browser.eval("document.activeElement.id"), "search");
    run.browser.press(&format!("{text}{ENTER}"));
    run.browser.eval("document.activeElement.blur()");
}

#[test]
fn a_click_on_a_value_filters_and_the_link_restores_it() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=messages");
    for column in ["peer", "kind"] {
        let value = run.texts(&format!(".rows > .message .{column}")).remove(0);
        run.click(&format!(".rows > .message .{column} .value"));
        run.browser.wait(&all(column, &value));
        let hash = run.browser.eval("location.hash");
        let keys = run.keys();
        run.open(hash.as_str().unwrap());
        run.browser.wait(&all(column, &value));
        assert_eq!(run.keys(), keys);
        run.click("#chips button");
        run.browser.wait(&format!(
            "!document.querySelector('#chips button') && {KEYS}.includes('message-299')"
        ));
    }
    // Back and forward go through them.
    run.browser.eval("history.back()");
    run.browser
        .wait("document.querySelectorAll('#chips button').length === 1");
    run.end();
}

#[test]
fn the_search_box_understands_what_is_typed() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet");
    for (typed, chip) in [
        ("203.0.113.7", "host 203.0.113.7 ×"),
        ("203.0.113.7:9732", "address 203.0.113.7:9732 ×"),
        ("2001:DB8::1", "host 2001:db8::1 ×"),
        ("[2001:db8::1]:9733", "address [2001:db8::1]:9733 ×"),
        (
            "idso4JJr6ir2XYgwoF9aJNWi2pr5WW",
            "peer idso4JJr6ir2XYgwoF9aJNWi2pr5WW ×",
        ),
        ("BL5Nwo", "hash BL5Nwo ×"),
        ("oofLvGoQ9h", "hash oofLvGoQ9h ×"),
        ("current head", "kind current_head ×"),
        ("operation", "kind operation ×"),
        ("error", "level Error ×"),
        ("branch validated", "log text branch validated ×"),
        ("Bonjour", "log text Bonjour ×"),
        ("often", "log text often ×"),
    ] {
        search(&run, typed);
        assert_eq!(run.texts("#chips button"), [chip], "{typed}");
        run.click("#chips button");
        run.browser.wait("!document.querySelector('#chips button')");
    }
    run.end();
}

#[test]
fn the_form_has_all_filters() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=messages");
    run.browser.press("f");
    let set = "const form = document.querySelector('#filters');
        for (const [name, value] of Object.entries(arguments[0])) form.elements[name].value = value;
        form.querySelector('input[value=operation]').checked = true;
        form.querySelector('input[value=Warning]').checked = true;
        form.requestSubmit();";
    run.browser.run(
        set,
        json!([{"incoming": "true", "initiator": "remote", "host": "203.0.113.7", "query": "a b"}]),
    );
    run.browser
        .wait("document.querySelectorAll('#chips .option').length === 6");
    assert_eq!(
        run.texts("#chips .option"),
        [
            "kind operation ×",
            "direction received ×",
            "opened by the peer ×",
            "host 203.0.113.7 ×",
            "level Warning ×",
            "log text a b ×"
        ]
    );
    run.browser.wait(&format!(
        "{KEYS}.length === 0 || document.querySelector('.rows > .message')"
    ));
    let asked = run.browser.asked();
    let url = asked
        .iter()
        .find(|url| url.contains("/v4/messages?") && url.contains("kinds=operation"));
    let url = url.expect("no request with the filter");
    for part in [
        "node=quiet",
        "incoming=true",
        "initiator=remote",
        "host=203.0.113.7",
    ] {
        assert!(url.contains(part), "{url}");
    }
    // The download has the same filter.
    let link = run.browser.eval("document.querySelector('#export').href");
    assert!(
        link.as_str().unwrap().contains("/v4/export.pcapng?"),
        "{link}"
    );
    assert!(
        link.as_str()
            .unwrap()
            .contains("kinds=operation&incoming=true"),
        "{link}"
    );
    run.end();
}

#[test]
fn times_select_and_a_category_stands_for_its_kinds() {
    let Some(run) = Run::start() else { return };
    let page = run.api("/v4/messages?node=quiet&limit=40");
    let time = |n: usize| page["items"][n]["time_ms"].as_u64().unwrap();
    run.open(&format!(
        "#node=quiet&view=messages&from={}&to={}",
        time(30),
        time(10)
    ));
    assert_eq!(run.message_ids(), (269..=289).rev().collect::<Vec<_>>());
    // The form shows the same times, and does not change them.
    run.browser.press("f");
    run.browser.run(
        "document.querySelector('#filters').requestSubmit()",
        json!([]),
    );
    run.browser
        .wait("!document.querySelector('#filters').matches(':popover-open')");
    assert_eq!(run.message_ids(), (269..=289).rev().collect::<Vec<_>>());
    for fragment in ["", "&kinds=operation"] {
        run.open(&format!(
            "#node=quiet&view=messages&category=meta{fragment}"
        ));
        run.browser.wait(&all("kind", "metadata"));
    }
    run.end();
}

#[test]
fn nodes_are_selected() {
    let Some(run) = Run::start() else { return };
    run.open("");
    assert!(
        run.text("#answer").starts_with("Node usual: 3,"),
        "{}",
        run.text("#answer")
    );
    let script = "const box = document.querySelector('#node'); box.value = 'quiet'; box.dispatchEvent(new Event('change'))";
    run.browser.run(script, json!([]));
    run.browser.wait("document.querySelector('#answer').textContent.startsWith('Node quiet: 300 messages from 3 peers since ')");
    run.browser.wait(&format!("{KEYS}.includes('message-299')"));
    run.end();
}
