//! Details of messages, logs and connections.

use crate::run::{ENTER, ESCAPE, Run};

/// The digits of a hex view.
fn digits(view: &str) -> String {
    let bytes = |line: &str| line[8..8 + 48].replace(' ', "");
    view.lines().map(bytes).collect()
}

#[test]
fn a_message_is_shown_whole() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=messages");
    run.browser.press("jjj");
    run.browser.press(ENTER);
    run.wait_for_details();
    let expected = run.api("/v4/messages/297?node=quiet");
    assert!(
        run.browser
            .eval("location.hash")
            .as_str()
            .unwrap()
            .contains("row=message-297")
    );
    let views = run.texts("#details .hex");
    assert_eq!(digits(&views[0]), expected["plain"].as_str().unwrap());
    assert_eq!(digits(&views[1]), expected["raw"].as_str().unwrap());
    let fields = run.text("#details .fields");
    for field in ["hash", "address", "peer_id", "kind", "connection"] {
        let value = expected[field].as_str().unwrap_or_default();
        assert!(fields.contains(value), "{field} {value}: {fields}");
    }
    // Names and values of the JSON stand in the tree.
    let tree = run.text("#details section:nth-of-type(1)");
    let (name, _) = expected["message"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert!(tree.contains(&format!("{name}: ")), "{tree}");
    // The cursor moves with open details; Escape closes them.
    run.browser.press("k");
    run.browser
        .wait("location.hash.includes('row=message-298')");
    run.wait_for_details();
    run.browser.press(ESCAPE);
    run.browser
        .wait("document.querySelector('#details').hidden && !location.hash.includes('row=')");
    run.end();
}

#[test]
fn characters_stand_beside_bytes() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=messages&kinds=advertise");
    run.browser.press("j");
    run.browser.press(ENTER);
    run.wait_for_details();
    let view = run.texts("#details .hex").remove(0);
    let second = view.lines().nth(1).unwrap();
    assert_eq!(
        second,
        "000010  31 31 33 2e 37 3a 39 37  33 32 00 00 00 12 5b 32  113.7:9732....[2"
    );
    run.end();
}

#[test]
fn a_link_opens_a_message_that_is_not_in_the_list() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=messages&kinds=advertise&row=message-5");
    run.wait_for_details();
    assert!(run.text("#details .fields").contains("ack_message"));
    run.open("#node=quiet&row=message-99999");
    run.wait_for_details();
    assert!(
        run.text("#details .notice")
            .contains("there is no message 99999")
    );
    let errors = run.browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("404")),
        "{errors:?}"
    );
    run.end();
}

#[test]
fn large_messages_are_shown_in_parts() {
    let Some(run) = Run::start() else { return };
    run.open("#node=hostile&view=messages&row=message-299");
    run.wait_for_details();
    let lines = "document.querySelector('#details .hex').textContent.split('\\n').length";
    assert_eq!(run.browser.eval(lines), 128);
    assert!(
        run.text("#details .note")
            .contains("Only a part of the bytes is here")
    );
    run.click("#details .hex + button");
    assert_eq!(run.browser.eval(lines), 128 + 4096);
    run.end();
}

#[test]
fn a_log_is_shown_whole_with_what_was_around_it() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=logs");
    run.browser.press("j");
    run.browser.press(ENTER);
    run.wait_for_details();
    let expected = run.api("/v4/logs?node=quiet&limit=1");
    let item = &expected["items"][0];
    assert_eq!(
        run.text("#details .log-text"),
        item["message"].as_str().unwrap()
    );
    run.click("#details .actions button:last-child");
    run.browser.wait("location.hash.includes('from=') && document.querySelector('.rows > .message') && document.querySelector('.rows > .log')");
    run.end();
}

#[test]
fn connections_have_states_and_reasons() {
    let Some(run) = Run::start() else { return };
    run.open("#node=quiet&view=connections");
    assert_eq!(
        run.texts("tbody .badge"),
        [
            "partly decrypted",
            "not recorded",
            "open, gaps",
            "ended",
            "ended",
            "ended"
        ]
    );
    let answer = run.text("#answer");
    assert!(
        answer.ends_with("64.0 KiB lost in 1 connection, 1 connection not recorded, 1 connection partly decrypted."),
        "{answer}"
    );
    run.click("tbody tr:nth-child(2) .badge");
    let details = run.text("#details");
    assert!(
        details.contains("opened before the recorder, so that its nonces are not known"),
        "{details}"
    );
    run.click("tbody tr:nth-child(3) .badge");
    let details = run.text("#details");
    assert!(
        details.contains("65,537 bytes") && details.contains("chunks go on with 19, 2 were lost"),
        "{details}"
    );
    let hash = run.browser.eval("location.hash");
    run.open(hash.as_str().unwrap());
    run.browser
        .wait("document.querySelector('#details .remarks li')");
    // From there to the messages.
    run.click("#details .actions button");
    run.browser
        .wait("document.querySelectorAll('.rows > .message').length > 20");
    assert_eq!(run.message_ids()[0], 199);
    run.end();
}
