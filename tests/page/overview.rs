//! The page's first view: what is most important, in sentences, and links into the views that show it.

use serde_json::json;

use super::layout::SIZES;
use super::live::Run;
use crate::common::browser::Browser;

/// Has the page receive this overview, with the report that memprof has.
fn with_overview(browser: &Browser, overview: &serde_json::Value) {
    let script = "const fetched = window.fetch;
        window.overview = OVERVIEW;
        window.fetch = async (url, init) => {
            if (!String(url).startsWith('v2/overview')) return fetched(url, init);
            const { report } = await (await fetched('v2/summary')).json();
            return new Response(JSON.stringify({ report, ...window.overview }));
        };";
    browser.before_each_page(&script.replace("OVERVIEW", &overview.to_string()));
}

fn overview() -> serde_json::Value {
    let row = |function: &str, place: &str, bytes: u64, per_hour: Option<i64>| {
        json!({
            "function": function, "place": place, "path": "/srv/shop.py", "bytes": bytes, "per_hour": per_hour,
            "values": per_hour.map_or(vec![], |_| vec![1, 2, 4, 8]), "own": place.starts_with("shop"),
        })
    };
    json!({
        "made_of": { "sentence": "RSS 12 MiB = 9 MiB anonymous + 3 MiB of mapped files", "rss": 12 << 20, "parts": [
            { "name": "heap (brk)", "bytes": 8 << 20 },
            { "name": "libraries", "bytes": 3 << 20 },
            { "name": "anonymous mappings", "bytes": 1 << 20 },
        ], "beside": [{ "name": "page cache that its IO brought in", "bytes": 1 << 20 }] },
        "grows": { "sentence": "apply (shop.py:20) grows by 2.3 MiB an hour.", "rows": [
            row("apply", "shop.py:20", 9 << 20, Some(2 << 20)),
            row(&"a::very::long::name::".repeat(9), "libx.so", 1 << 20, None),
        ] },
        "peak": { "sentence": "41.2 MiB at the peak: build_report 22 MiB.", "rows": [row("build_report", "shop.py:8", 22 << 20, None)] },
        "heap": { "sentences": ["165 MiB of 194 are free; malloc_trim(0) would return them.", "Nothing is lost."], "id": "1", "taken": 1_795_954_667_172u64, "pid": 1 },
        "notes": [{ "text": "The control group is at 93 % of its limit.", "view": "processes" }, { "text": "Killed.", "view": "timeline" }],
        "order": ["made_of", "heap", "grows", "peak"],
    })
}

#[test]
fn the_page_begins_with_sentences() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    with_overview(&browser, &overview());
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for (width, height) in SIZES {
            browser.size(width, height);
            browser.open("");
            // In memprof's order, each with a sentence in larger type than its rows.
            let cards =
                "[...document.querySelectorAll('.overview .card')].map((e) => e.dataset.card)";
            assert_eq!(
                browser.eval(cards),
                json!(["made_of", "heap", "grows", "peak"])
            );
            let large = "[...document.querySelectorAll('.overview .card')].every((e) => {
                const size = (selector) => parseFloat(getComputedStyle(e.querySelector(selector)).fontSize);
                return size('.says') > 16 && size('.says') > Math.max(...[...e.querySelectorAll('p:not(.says), li')].map((p) => parseFloat(getComputedStyle(p).fontSize)));
            })";
            assert_eq!(browser.eval(large), true);
            // The bar adds up.
            let bar = "(([bar, ...parts]) => parts.reduce((sum, e) => sum + e.width, 0) / bar.width)(
                [...document.querySelectorAll('.made-of, .made-of i')].map((e) => e.getBoundingClientRect()))";
            let bar = browser.eval(bar).as_f64().unwrap();
            assert!((bar - 1.0).abs() < 0.01, "{bar}");
            let used = browser.eval("document.documentElement.scrollWidth");
            assert!(used.as_u64().unwrap() <= width.into(), "{width}: {used}");
            if width > 700 {
                let bottom = "document.querySelector('.overview').getBoundingClientRect().bottom";
                let bottom = browser.eval(bottom).as_f64().unwrap();
                assert!(bottom <= f64::from(height), "{bottom}");
            }
        }
    }
    browser.size(1440, 900);
    // Each row leads to the view that shows it.
    for (text, wanted) in [
        (
            "apply",
            &["view=flame", "fn=apply", "path=%2Fsrv%2Fshop.py"][..],
        ),
        ("heap (brk)", &["view=heap"]),
        ("libraries", &["view=space"]),
        ("page cache", &["view=files"]),
        ("control group", &["view=processes"]),
        ("Show that moment", &["view=flame", "mark=peak"]),
        ("Compare with now", &["view=diff", "from=peak"]),
        ("Types, sizes", &["view=heap", "heap=1"]),
    ] {
        browser.open("");
        let script = "[...document.querySelectorAll('.overview a')].find((a) => a.textContent.includes(arguments[0])).click()";
        browser.run(script, json!([text]));
        for part in wanted {
            browser.wait(&format!("location.hash.includes('{part}')"));
        }
    }
    // The key and the tab lead back.
    browser.press("o");
    browser.wait("document.querySelector('.overview') && location.hash.includes('view=overview')");
    let current = "document.querySelector('#tabs [aria-current]').textContent";
    assert_eq!(browser.eval(current), "Overview");
    browser.errors();
}

/// A refresh with the same figures leaves the focus where it is, and with other figures on the same row.
#[test]
fn the_focus_stays_on_its_row() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    with_overview(&browser, &overview());
    browser.open("");
    browser.eval("document.querySelector('.overview [data-card=grows] a').focus()");
    browser.eval("window.overview.grows.rows[0].bytes = 11 << 20");
    browser.wait(
        "document.querySelector('.overview [data-card=grows] a').textContent.includes('11 MiB')",
    );
    let focused =
        "document.activeElement.matches('.overview a') ? document.activeElement.textContent : ''";
    assert!(browser.eval(focused).as_str().unwrap().contains("apply"));
}

/// The page of a real program: RSS is the kernel's figure, and its parts add up to it.
#[test]
fn the_parts_add_up_to_rss() {
    let (run, browser) = Run::shown("");
    let figures = "[...document.querySelectorAll('[data-card=made_of] .links')].at(0).querySelectorAll('.num[title]')";
    let sum = format!(
        "[...{figures}].reduce((sum, e) => sum + parseInt(e.title.replaceAll(',', '')), 0)"
    );
    let total = &run.api("/v2/summary")["total"];
    let rss = ["resident", "file"].map(|kind| total[kind].as_u64().unwrap());
    assert_eq!(browser.eval(&sum), rss[0] + rss[1]);
    // The program's largest function is a row, which leads to its stacks.
    browser.run("[...document.querySelectorAll('[data-card=grows] a')].find((a) => a.textContent.includes('cmd_malloc_large')).click()", json!([]));
    browser.wait("document.querySelector('canvas.flame') && document.getElementById('matched').textContent.includes('cmd_malloc_large')");
    // Without a snapshot, the card says what one does, and takes it.
    browser.press("o");
    browser.wait("document.querySelector('[data-card=heap] button')");
    assert!(
        browser
            .text("[data-card=heap]")
            .contains("No snapshot of the heap yet")
    );
    browser.must_be_quiet();
}

/// A link of before, without a view, still shows the flame graph.
#[test]
fn links_without_a_view_show_the_flame_graph() {
    let (_run, browser) = Run::shown("#dir=callers");
    assert_eq!(
        browser.eval("document.querySelector('canvas.flame') !== null"),
        true
    );
    browser.must_be_quiet();
}
