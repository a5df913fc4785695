//! Saved profiles: opened by the page, and as one HTML file.

use std::sync::Arc;

use serde_json::json;

use super::common::{Fixed, Server, at, kib, report};
use crate::common::browser::Browser;
use ::memprof::export::{self, ExportOptions};
use ::memprof::http::api::Opened;
use ::memprof::http::exporters;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{Kind, Report};

const MARKUP: &str =
    "</script><img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script>";

/// A report whose names are markup: the target's, a function's and a file's.
fn nasty(size: u64) -> Arc<Report> {
    let samples = [
        (vec![at(1, 2), at(0, 1)], kib(size, 0, 8)),
        (vec![at(1, 3), at(0, 1)], kib(64, 4, 0)),
    ];
    let names = [
        (at(0, 1), "main", Language::Other),
        (at(1, 2), MARKUP, Language::Rust),
        (at(1, 3), "quiet", Language::Rust),
    ];
    let mut report = Report::clone(&report(&samples, &[kib(16, 0, 0)], &names));
    let profile = Arc::make_mut(&mut report.profile);
    profile.target.comm = MARKUP.to_owned();
    profile.not_observed[0].mapping = MARKUP.to_owned();
    Arc::new(report)
}

fn written(format: &str, report: &Report) -> Vec<u8> {
    let mut out = Vec::new();
    let format = exporters::by_name(format).unwrap();
    export::write(format, report, &ExportOptions::default(), &mut out).unwrap();
    out
}

/// One file shows the views without a server, and runs nothing that is in a name.
#[test]
fn a_report_in_a_file() {
    let report = nasty(512);
    let server = Server::start(Fixed(Ok(Arc::clone(&report))), ServerOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, written("html", &report)).unwrap();
    let browser = Browser::start(server.address);
    server.stop();
    let total = Kind::All.figure(&report.profile.total);
    let url = |fragment: &str| format!("file://{}{fragment}", file.display());
    browser.asked();
    for (fragment, wanted) in [
        ("#view=flame", MARKUP),
        ("#view=tree&dir=callers&kind=cache", "main"),
        ("#view=functions&q=quiet", "quiet"),
        ("#view=files", "page cache"),
        ("#view=space", "mapping"),
    ] {
        browser.open_url(&url(fragment));
        browser.wait("/^saved on \\d/.test(document.querySelector('#connection').textContent)");
        assert!(browser.text("#target").contains(MARKUP), "{fragment}");
        if fragment == "#view=flame" {
            assert_eq!(browser.figure("#selection", "data-bytes"), total);
        } else {
            let shown = browser.text("#content").to_lowercase();
            assert!(
                shown.contains(&wanted.to_lowercase()),
                "{fragment}: {shown}"
            );
        }
        assert!(browser.eval("window.hacked ?? null").is_null());
        // What needs a live target or memprof is not offered.
        for gone in [
            "#pause",
            "#mark",
            "#freeze",
            "#export",
            "#open",
            "#timeline",
        ] {
            let seen = format!("document.querySelector('{gone}').checkVisibility()");
            assert_eq!(browser.eval(&seen), json!(false), "{gone}");
        }
    }
    // A function leads to the flame graph, by the links inside the file.
    browser.open_url(&url("#view=functions"));
    browser.click(".rows .row:first-child");
    browser.wait("!!document.querySelector('canvas.flame')");
    // Chromium's own pages do not count.
    let mut outside: Vec<_> = browser.asked().into_iter().collect();
    outside.retain(|url| url.starts_with("http") || url.starts_with("ws"));
    assert_eq!(outside, Vec::<String>::new());
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// Gives files to the page as a drop does.
fn drop_file(browser: &Browser, name: &str, text: &str) {
    let script = "const transfer = new DataTransfer(); \
        transfer.items.add(new File([arguments[1]], arguments[0])); \
        for (const type of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));";
    browser.run(script, json!([name, text]));
}

/// A dropped file is shown, compared with the report, and left again; what is no profile is refused by name.
#[test]
fn a_dropped_file_is_opened() {
    let (now, before) = (nasty(512), nasty(256));
    let server = Server::start(
        Opened::new("now.memprof.json".to_owned(), Arc::clone(&now)),
        ServerOptions::default(),
    );
    let browser = Browser::start(server.address);
    browser.open("#view=flame");
    browser.wait("document.querySelector('#connection').textContent.startsWith('saved on ')");
    let resident = || browser.figure("#totals [data-kind=resident] dd", "data-bytes");
    let size = |report: &Report| Kind::Resident.figure(&report.profile.total);
    assert_eq!(resident(), size(&now));

    drop_file(&browser, "notes.json", "{\"a\": 1}");
    browser.wait("!document.querySelector('#banner').hidden");
    let said = browser.text("#banner");
    assert!(said.contains("notes.json could not be opened"), "{said}");
    assert!(said.contains("missing field `format`"), "{said}");

    let text = String::from_utf8(written("profile", &before)).unwrap();
    drop_file(&browser, "before.memprof.json", &text);
    browser.wait("location.hash.includes('mark=1')");
    let shown = format!(
        "document.querySelector('#totals [data-kind=resident] dd').dataset.bytes === '{}'",
        size(&before)
    );
    browser.wait(&shown);
    assert_eq!(
        browser.eval("document.querySelector('#banner').hidden"),
        json!(true)
    );
    browser.open("#view=diff&from=1");
    let grown = size(&now) - size(&before);
    let change = browser.text("#content");
    assert!(change.contains("256 KiB"), "{grown}: {change}");
    assert!(browser.eval("window.hacked ?? null").is_null());
    server.stop();
}
