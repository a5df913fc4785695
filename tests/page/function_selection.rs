//! Functions are chosen by name and file; their callers and callees; search in the call tree; zoom levels; the legend.

use std::sync::Arc;

use serde_json::json;

use super::common::{Fixed, Server, at, kib, report};
use crate::common::browser::Browser;
use crate::common::contents::*;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{Frame, Report};

const SIZES: [(u32, u32); 2] = [(1440, 900), (390, 844)];
const KIB: u64 = 1024;

/// `read` of the library is contained in the names of three other functions; `visit` calls itself through `walk`.
fn stacks() -> Arc<Report> {
    let names = [
        (at(0, 0), "main"),
        (at(0, 1), "read_file"),
        (at(0, 2), "parse"),
        (at(0, 3), "visit"),
        (at(0, 4), "walk"),
        (at(0, 5), "read"),
        (at(0, 6), "rare"),
        (at(0, 7), "rarer"),
        (at(1, 1), "read"),
        (at(1, 2), "alloc"),
        (at(1, 3), "leaf"),
    ];
    let stack = |offsets: &[(u16, u64)]| -> Vec<Frame> {
        offsets
            .iter()
            .map(|(module, offset)| at(*module, *offset))
            .collect()
    };
    let samples = [
        (stack(&[(1, 1), (0, 1), (0, 0)]), kib(4, 0, 0)),
        (stack(&[(0, 5), (0, 1), (0, 0)]), kib(40, 0, 0)),
        (stack(&[(1, 2), (0, 2), (0, 1), (0, 0)]), kib(1000, 0, 0)),
        (
            stack(&[(1, 2), (0, 3), (0, 4), (0, 3), (0, 0)]),
            kib(300, 0, 0),
        ),
        (stack(&[(1, 2), (0, 3), (0, 0)]), kib(200, 0, 0)),
        (stack(&[(1, 3), (0, 7), (0, 6), (0, 0)]), kib(12, 0, 0)),
        (stack(&[(1, 3), (0, 6), (0, 0)]), kib(8, 0, 0)),
    ];
    let names = names.map(|(frame, name)| (frame, name, Language::Other));
    report(&samples, &[kib(100, 0, 0)], &names)
}

fn server() -> Server {
    Server::start(Fixed(Ok(stacks())), ServerOptions::default())
}

/// Clicks on the row of a table whose cells begin with these texts.
fn choose(browser: &Browser, name: &str, file: &str) {
    let script = "const row = [...document.querySelectorAll('.rows .row')].find((row) => {
            const texts = [...row.children].map((cell) => cell.textContent);
            return texts.includes(arguments[0]) && texts.includes(arguments[1]);
        });
        row?.click();
        return row !== undefined";
    browser.wait("document.querySelectorAll('.rows .row').length > 0");
    assert_eq!(
        browser.run(script, json!([name, file])),
        true,
        "{name} ({file})"
    );
}

#[test]
fn a_function_is_chosen_by_name_and_file() {
    let server = server();
    let browser = Browser::start(server.address);
    for (width, height) in SIZES {
        browser.size(width, height);
        // 4 KiB are less than a pixel of a phone. A frame below the threshold counts, too.
        let narrow = if width < 500 {
            "too narrow to see"
        } else {
            "– of 1"
        };
        for (fragment, file, place, text) in [
            (
                "#view=functions",
                "libc-2.31.so",
                narrow,
                "read (libc-2.31.so): 4 KiB matched (0.2 %) in 1 frame",
            ),
            (
                "#view=functions",
                "node",
                "– of 1",
                "read (node): 40 KiB matched (2.4 %) in 1 frame",
            ),
            (
                "#view=functions&min=65536",
                "node",
                "",
                "read (node): 40 KiB matched (2.4 %) in 0 frames",
            ),
        ] {
            browser.open(fragment);
            choose(&browser, "read", file);
            browser.wait(&format!(
                "document.getElementById('matched')?.textContent === '{text}'"
            ));
            assert_eq!(browser.text(".place"), place);
        }
        // Typing a text ends the choice, and finds parts of names again.
        browser.press("/read");
        browser
            .wait("document.getElementById('matched').textContent.startsWith('1.02 MiB matched')");
        browser.press(ENTER);
        browser.wait("document.querySelector('.place').textContent.startsWith('1 of')");
        browser.click("[aria-label='End the search']");
        browser.wait("document.getElementById('matched').textContent === ''");
    }
    browser.end(server);
}

/// Another order or search of the sandwich's list is shown at once, not with the next report.
#[test]
fn the_list_of_the_sandwich_is_sorted_and_searched() {
    let server = server();
    let browser = Browser::start(server.address);
    browser.open("#view=sandwich");
    let first = |name: &str| {
        browser.wait(&format!(
            "document.querySelector('.rows .row').textContent.includes('{name}')"
        ));
    };
    first("alloc");
    browser.eval("document.querySelectorAll('.sort')[1].click()");
    first("main");
    browser.press("/visit");
    first("visit");
    assert_eq!(browser.figure(".note", "data-count"), 1);
    browser.end(server);
}

#[test]
fn callers_and_callees_of_a_recursive_function() {
    let server = server();
    for direction in ["callers", "callees"] {
        let tree = api(
            server.address,
            &format!("/v2/tree?function=visit&path=/opt/node&focus=true&direction={direction}"),
        );
        let sum = |column: &str| -> u64 {
            let bytes = tree["nodes"][column].as_array().unwrap().iter();
            bytes.map(|bytes| bytes.as_u64().unwrap()).sum()
        };
        assert_eq!(tree["nodes"]["total"][0], 500 * KIB, "{direction}");
        assert_eq!(sum("self"), 500 * KIB, "{direction}");
        assert_eq!(tree["matched"], 500 * KIB);
        assert_eq!(tree["total"], 1664 * KIB);
    }
    let browser = Browser::start(server.address);
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#view=sandwich");
        choose(&browser, "visit", "node");
        browser.wait("document.querySelectorAll('canvas.flame').length === 2 && document.querySelector('#focus').textContent");
        assert_eq!(
            browser.text("#focus"),
            "/opt/node. Total 500 KiB, 30.0 % of All: resident + page cache; self 0 B."
        );
        // Callers are above callees, and both begin with the function itself.
        let places = "[...document.querySelectorAll('canvas.flame')].map((c) => c.getBoundingClientRect().top)";
        let places = browser.eval(places);
        assert!(places[0].as_f64() < places[1].as_f64(), "{places}");
        for (half, key, child, bytes) in [
            ("selection-zoomUp", UP, "main", 500),
            ("selection", DOWN, "walk", 300),
        ] {
            let selection = format!("#{half}");
            assert_eq!(browser.text(&format!("{selection} .name")), "visit");
            assert_eq!(browser.figure(&selection, "data-bytes"), 500 * KIB);
            browser.eval(&format!(
                "document.querySelector('canvas[aria-describedby={}]').focus()",
                half.replace("selection", "details")
            ));
            browser.press(key);
            browser.wait(&format!(
                "document.querySelector('{selection} .name').textContent === '{child}'"
            ));
            assert_eq!(browser.figure(&selection, "data-bytes"), bytes * KIB);
        }
        // From there to another function, and back to the list.
        browser.eval("[...document.querySelectorAll('#selection button')].find((b) => b.textContent === 'callers and callees').click()");
        browser.wait("document.getElementById('focus').dataset.total === '307200'");
        assert_eq!(browser.text(".sub"), "walk");
        browser.eval("[...document.querySelectorAll('.focus-head button')][0].click()");
        browser.wait("document.querySelectorAll('.rows .row').length > 5");
    }
    browser.end(server);
}

#[test]
fn a_search_opens_the_way_to_its_matches() {
    let server = server();
    let browser = Browser::start(server.address);
    let rows = "[...document.querySelectorAll('.rows .row')].filter((row) => row.textContent.includes('leaf'))";
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#view=tree");
        browser.wait("document.querySelectorAll('.rows .row').length > 0");
        assert_eq!(
            browser.eval(&format!("{rows}.length")),
            0,
            "small rows are closed"
        );
        browser.press("/leaf");
        browser.wait(&format!("{rows}.length === 2"));
        // No other row has their colour, and the first of them is in view.
        let marked = "[...document.querySelectorAll('.rows .row.hit')].map((row) => row.textContent.includes('leaf'))";
        assert_eq!(browser.eval(marked), json!([true, true]));
        let seen = format!(
            "(({rows})[0].getBoundingClientRect().bottom
            <= document.querySelector('.table').getBoundingClientRect().bottom)"
        );
        assert_eq!(browser.eval(&seen), true);
        // Nothing covers it, and it stays in view when the table gets lower.
        let clear = format!(
            "(({rows})[0].getBoundingClientRect().bottom
            <= (document.querySelector('#selection:not([hidden])')?.getBoundingClientRect().top ?? innerHeight))"
        );
        assert_eq!(browser.eval(&clear), true, "{width}");
        browser.size(width, height - 150);
        browser.wait(&seen);
        browser.size(width, height);
        let link = browser.link();
        browser.open(&link);
        browser.wait(&format!("{rows}.length === 2 && {seen}"));
        browser.press("/");
        let place = |text: &str| {
            browser.wait(&format!(
                "document.querySelector('.place').textContent === '{text}'"
            ));
            let selected =
                browser.eval("document.querySelector('.row[aria-selected=true]').textContent");
            selected.as_str().unwrap().to_owned()
        };
        browser.press(ENTER);
        let first = place("1 of 2");
        assert!(
            first.contains("12 KiB") && first.contains("leaf"),
            "{first}"
        );
        browser.press(ENTER);
        let second = place("2 of 2");
        assert!(
            second.contains("8 KiB") && second.contains("leaf"),
            "{second}"
        );
        browser.click("[aria-label='Previous match (N)']");
        assert_eq!(place("1 of 2"), first);
    }
    browser.end(server);
}

#[test]
fn escape_leaves_one_zoom_level() {
    let server = server();
    let browser = Browser::start(server.address);
    browser.open("#view=flame");
    let zoomed = || browser.text(".crumb[aria-current]");
    browser.eval("document.querySelector('canvas.flame').focus()");
    for (keys, name) in [
        (format!("{DOWN}{ENTER}"), "main"),
        (format!("{DOWN}{DOWN}{DOWN}{ENTER}"), "alloc"),
        (ESCAPE.to_owned(), "main"),
        (ESCAPE.to_owned(), "all"),
        (ESCAPE.to_owned(), "all"),
    ] {
        browser.press(&keys);
        browser.wait(&format!(
            "document.querySelector('.crumb[aria-current]').textContent === '{name}'"
        ));
        assert_eq!(zoomed(), name);
    }
    // Without earlier levels, such as after a reload, it is the parent.
    browser.press(&format!("{DOWN}{DOWN}{DOWN}{DOWN}{ENTER}"));
    browser.wait("document.querySelector('.crumb[aria-current]').textContent === 'alloc'");
    let link = browser.link();
    browser.open(&link);
    browser.press(ESCAPE);
    browser.wait("document.querySelector('.crumb[aria-current]').textContent === 'parse'");
    browser.end(server);
}

#[test]
fn the_legend_says_what_it_counts() {
    let server = server();
    let browser = Browser::start(server.address);
    for direction in ["callees", "callers"] {
        browser.open(&format!("#dir={direction}"));
        let legend = browser.text(".graph .legend");
        // All stacks contain a function of the program; `read_file` calls another function of it.
        assert_eq!(
            legend, "Stacks throughnode 1.53 MiBlibc-2.31.so 1.49 MiB",
            "{direction}"
        );
    }
    browser.end(server);
}
