//! Stacks that were cut off are together, and Rust names have no hashes.

use std::sync::Arc;

use super::common::{Fixed, Server, at, kib, report};
use crate::common::browser::Browser;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{Outcome, PartialReason, Report, Stack};

#[test]
fn one_node_says_why_stacks_are_cut_off() {
    let names = [
        (at(0, 1), "main", Language::Other),
        (at(0, 2), "walk::left::h0123456789abcdef", Language::Rust),
        (at(0, 3), "walk::left::hfedcba9876543210", Language::Rust),
        (at(0, 4), "walk::right", Language::Rust),
    ];
    let stacks = [
        (vec![at(0, 2), at(0, 1)], kib(4000, 0, 0)),
        (vec![at(0, 1), at(0, 2)], kib(600, 0, 0)),
        (vec![at(0, 1), at(0, 3)], kib(500, 0, 0)),
        (vec![at(0, 2), at(0, 4)], kib(400, 0, 0)),
    ];
    let mut report = Report::clone(&report(&stacks, &[], &names));
    for sample in &mut Arc::make_mut(&mut report.profile).samples[1..] {
        sample.stack = Arc::new(Stack {
            frames: sample.stack.frames.clone(),
            outcome: Outcome::Partial(PartialReason::DepthLimit),
        });
    }
    let server = Server::start(Fixed(Ok(Arc::new(report))), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=tree&dir=callees");
    browser.wait("[...document.querySelectorAll('.rows .row')].some((row) => row.textContent.includes('[cut off')) || null");
    let rows = browser.eval(
        "[...document.querySelectorAll('.rows .row')].map((row) => row.textContent).filter((text) => text.includes('[cut off'))",
    );
    let [row] = rows.as_array().unwrap().as_slice() else {
        panic!("{rows}");
    };
    let row = row.as_str().unwrap();
    assert!(
        row.contains("[cut off: depth limit, see --max-frames]"),
        "{row}"
    );
    // 600, 500 and 400 KiB.
    assert!(row.contains("1.46 MiB"), "{row}");
    browser.open("#view=functions");
    browser.wait("document.querySelectorAll('.rows .row').length === 3 || null");
    let text = browser.text("#content");
    assert!(
        text.contains("walk::left") && !text.contains("::h"),
        "{text}"
    );
    browser.must_be_quiet();
    browser.end(server);
}
