//! Dark and light schemes, wide and narrow screens, and how the files are served.

use serde_json::json;

use super::common::{Fixed, Server, at, kib, report};
use crate::common::browser::Browser;
use ::memprof::http::server::ServerOptions;
use memprof_profile::Frame;
use memprof_profile::symbol::Language;

/// The views of a server without a live process.
const VIEWS: [&str; 4] = ["flame", "treemap", "tree", "functions"];

fn server() -> Server {
    let long = "a::very::long::name::".repeat(20);
    let report = report(
        &[
            (vec![at(0, 1), at(0, 2)], kib(4000, 0, 200)),
            (vec![at(1, 1), Frame::unmapped(7), at(0, 2)], kib(400, 0, 0)),
        ],
        &[kib(100, 0, 0)],
        &[
            (at(0, 1), long.as_str(), Language::Rust),
            (at(0, 2), "main", Language::Other),
        ],
    );
    Server::start(Fixed(Ok(report)), ServerOptions::default())
}

/// The lowest contrast ratio of text to its background, as WCAG 2 defines it.
const CONTRAST: &str = "
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (colour) => rgb(colour).slice(0, 3).map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    let worst = [99, ''];
    for (const element of document.querySelectorAll('h1, .chip, .badge, dt, dd, .tabs a, button, select, .note, .selection *')) {
        if (!element.textContent || !element.getClientRects().length || element.disabled) continue;
        let back = element;
        while (back && (rgb(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
        const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(back ?? document.body).backgroundColor)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 200)];
    }
    return worst;";

#[test]
fn dark_and_light() {
    let server = server();
    let browser = Browser::start(server.address);
    let back = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]";
    for (scheme, dark) in [("light", false), ("dark", true)] {
        browser.prefer(scheme);
        for view in VIEWS {
            browser.open(&format!("#view={view}"));
            assert_eq!(browser.eval(&format!("{back} < 128")), dark, "{scheme}");
            let worst = browser.run(CONTRAST, json!([]));
            assert!(
                worst[0].as_f64().unwrap() >= 4.5,
                "{scheme}, {view}: {worst}"
            );
        }
        // The button selects the other scheme, and a reload keeps it.
        browser.eval("document.getElementById('theme').click()");
        browser.open("#view=flame");
        assert_eq!(
            browser.eval(&format!("{back} < 128")),
            !dark,
            "not {scheme}"
        );
        browser.eval("localStorage.clear()");
    }
    browser.end(server);
}

#[test]
fn narrow_screens() {
    let server = server();
    let browser = Browser::start(server.address);
    for width in [360, 768, 1280, 2560] {
        browser.size(width, 740);
        for view in VIEWS {
            browser.open(&format!("#view={view}"));
            let used = browser.eval("document.documentElement.scrollWidth");
            assert!(
                used.as_u64().unwrap() <= width.into(),
                "{view} at {width}: {used}"
            );
            let drawn =
                browser.eval("document.querySelector('.stage').getBoundingClientRect().height");
            // A flame graph is as high as its stacks: here three frames and the root.
            let least = if view == "flame" { 80.0 } else { 200.0 };
            assert!(
                drawn.as_f64().unwrap() >= least,
                "{view} at {width}: {drawn}"
            );
        }
    }
    browser.end(server);
}

#[test]
fn files_are_served_for_browsers() {
    let server = server();
    for asset in ::memprof::http::web::ASSETS {
        let reply = server.get(asset.path);
        assert_eq!((reply.status, asset.path), (200, asset.path));
        assert_eq!(reply.body, asset.bytes);
        assert_eq!(reply.header("content-type"), Some(asset.content_type));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("cache-control"), Some("no-cache"));
        let policy = reply.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'; script-src 'self'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        let etag = reply.header("etag").unwrap();
        let head = server.request("HEAD", asset.path, &[]);
        assert_eq!((head.status, head.body.len()), (200, 0));
        for known in [etag, &format!("W/\"x\", W/{etag}"), "*"] {
            let again = server.request("GET", asset.path, &[("If-None-Match", known)]);
            assert_eq!((again.status, again.body.len()), (304, 0), "{known}");
        }
        let other = server.request("GET", asset.path, &[("If-None-Match", "\"x\"")]);
        assert_eq!(other.status, 200);
        let post = server.request("POST", asset.path, &[]);
        assert_eq!(
            (post.status, post.header("allow")),
            (405, Some("GET, HEAD"))
        );
        let foreign = server.request("GET", asset.path, &[("Host", "evil.example")]);
        assert_eq!(foreign.status, 403);
    }
    for path in [
        "/assets",
        "/assets/",
        "/assets/../web.rs",
        "/assets/js",
        "/index.html",
        "//",
    ] {
        assert_eq!((server.get(path).status, path), (404, path));
    }
    server.stop();
}
