//! The first screen: the view has most of it, options and notes are quiet, views stand in groups, and nothing moves.

use serde_json::json;

use super::layout::{SIZES, VIEWS};
use super::lists::drawn;
use super::live::{MIB, Run};
use crate::common::browser::Browser;
use crate::common::contents::*;

/// The top of an element in the window, in pixels.
fn top(browser: &Browser, selector: &str) -> f64 {
    let top = format!("document.querySelector({selector:?}).getBoundingClientRect().top");
    browser.eval(&top).as_f64().unwrap()
}

#[test]
fn the_view_begins_in_the_upper_third() {
    let (run, browser) = Run::shown("#view=flame");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.size(1440, 900);
        for view in VIEWS {
            browser.open(&format!("#view={view}"));
            drawn(&browser);
            let start = top(&browser, "#content");
            assert!(start <= 260.0, "{scheme}, {view}: {start}");
            if let "flame" | "treemap" = view {
                let graph = top(&browser, "canvas.flame");
                assert!(graph <= 300.0, "{scheme}, {view}: {graph}");
            }
        }
        browser.size(390, 844);
        browser.open("#view=flame");
        let graph = top(&browser, "canvas.flame");
        assert!(graph <= 422.0, "{scheme}, phone: {graph}");
    }
    drop(run);
    browser.errors();
}

#[test]
fn nothing_moves_while_the_page_loads() {
    let (_run, browser) = Run::shown("#view=flame");
    // How far things moved, weighed by their size: the Web's own figure, in which 0.1 is the limit of good.
    browser.before_each_page(
        "window.moved = 0;
        new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.moved += entry.value;
        }).observe({ type: 'layout-shift', buffered: true });",
    );
    for (width, height) in SIZES {
        browser.size(width, height);
        for view in ["flame", "functions", "heap"] {
            browser.open(&format!("#view={view}"));
            drawn(&browser);
            let moved = browser.eval("window.moved").as_f64().unwrap();
            assert!(moved < 0.05, "{view} at {width}: {moved}");
        }
    }
    browser.must_be_quiet();
}

#[test]
fn details_appear_with_a_selection_only() {
    let (_run, browser) = Run::shown("#view=flame");
    let seen = "document.getElementById('selection').checkVisibility()";
    assert_eq!(browser.eval(seen), false);
    browser.drag("canvas.flame", 0.3, 0.3);
    browser.wait(seen);
    browser.click("#selection [aria-label='Close these details']");
    browser.wait(&format!("!{seen}"));
    browser.must_be_quiet();
}

#[test]
fn options_are_chips_of_what_differs() {
    let (_run, browser) = Run::shown("#view=flame");
    let chips = "[...document.querySelectorAll('#chips button')].map((e) => e.firstChild.data)";
    let open = "document.getElementById('option-menu').matches(':popover-open')";
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#view=flame");
        assert_eq!(browser.eval(chips), json!([]));
        // No option takes room until the menu is open.
        let fields = "[...document.querySelectorAll('#controls select')].filter((e) => e.checkVisibility()).length";
        assert_eq!(browser.eval(fields), 0, "{width}");
        browser.open("#view=flame&dir=callers&merge=site&min=65536&kind=anon");
        let differ = json!(["callers", "Anonymous", "by call site", "≥ 64 KiB"]);
        assert_eq!(browser.eval(chips), differ, "{width}");
        // A chip opens the menu with all options, within the window, and has the keyboard at its own.
        browser.click("#chips button:nth-child(3)");
        assert_eq!(browser.eval("document.activeElement.dataset.name"), "merge");
        let menu = "(({ left, right, top, bottom }) => left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight)(
            document.getElementById('option-menu').getBoundingClientRect())";
        assert_eq!(browser.eval(menu), true, "{width}");
        assert!(browser.eval(fields).as_u64().unwrap() >= 5);
        // Escape closes the menu, and nothing else.
        let link = browser.link();
        browser.press(ESCAPE);
        browser.wait(&format!("!{open}"));
        assert_eq!(browser.link(), link);
        browser.click("#options");
        browser.wait(open);
        browser.click("#option-menu > button");
        browser.wait(&format!("({chips}).length === 0"));
        assert_eq!(browser.link(), "#view=flame");
        browser.press(ESCAPE);
    }
    browser.must_be_quiet();
}

#[test]
fn views_stand_in_groups() {
    let (_run, browser) = Run::shown("#view=flame");
    let tabs = "[...document.querySelectorAll('#tabs a')].map((e) => e.textContent)";
    let first = json!([
        "Overview",
        "Flame graph",
        "Treemap",
        "Call tree",
        "Functions",
        "Sandwich",
        "Change",
        "Heap",
        "System"
    ]);
    assert_eq!(browser.eval(tabs), first);
    browser.run(
        "[...document.querySelectorAll('#tabs a')].at(-1).click()",
        json!([]),
    );
    browser.wait("location.hash.includes('view=files')");
    let offered = browser.eval(tabs).to_string();
    for name in ["Page cache", "Address space", "Health", "Where"] {
        assert!(offered.contains(name), "{offered}");
    }
    // Each view keeps its key.
    for (key, view) in [("1", "flame"), ("7", "space"), ("8", "diff"), ("0", "heap")] {
        browser.press(key);
        browser.wait(&format!("location.hash.includes('view={view}')"));
    }
    browser.must_be_quiet();
}

#[test]
fn notes_are_words_behind_one_badge() {
    let (_run, browser) = Run::shown("#view=flame");
    let count = "[...document.querySelectorAll('#note-list > .warn, #note-list > .bad')].filter((e) => !e.hidden && e.textContent).length";
    browser.wait("/notes?$/.test(document.getElementById('notes').textContent)");
    let (count, text) = (
        browser.eval(count).as_u64().unwrap(),
        browser.text("#notes"),
    );
    let said = match count {
        0 => "no notes".to_owned(),
        1 => "1 note".to_owned(),
        count => format!("{count} notes"),
    };
    assert_eq!(text, said);
    let seen = "document.getElementById('losses').checkVisibility()";
    assert_eq!(browser.eval(seen), false);
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.click("#notes");
        browser.wait(seen);
        let inside =
            "document.getElementById('note-list').getBoundingClientRect().right <= innerWidth";
        assert_eq!(browser.eval(inside), true, "{width}");
        browser.press(ESCAPE);
        browser.wait(&format!("!({seen})"));
    }
    browser.must_be_quiet();
}

/// The pointer stands still, and the figures below it change.
#[test]
fn a_tooltip_follows_the_data() {
    let (mut run, browser) = Run::shown("#view=flame");
    browser.point("canvas.flame", 0.3);
    let tip = "document.querySelector('.tip')?.checkVisibility() && document.querySelector('.tip').textContent";
    let before = browser.wait(tip);
    run.tell(&format!("mmap {}", 16 * MIB));
    browser.wait(&format!("({tip}) && ({tip}) !== {before}"));
    browser.must_be_quiet();
}

/// Without samples, the view of allocations is as it should be: it says what it needs, and requests nothing.
#[test]
fn allocations_without_samples_are_no_error() {
    let (_run, browser) = Run::shown("#view=allocations");
    let text = browser.text("#content .notice");
    assert!(
        text.contains("not sampled") && text.contains("memprof --heap --"),
        "{text}"
    );
    let error = "document.querySelectorAll('.notice.error, #filter').length";
    assert_eq!(browser.eval(error), 0);
    browser.must_be_quiet();
}

/// Every two libraries whose colours differ can be told apart, and the common ones of a process differ.
#[test]
fn colours_of_files_are_far_apart() {
    let (_run, browser) = Run::shown("#view=flame");
    let script = "return import(new URL('assets/js/tree/colours.js', location.href)).then(({ fileColours }) => {
        const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        const pixel = (colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3); };
        const names = [...arguments[0], ...Array.from({ length: 200 }, (_, i) => `lib${i}.so.${i * 7}`)];
        return [0, 1].map((dark) => names.map((name) => pixel(fileColours(name, false)[dark])));
    })";
    let common = [
        "libpython3.11.so.1.0",
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "libstdc++.so.6",
        "<frozen importlib._bootstrap>",
    ];
    let found = browser.run(script, json!([common]));
    let schemes: [Vec<[i32; 3]>; 2] = serde_json::from_value(found).unwrap();
    let apart =
        |a: &[i32; 3], b: &[i32; 3]| -> i32 { a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum() };
    for colours in &schemes {
        for (i, a) in colours.iter().enumerate() {
            for (j, b) in colours[..i].iter().enumerate() {
                let must_differ = i < common.len();
                assert!(
                    apart(a, b) >= 24 || (a == b && !must_differ),
                    "{i} {j}: {a:?} {b:?}"
                );
            }
        }
    }
    browser.must_be_quiet();
}

/// Of an interpreted program, native functions are folded until the chip or its key shows them.
#[test]
fn native_functions_are_folded() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    browser.before_each_page(
        "const fetched = window.fetch;
        window.fetch = async (url, init) => {
            const reply = await fetched(url, init);
            if (!/v2\\/(summary|tree)/.test(url)) return reply;
            const body = await reply.json();
            body.report.has_source = true;
            return new Response(JSON.stringify(body));
        };",
    );
    browser.open("#view=flame");
    let chips = "[...document.querySelectorAll('#chips button')].map((e) => e.firstChild.data)";
    browser.wait(&format!("({chips}).join() === 'native folded'"));
    browser.requests();
    browser.press("f");
    browser.wait("location.hash.includes('py=all')");
    browser.wait(&format!("({chips}).join() === 'with native functions'"));
    let asked = browser.requests();
    assert!(
        asked
            .iter()
            .any(|url| url.contains("/v2/tree") && url.contains("frames=all")),
        "{asked:?}"
    );
    browser.press("f");
    browser.wait("!location.hash.includes('py=')");
    browser.click("#chips button");
    browser.wait("location.hash.includes('py=all')");
    browser.must_be_quiet();
}
