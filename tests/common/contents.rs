//! Reads the contents of the page.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::browser::Browser;
use super::{Reply, Server, exchange};

/// WebDriver's code points of special keys.
pub const ENTER: &str = "\u{E007}";
pub const ESCAPE: &str = "\u{E00C}";
pub const LEFT: &str = "\u{E012}";
pub const UP: &str = "\u{E013}";
pub const RIGHT: &str = "\u{E014}";
pub const DOWN: &str = "\u{E015}";
pub const TAB: &str = "\u{E004}";

/// The API's reply.
#[track_caller]
pub fn api(server: SocketAddr, path: &str) -> Value {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    let reply = Reply::parse(&exchange(server, request.as_bytes()));
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.json()
}

impl Browser {
    /// An attribute of the first element that matches a selector, as an integer.
    #[track_caller]
    pub fn figure(&self, selector: &str, attribute: &str) -> u64 {
        let script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1])";
        let value = self.run(script, json!([selector, attribute]));
        let text = value
            .as_str()
            .unwrap_or_else(|| panic!("{selector} has no {attribute}"));
        text.parse()
            .unwrap_or_else(|e| panic!("{selector}: {text:?}: {e}"))
    }

    /// The text of the first element that matches a selector.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.textContent";
        let value = self.run(script, json!([selector]));
        let text = value
            .as_str()
            .unwrap_or_else(|| panic!("there is no {selector}"));
        text.to_owned()
    }

    #[track_caller]
    pub fn click(&self, selector: &str) {
        let script =
            "const e = document.querySelector(arguments[0]); e?.click(); return e !== null";
        assert_eq!(self.run(script, json!([selector])), true, "{selector}");
    }

    /// The link to the current view.
    pub fn link(&self) -> String {
        self.eval("location.hash").as_str().unwrap().to_owned()
    }

    /// Fails the test if there were errors, or requests to other servers.
    #[track_caller]
    pub fn must_be_quiet(&self) {
        let errors = self.errors();
        assert!(errors.is_empty(), "{errors:#?}");
        let own = format!("{}/", self.base);
        for url in self.asked() {
            // The browser loads parts of its own user interface from chrome:// URLs.
            let network = url.contains("://") && !url.starts_with("chrome://");
            assert!(!network || url.starts_with(&own), "{url}");
        }
    }

    /// Ends a test of a server: there must have been no errors, and the server must stop.
    #[track_caller]
    pub fn end(self, server: Server) {
        self.must_be_quiet();
        drop(self);
        server.stop();
    }
}

/// Fails the test unless a displayed size like `12.3 MiB` means this number of bytes.
#[track_caller]
pub fn must_mean(text: &str, bytes: u64) {
    let (number, unit) = text
        .split_once(' ')
        .unwrap_or_else(|| panic!("{text:?} is not a size"));
    let units = ["B", "KiB", "MiB", "GiB"];
    let power = units
        .iter()
        .position(|u| *u == unit)
        .unwrap_or_else(|| panic!("{text:?}"));
    let shown = number.parse::<f64>().unwrap() * 1024f64.powi(power.try_into().unwrap());
    // Sizes have three digits.
    assert!(
        (shown - bytes as f64).abs() <= bytes as f64 * 0.006,
        "{text} is not {bytes}"
    );
}
