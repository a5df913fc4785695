//! Texts that peers send do no harm, and reasons are given when there is nothing to show.

use crate::run::Run;

#[test]
fn texts_of_peers_are_only_texts() {
    let Some(run) = Run::start() else { return };
    for fragment in [
        "#node=hostile",
        "#node=hostile&row=message-298",
        "#node=hostile&view=connections",
        "#node=hostile&query=%3Cimg%20src%3Dx%3E%E2%80%AE",
    ] {
        run.open(fragment);
        if fragment.contains("row=") {
            run.wait_for_details();
        } else if fragment.contains("connections") {
            run.click("tbody .badge");
        }
        let elements = run
            .browser
            .eval("document.querySelectorAll('body script, body img').length");
        assert_eq!(elements, 0, "{fragment}");
        let text = run.browser.eval("document.body.innerText");
        let text = text.as_str().unwrap();
        for hidden in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{1b}', '\0'] {
            assert!(!text.contains(hidden), "{fragment}: {hidden:?}");
        }
        assert!(text.contains("\\u202e"), "{fragment}: {text}");
        let used = run
            .browser
            .eval("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(used, true, "{fragment}");
    }
    assert_eq!(
        run.browser.eval("document.title.startsWith('hostile: ')"),
        true
    );
    run.end();
}

#[test]
fn an_empty_list_says_why() {
    let Some(run) = Run::start() else { return };
    for (fragment, reason) in [
        ("#node=empty", "No message yet"),
        ("#node=empty&view=logs", "No line of the log yet"),
        ("#node=empty&view=connections", "No connection yet"),
        ("#node=awaited", "Waiting for the node's identity"),
        (
            "#node=quiet&view=messages&kinds=dal_prune",
            "Nothing matches the filters",
        ),
    ] {
        run.open(fragment);
        run.browser.wait(&format!(
            "document.querySelector('.notice strong')?.textContent === \"{reason}\""
        ));
    }
    run.click(".notice button");
    run.browser
        .wait("document.querySelectorAll('.rows > .message').length > 20");
    run.end();
}

#[test]
fn losses_of_the_recorder_stand_in_the_first_sentence() {
    let Some(run) = Run::start() else { return };
    run.open("#node=empty");
    assert_eq!(run.text("#answer"), "Node empty: no message recorded yet.");
    run.ask("POST", "/mock?degraded=1");
    run.open("#node=usual");
    let answer = run.text("#answer");
    let losses = "1,234 lost events, 7 dropped records, 1 unwritten record, 1 damaged file, cannot attach to \\u202e/system.slice: EPERM.";
    assert!(answer.ends_with(losses), "{answer}");
    run.end();
}

#[test]
fn errors_are_shown_with_the_servers_words() {
    let Some(run) = Run::start() else { return };
    run.open("#node=nobody");
    run.browser.wait("document.querySelector('.notice.error')");
    assert!(
        run.text(".notice.error")
            .contains("no such node: \"nobody\"")
    );
    assert_eq!(run.text("#connection"), "refused");
    let errors = run.browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("404")),
        "{errors:?}"
    );
    run.end();
}

#[test]
fn a_token_is_asked_for() {
    let Some(run) = Run::start() else { return };
    run.ask("POST", "/mock?refuse=401");
    run.browser.load("#token=wrong&node=quiet");
    run.browser.wait("document.querySelector('#token')");
    assert!(
        run.text("form.notice")
            .contains("does not accept this token")
    );
    // It does not stay in the address.
    assert_eq!(run.browser.eval("location.hash"), "#node=quiet");
    run.ask("POST", "/mock?refuse=0");
    run.browser.eval("(document.querySelector('#token').value = 'right', document.querySelector('form.notice button').click())");
    run.browser
        .wait("document.querySelectorAll('.rows > .message').length > 20");
    run.browser.errors();
    run.end();
}
