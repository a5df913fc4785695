//! A page whose memprof has ended says so, keeps what it has read, and does not ask again by itself.

use std::time::Duration;

use super::live::{MIB, Run};

#[test]
fn the_last_report_stays_and_nothing_is_asked_again() {
    let (mut run, browser) = Run::shown("#view=functions");
    browser.open("#view=flame");
    browser.turn("#view=functions");
    browser.turn("#view=flame");
    run.m.child.kill().unwrap();
    browser.wait("!document.getElementById('banner').hidden");
    let banner = browser.text("#banner");
    assert!(
        banner.contains("has ended") && banner.contains("Try again"),
        "{banner}"
    );
    assert!(browser.text("#alive").starts_with("not running"));
    // Nothing is requested any more.
    std::thread::sleep(Duration::from_millis(500));
    browser.requests();
    std::thread::sleep(Duration::from_secs(7));
    let asked: Vec<_> = browser
        .requests()
        .into_iter()
        .filter(|url| url.contains("/v2/"))
        .collect();
    assert_eq!(asked, Vec::<String>::new());
    // The view can be read, and views that were open before.
    assert!(browser.figure("#selection", "data-bytes") >= 8 * MIB);
    browser.eval("location.hash = '#view=functions'");
    browser.wait("document.querySelectorAll('#content .rows .row').length > 2");
    // A view that was not: no error, and what to do.
    browser.eval("location.hash = '#view=space'");
    browser.wait("/was not open/.test(document.querySelector('#content .notice')?.textContent)");
    // The button asks once.
    browser.requests();
    browser.click("#banner button");
    std::thread::sleep(Duration::from_secs(1));
    let asked = browser
        .requests()
        .into_iter()
        .filter(|url| url.contains("/v2/summary"))
        .count();
    assert_eq!(asked, 1);
    assert_eq!(
        browser.eval("document.getElementById('banner').hidden"),
        false
    );
    browser.errors();
}
