//! Where things are, how large, and in which colour: on a wide screen and on a phone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use super::common::report::module;
use super::common::{Fixed, Server, at, kib, report};
use super::lists::{drawn, until};
use super::live::Run;
use crate::common::browser::Browser;
use crate::common::contents::*;
use ::memprof::export;
use ::memprof::http::exporters;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{Frame, Profile, Report};

/// A wide screen and a phone.
pub const SIZES: [(u32, u32); 2] = [(1440, 900), (390, 844)];
/// Levels of the deepest stack: more than fit in a window.
const DEEP: u64 = 70;
const BLOCK_DEVICE: &str = "block-device cache pages (file-system metadata)";

/// Keeps what is written on canvases, in `texts`: the text, its font, its place in the window, and the colour below.
const KEEP_TEXTS: &str = "
    window.texts = [];
    const pen = CanvasRenderingContext2D.prototype;
    const [fillText, fillRect, clearRect] = [pen.fillText, pen.fillRect, pen.clearRect];
    const boxes = new WeakMap();
    pen.clearRect = function (...place) {
        window.texts = window.texts.filter(({ canvas }) => canvas !== this.canvas && canvas.isConnected);
        boxes.set(this, []);
        return clearRect.apply(this, place);
    };
    pen.fillRect = function (x, y, width, height) {
        boxes.get(this)?.push([x, y, width, height, this.fillStyle]);
        return fillRect.call(this, x, y, width, height);
    };
    pen.fillText = function (text, x, y, ...more) {
        const below = boxes.get(this)?.findLast((b) => x >= b[0] && x <= b[0] + b[2] && y >= b[1] && y <= b[1] + b[3]);
        const room = below ? below[0] + below[2] - x : undefined;
        const width = this.measureText(text).width;
        window.texts.push({ canvas: this.canvas, text, x, y, font: this.font, back: below?.[4], room, width });
        return fillText.call(this, text, x, y, ...more);
    };";

/// A deep stack through two files and a shallow one, and memory without a stack.
fn stacks() -> Arc<Report> {
    let names: Vec<String> = (0..DEEP)
        .map(|n| format!("level_{n}_of_the_stack"))
        .collect();
    let file = |n: u64| u16::from(n.is_multiple_of(3));
    let frame = |n: u64| at(file(n), n + 1);
    let deep: Vec<Frame> = (0..DEEP).rev().map(frame).collect();
    let shallow = vec![at(0, 500), frame(1), frame(0)];
    let long = "a::name::that::is::much::longer::than::others".to_owned();
    let mut symbols: Vec<_> = (0..DEEP)
        .zip(&names)
        .map(|(n, name)| (frame(n), name.as_str(), Language::Other))
        .collect();
    symbols.push((at(0, 500), long.as_str(), Language::Rust));
    let samples = [(deep, kib(9000, 0, 0)), (shallow, kib(1500, 0, 300))];
    report(&samples, &[kib(100, 0, 0)], &symbols)
}

fn shown(report: Arc<Report>) -> (Server, Browser) {
    let server = Server::start(Fixed(Ok(report)), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.before_each_page(KEEP_TEXTS);
    (server, browser)
}

/// Whether this text on a canvas is within the window.
fn sees(browser: &Browser, text: &str) -> bool {
    let script = "return window.texts.some(({ canvas, text, y }) => {
            const at = canvas.getBoundingClientRect().top + y;
            return text.startsWith(arguments[0]) && at > 0 && at < innerHeight;
        })";
    browser.run(script, json!([text])) == true
}

#[test]
fn a_flame_graph_is_as_high_as_it_is() {
    let (server, browser) = shown(stacks());
    for (width, height) in SIZES {
        browser.size(width, height);
        for shape in ["icicle", "flame"] {
            browser.open(&format!("#shape={shape}"));
            // No part of the view scrolls by itself; the window does.
            let inner = "[...document.querySelectorAll('#content *')]
                .filter((e) => e.scrollHeight > e.clientHeight + 1 && /auto|scroll|hidden/.test(getComputedStyle(e).overflowY)
                    && e.clientHeight > 60).map((e) => e.className)";
            assert_eq!(browser.eval(inner), json!([]), "{shape} at {width}");
            let room = browser.eval("document.documentElement.scrollHeight - innerHeight");
            assert!(room.as_f64().unwrap() > DEEP as f64 * 10.0, "{room}");
            let (first, last) = (
                "level_0_".to_owned(),
                format!("level_{}_of_the_stack", DEEP - 1),
            );
            let (top, bottom) = match shape {
                "icicle" => (first, last),
                _ => (last, first),
            };
            browser.wait("window.texts.length > 3");
            until(|| sees(&browser, &top));
            assert!(!sees(&browser, &bottom), "{shape} at {width}");
            browser.eval("scrollTo(0, document.documentElement.scrollHeight)");
            until(|| sees(&browser, &bottom));
            // The details stay in view.
            let details = "document.getElementById('selection').getBoundingClientRect().bottom <= innerHeight + 1";
            assert_eq!(browser.eval(details), true);
            browser.eval("scrollTo(0, 0)");
            assert_eq!(browser.eval(details), true);
        }
        // A selected frame is scrolled into view, and nothing covers it.
        browser.open("#view=flame");
        browser.eval("document.querySelector('canvas.flame').focus()");
        browser.press(&DOWN.repeat(40));
        assert_eq!(browser.text("#selection .name"), "level_39_of_the_stack");
        until(|| sees(&browser, "level_39_"));
        let clear = "window.texts.filter(({ text }) => text.startsWith('level_39_')).every(({ canvas, y }) =>
            canvas.getBoundingClientRect().top + y < document.getElementById('selection').getBoundingClientRect().top)";
        assert_eq!(browser.eval(clear), true);
        // A click lands on the frame that is seen there, and the frame stays where it is.
        let place = "(({ canvas, x, y }) => [canvas.getBoundingClientRect().left + x, canvas.getBoundingClientRect().top + y])(
            window.texts.find(({ text }) => text.startsWith('level_35_')))";
        let before = browser.eval(place);
        let script = "const [x, y] = arguments[0];
            document.elementFromPoint(x + 5, y).dispatchEvent(new MouseEvent('click', { clientX: x + 5, clientY: y, bubbles: true }));";
        browser.run(script, json!([before]));
        browser.wait("location.hash.includes('zoom=')");
        assert_eq!(browser.text("#selection .name"), "level_35_of_the_stack");
        until(|| {
            let [before, now] = [&before, &browser.eval(place)].map(|p| p[1].as_f64().unwrap());
            (before - now).abs() < 2.0
        });
    }
    browser.end(server);
}

/// Frames that are too narrow to be seen take no rows: there would be nothing in them.
#[test]
fn a_flame_graph_has_no_empty_rows() {
    let deep: Vec<Frame> = (0..100).rev().map(|n| at(0, n + 1)).collect();
    let samples = [(deep, kib(4, 0, 0)), (vec![at(1, 1)], kib(90_000, 0, 0))];
    let (server, browser) = shown(report(&samples, &[], &[]));
    let height = "document.querySelector('.whole').offsetHeight";
    for (width, height_of_window) in SIZES {
        browser.size(width, height_of_window);
        for shape in ["icicle", "flame"] {
            browser.open(&format!("#shape={shape}"));
            browser.wait(&format!("{height} < 100"));
            // Zoomed in, they are seen.
            browser.eval("document.querySelector('canvas.flame').focus()");
            let along = if shape == "icicle" { DOWN } else { UP };
            browser.press(&format!("{along}{RIGHT}"));
            let name = browser.text("#selection .name");
            assert!(name.contains("(node)"), "{name}");
            browser.press(ENTER);
            browser.wait(&format!("{height} > 1900"));
        }
    }
    browser.end(server);
}

/// Names and sizes on frames and boxes are whole, or end with an ellipsis; no size is cut.
#[test]
fn no_text_is_cut_inside_a_letter() {
    let (server, browser) = shown(stacks());
    for (width, height) in SIZES {
        browser.size(width, height);
        for view in ["flame", "treemap"] {
            browser.open(&format!("#view={view}"));
            browser.wait("window.texts.length > 3");
            let cut = "window.texts.filter(({ canvas, room, width }) => canvas.matches('.flame') && width > room)
                .map(({ text, room, width }) => [text, room, width])";
            assert_eq!(browser.eval(cut), json!([]), "{view} at {width}");
        }
    }
    browser.end(server);
}

/// Of a high tower of callers, the nearest ones and the function itself are in view.
#[test]
fn a_sandwich_begins_at_its_function() {
    let (server, browser) = shown(stacks());
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#view=sandwich&sort=-self");
        browser.eval("[...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('level_69_')).click()");
        browser.wait("document.querySelectorAll('canvas.flame').length === 2");
        until(|| sees(&browser, "level_69_") && sees(&browser, "level_60_"));
        // What the heading says is not repeated below each half.
        let repeated = "[...document.querySelectorAll('.half .selection, .half .crumbs')].filter((e) => e.getClientRects().length).length";
        assert_eq!(browser.eval(repeated), 0, "{width}");
    }
    browser.end(server);
}

/// The kernel's figure and the sum can look the same: the page says by how much they differ.
#[test]
fn the_sum_says_how_far_off_it_is() {
    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;
    let ours = Profile::clone(&stacks().profile).total.usage.resident();
    for (before, after, text) in [
        (ours, ours, "✓ equals the kernel"),
        (
            ours - 4 * KIB,
            ours + 8 * KIB,
            "sum within 12 KiB of kernel",
        ),
        (ours + 8 * KIB, ours + MIB, "sum 8 KiB below kernel"),
        (ours - MIB, ours - 12 * KIB, "sum 12 KiB above kernel"),
    ] {
        let mut report = stacks();
        let profile = Arc::make_mut(&mut Arc::get_mut(&mut report).unwrap().profile);
        (
            profile.kernel_before.rss_anon,
            profile.kernel_before.rss_shmem,
        ) = (before, 0);
        (
            profile.kernel_after.rss_anon,
            profile.kernel_after.rss_shmem,
        ) = (after, 0);
        let (server, browser) = shown(report);
        browser.open("#view=flame");
        assert_eq!(browser.text("#sum"), text);
        browser.end(server);
    }
}

#[test]
fn a_tooltip_covers_neither_its_frame_nor_what_follows() {
    let (server, browser) = shown(stacks());
    browser.size(1440, 900);
    let tip = "(document.querySelector('.tip')?.getClientRects().length ?? 0) > 0";
    for (shape, side) in [
        ("icicle", "tip.bottom <= pointer"),
        ("flame", "tip.top >= pointer"),
    ] {
        browser.open(&format!("#shape={shape}"));
        browser.eval(
            "document.addEventListener('mousemove', (e) => { window.pointer = e.clientY; }, true)",
        );
        let canvas = "canvas.flame";
        browser.point(canvas, 0.3);
        browser.wait(tip);
        let apart = format!(
            "((tip, pointer) => {side} - 8)(document.querySelector('.tip').getBoundingClientRect(), window.pointer)"
        );
        let apart = apart.replace(" - 8", if shape == "icicle" { " - 8" } else { " + 8" });
        assert_eq!(browser.eval(&apart), true, "{shape}");
        // A click and a key take it away, although the pointer stands still.
        browser.drag(canvas, 0.3, 0.3);
        browser.wait("location.hash.includes('zoom=')");
        assert_eq!(browser.eval(tip), false, "{shape}: after a click");
        browser.point(canvas, 0.4);
        browser.wait(tip);
        browser.press(RIGHT);
        assert_eq!(browser.eval(tip), false, "{shape}: after a key");
    }
    browser.end(server);
}

/// Every view, of a real program.
pub const VIEWS: [&str; 10] = [
    "overview",
    "flame",
    "treemap",
    "tree",
    "functions",
    "files",
    "space",
    "diff",
    "health",
    "heap",
];

#[test]
fn everything_is_large_enough_to_read_and_to_hit() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    browser.before_each_page(KEEP_TEXTS);
    for (width, height) in SIZES {
        browser.size(width, height);
        for view in VIEWS {
            browser.open(&format!("#view={view}"));
            drawn(&browser);
            browser.click("#help-button");
            let small = "[...document.querySelectorAll('body *')]
                .filter((e) => e.getClientRects().length && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
                .filter((e) => parseFloat(getComputedStyle(e).fontSize) < 12).map((e) => e.outerHTML.slice(0, 100))";
            assert_eq!(browser.eval(small), json!([]), "{view} at {width}");
            let small = "window.texts.filter(({ font }) => parseFloat(/[\\d.]+(?=px)/.exec(font)[0]) < 12).map(({ text }) => text)";
            assert_eq!(browser.eval(small), json!([]), "{view} at {width}");
            if width > 700 {
                continue;
            }
            let missed = "[...document.querySelectorAll('button, select, input, summary')]
                .filter((e) => e.getClientRects().length && !e.matches('.sort, .toggle, .skip'))
                .filter((e) => { const { width, height } = e.getBoundingClientRect(); return width < 39.9 || height < 39.9; })
                .map((e) => e.outerHTML.slice(0, 100))";
            assert_eq!(browser.eval(missed), json!([]), "{view}");
            let zoomed = "[...document.querySelectorAll('select, input')]
                .filter((e) => e.getClientRects().length && parseFloat(getComputedStyle(e).fontSize) < 16).length";
            assert_eq!(browser.eval(zoomed), 0, "{view}");
            browser.press(ESCAPE);
            let start = "document.querySelector('#content').getBoundingClientRect().top";
            let start = browser.eval(start).as_f64().unwrap();
            assert!(start < f64::from(height) / 2.0, "{view}: {start}");
            // The open tab can be seen; where there are more, a button says so.
            let open = "((tab, row) => tab.left >= row.left - 1 && tab.right <= row.right + 1)(
                document.querySelector('.tabs [aria-current]').getBoundingClientRect(),
                document.querySelector('.tabs').getBoundingClientRect())";
            browser.wait(open);
        }
    }
    browser.open("#view=flame");
    let ends = "[...document.querySelectorAll('.more-tabs')].map((e) => e.getClientRects().length)";
    browser.wait(&format!("({ends}).join() === '0,1'"));
    browser.eval("document.querySelectorAll('.more-tabs')[1].click()");
    browser.wait(&format!("({ends})[0] === 1"));
    browser.must_be_quiet();
}

#[test]
fn tables_waste_no_room() {
    let (server, browser) = shown(stacks());
    browser.size(1440, 900);
    for view in ["tree", "functions"] {
        browser.open(&format!("#view={view}&sort=-total"));
        // The space between the longest name and the next column.
        let gap = "const range = document.createRange();
            const ends = [...document.querySelectorAll('.rows .row')].map((row) => {
                range.selectNodeContents(row.children[3]);
                return range.getBoundingClientRect().right;
            });
            return document.querySelector('.rows .row').children[4].getBoundingClientRect().left - Math.max(...ends)";
        let gap = browser.run(gap, json!([])).as_f64().unwrap();
        assert!((0.0..250.0).contains(&gap), "{view}: {gap}");
        // There is room for each name.
        let cut = "[...document.querySelectorAll('.rows .row')].map((row) => row.children[3])
            .filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)";
        assert_eq!(browser.eval(cut), json!([]), "{view}");
        // Bars are beside the digits, not behind them.
        let cut = "return [...document.querySelectorAll('.barred')].filter((cell) => {
                const range = document.createRange();
                range.selectNodeContents(cell.lastChild);
                const [text, bar] = [range, cell.querySelector('.bar')].map((e) => e.getBoundingClientRect());
                // Digits end above the lower fifth of their line.
                return bar.width > 0 && bar.top < text.bottom - text.height * 0.2 && bar.bottom > text.top;
            }).length + ' of ' + document.querySelectorAll('.barred').length";
        let cut = browser.run(cut, json!([]));
        assert!(cut.as_str().unwrap().starts_with("0 of "), "{view}: {cut}");
        assert_ne!(cut, "0 of 0");
    }
    browser.asked();
    browser.open("#view=functions");
    let requests = browser.requests();
    let requests = requests.iter().filter(|url| url.contains("/v2/functions"));
    assert_eq!(requests.count(), 1, "one load");
    // On a phone the first two figures are seen without scrolling.
    browser.size(390, 844);
    for view in ["functions", "tree"] {
        browser.open(&format!("#view={view}"));
        let seen = "[...document.querySelector('.rows .row').children].slice(0, 3).every((cell) =>
            cell.getBoundingClientRect().right <= document.querySelector('.table').getBoundingClientRect().right)";
        assert_eq!(browser.eval(seen), true, "{view}");
    }
    // A deep row still has room for its name.
    let room = "return [...document.querySelectorAll('.rows .row')].map((row) => {
            const name = row.querySelector('.tree-name').lastChild;
            const range = document.createRange();
            range.selectNode(name);
            return row.children[0].getBoundingClientRect().right - range.getBoundingClientRect().left;
        })";
    let room: Vec<f64> = serde_json::from_value(browser.run(room, json!([]))).unwrap();
    assert!(room.len() > 8, "{room:?}");
    assert!(room.iter().all(|room| *room > 110.0), "{room:?}");
    browser.end(server);
}

/// The colours of files, by name: those of swatches, and those below the names of frames.
fn colours(browser: &Browser) -> BTreeMap<String, String> {
    let script = "const found = {};
        const add = (name, colour) => { (found[name] ??= new Set()).add(colour); };
        const pen = document.createElement('canvas').getContext('2d');
        const plain = (colour) => { pen.fillStyle = colour; return pen.fillStyle; };
        for (const swatch of document.querySelectorAll('#content .swatch')) {
            const name = swatch.nextSibling?.textContent;
            if (name) add(name, plain(getComputedStyle(swatch).backgroundColor));
        }
        for (const { text, back } of window.texts) {
            const level = /^level_(\\d+)_of_the_stack/.exec(text)?.[1];
            if (level && back) add(level % 3 ? arguments[0] : arguments[1], plain(back));
        }
        return Object.fromEntries(Object.entries(found).map(([name, set]) => [name, [...set].join(' ')]))";
    let script = browser.run(script, json!(["node", "libc-2.31.so"]));
    serde_json::from_value(script).unwrap()
}

#[test]
fn a_file_has_one_colour_everywhere() {
    let (server, browser) = shown(stacks());
    browser.size(1440, 900);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let mut known: Option<BTreeMap<String, String>> = None;
        for view in ["flame", "treemap", "tree", "functions", "flame&dir=callers"] {
            browser.open(&format!("#view={view}&sort=-total"));
            let files = || colours(&browser);
            until(|| files().len() == 2);
            let files = files();
            for (name, colours) in &files {
                assert!(
                    !colours.contains(' '),
                    "{scheme}, {view}: {name} has {colours}"
                );
            }
            assert_ne!(files["node"], files["libc-2.31.so"]);
            match &known {
                Some(known) => assert_eq!(*known, files, "{scheme}, {view}"),
                None => known = Some(files),
            }
        }
    }
    // The legend has as much for a file in one direction as in the other.
    let legend = |dir: &str| {
        browser.open(&format!("#dir={dir}"));
        browser.text("#content .legend")
    };
    let callees = legend("callees");
    assert_eq!(callees, legend("callers"));
    assert!(callees.contains("node 10.5 MiB"), "{callees}");
    browser.end(server);
}

/// The SVG export computes the colours of files itself.
#[test]
fn the_svg_export_has_the_colours_of_the_page() {
    let names: Vec<String> = (0..24u16)
        .map(|n| format!("lib{}é.so.{n}", n * 37))
        .collect();
    let functions: Vec<String> = (0..24).map(|n| format!("function_{n}")).collect();
    let frames: Vec<Frame> = (0..24).map(|n| at(n, 1)).collect();
    let samples: Vec<_> = frames.iter().map(|f| (vec![*f], kib(100, 0, 0))).collect();
    let named = frames.iter().zip(&functions);
    let symbols: Vec<_> = named
        .map(|(f, name)| (*f, name.as_str(), Language::Other))
        .collect();
    let own = |n: usize| n.is_multiple_of(3);
    let mut report = report(&samples, &[], &symbols);
    let modules: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| module(name, own(n)))
        .collect();
    Arc::make_mut(&mut Arc::get_mut(&mut report).unwrap().profile).modules = modules.into();
    let mut svg = Vec::new();
    let options = export::ExportOptions::default();
    export::write(
        exporters::by_name("svg").unwrap(),
        &report,
        &options,
        &mut svg,
    )
    .unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let (server, browser) = shown(report);
    browser.open("#view=flame");
    let asked: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| json!([name, own(n)]))
        .collect();
    let script = "return import(new URL('assets/js/tree/colours.js', location.href)).then(({ fileColours }) => {
        const pen = document.createElement('canvas').getContext('2d');
        return arguments[0].map(([name, own]) => { pen.fillStyle = fileColours(name, own)[0]; return pen.fillStyle; });
    })";
    let colours: Vec<String> = serde_json::from_value(browser.run(script, json!([asked]))).unwrap();
    let mut seen = BTreeSet::new();
    for (function, colour) in functions.iter().zip(&colours) {
        let part = |from: usize| u8::from_str_radix(&colour[from..from + 2], 16).unwrap();
        let wanted = format!("fill=\"rgb({},{},{})\"", part(1), part(3), part(5));
        let group = svg
            .split("<g ")
            .find(|group| group.contains(&format!("<title>{function}:")));
        let group = group.unwrap_or_else(|| panic!("{function} is missing"));
        assert!(group.contains(&wanted), "{function}: {wanted}: {group}");
        seen.insert(wanted);
    }
    assert!(seen.len() > 10, "{seen:?}");
    browser.end(server);
}

#[test]
fn red_is_for_what_makes_figures_wrong() {
    for (lost, colour) in [(0, "good"), (3, "bad")] {
        let mut report = stacks();
        let losses = &mut Arc::make_mut(&mut Arc::get_mut(&mut report).unwrap().profile).losses;
        losses.add(BLOCK_DEVICE, 478);
        losses.add("page faults not recorded: page ledger full", lost);
        let (server, browser) = shown(report);
        browser.open("#view=flame");
        let chip = "document.getElementById('losses')";
        let text = browser.text("#losses");
        assert_eq!(text, if lost == 0 { "nothing lost" } else { "3 lost" });
        assert_eq!(
            browser.eval(&format!("{chip}.classList.contains('{colour}')")),
            true
        );
        let title = browser.eval(&format!("{chip}.title"));
        assert!(
            title
                .as_str()
                .unwrap()
                .contains(&format!("478 × {BLOCK_DEVICE}")),
            "{title}"
        );
        browser.end(server);
    }
}

#[test]
fn help_begins_with_the_keys() {
    let (server, browser) = shown(stacks());
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#view=flame");
        browser.press("?");
        browser.wait("document.getElementById('help').open");
        let seen = "[...document.querySelectorAll('#help kbd')].every((key) => {
            const { bottom } = key.getBoundingClientRect();
            return bottom < Math.min(innerHeight, document.getElementById('help').getBoundingClientRect().bottom);
        })";
        assert_eq!(browser.eval(seen), true, "{width}");
    }
    browser.end(server);
}

/// Bytes of a text like `2.50 MiB`.
fn in_bytes(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap();
    let power = ["B", "KiB", "MiB", "GiB"].iter().position(|u| *u == unit);
    number.parse::<f64>().unwrap() * 1024f64.powi(power.unwrap() as i32)
}

#[test]
fn the_timeline_can_be_read() {
    let run = Run::start();
    let browser = Browser::start(run.m.address());
    browser.before_each_page(KEEP_TEXTS);
    let names = [
        "first",
        "a mark with a longer name",
        "third",
        "the fourth one",
        "5",
    ];
    for name in names {
        let body = format!("{{\"name\":\"{name}\"}}");
        let address = run.m.address();
        let request = format!(
            "POST /v2/marks HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let reply = super::common::exchange(address, request.as_bytes());
        assert!(
            reply.starts_with(b"HTTP/1.1 20"),
            "{}",
            String::from_utf8_lossy(&reply)
        );
    }
    until(|| run.api("/v2/series")["times"].as_array().unwrap().len() > 4);
    for (width, height) in SIZES {
        browser.size(width, height);
        browser.open("#pause=1");
        drawn(&browser);
        let labels = "[...new Set(window.texts.filter(({ canvas }) => canvas.closest('#timeline')).map(({ text }) => text))]";
        let labels: Vec<String> = serde_json::from_value(browser.eval(labels)).unwrap();
        // Each tick of the time has another text.
        let times = "window.texts.filter(({ canvas, text }) => canvas.closest('#timeline') && text.includes(':')).map(({ text }) => text)";
        let times: Vec<String> = serde_json::from_value(browser.eval(times)).unwrap();
        let unique: BTreeSet<&String> = times.iter().collect();
        assert_eq!(unique.len(), times.len(), "{times:?}");
        let ticks: Vec<f64> = labels
            .iter()
            .filter(|l| l.ends_with('B'))
            .map(|l| in_bytes(l))
            .collect();
        assert!(ticks.len() >= 3, "{labels:?}");
        let said = "[...document.querySelectorAll('.timeline-foot .legend span')].map((e) => /[\\d.]+ [KMG]?i?B/.exec(e.textContent)?.[0]).filter(Boolean)";
        let said: Vec<String> = serde_json::from_value(browser.eval(said)).unwrap();
        let sum: f64 = said.iter().map(|text| in_bytes(text)).sum();
        assert!(
            ticks.iter().any(|tick| (tick - sum).abs() < sum * 0.25),
            "{ticks:?}, {sum}"
        );
        let places = browser.eval(
            "[document.querySelector('.u-over'), ...document.querySelectorAll('.mark-names > *')]
                .map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.right, r.top, r.bottom])",
        );
        let places: Vec<[f64; 4]> = serde_json::from_value(places).unwrap();
        let (plot, names) = places.split_first().unwrap();
        // At one place the newest name is shown, above the curve.
        assert!(!names.is_empty(), "{width}: {places:?}");
        let newest = browser.text(".mark-names");
        assert!(newest.contains('5'), "{newest}");
        for (n, a) in names.iter().enumerate() {
            assert!(
                a[0] >= plot[0] - 1.0 && a[1] <= plot[1] + 1.0,
                "{width}: cropped: {places:?}"
            );
            assert!(
                a[3] <= plot[2] + 1.0 && a[3] - a[2] > 12.0,
                "{width}: over the curve, or cropped: {places:?}"
            );
            let apart = |b: &[f64; 4]| {
                a[1] <= b[0] || b[1] <= a[0] || a[3] <= b[2] + 0.5 || b[3] <= a[2] + 0.5
            };
            assert!(names[..n].iter().all(apart), "{width}: overlap: {places:?}");
        }
    }
    browser.must_be_quiet();
}

#[test]
fn missing_names_are_said_with_what_would_bring_them() {
    for advice in [None, Some("No symbols in snake (99.9 % of bytes)")] {
        let mut report = stacks();
        let symbols = &mut Arc::get_mut(&mut report).unwrap().symbols;
        Arc::make_mut(symbols).set_advice(advice.map(str::to_owned));
        let (server, browser) = shown(report);
        browser.open("#view=flame");
        let chip = "document.getElementById('names')";
        assert_eq!(browser.eval(&format!("{chip}.hidden")), advice.is_none());
        if let Some(advice) = advice {
            assert_eq!(browser.text("#names"), "names missing");
            assert_eq!(browser.eval(&format!("{chip}.title")), advice);
        }
        browser.end(server);
    }
}
