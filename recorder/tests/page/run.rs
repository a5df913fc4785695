//! A recorder with made-up data, and a browser that shows its page.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::skip::skip;

/// Keys by their WebDriver code points.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// The rows that are elements, from the top: their keys.
pub const KEYS: &str = "[...document.querySelectorAll('.rows > .row')]
    .sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top)).map((row) => row.dataset.key)";

/// The process of `mock.py`, which ends when this is dropped.
struct Mock(Child);

/// A server and a tab with its page.
pub struct Run {
    pub browser: Browser,
    address: SocketAddr,
    mock: Option<Mock>,
}

impl Run {
    /// Starts a mock; `None` if this machine lacks what the test needs.
    pub fn start() -> Option<Run> {
        if !has(&["chromedriver", "chromium", "python3"]) {
            return None;
        }
        let mut mock = Mock(
            Command::new("python3")
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/mock.py"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        let mut output = BufReader::new(mock.0.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://");
        let address = address.trim_end_matches('/').parse().unwrap();
        let mut run = Run::with(address)?;
        run.mock = Some(mock);
        Some(run)
    }

    /// Shows the page of another server.
    pub fn with(address: SocketAddr) -> Option<Run> {
        if !has(&["chromedriver", "chromium"]) {
            return None;
        }
        let browser = Browser::start(address);
        // Scripts of the last test's page may still have run.
        browser.errors();
        Some(Run {
            browser,
            address,
            mock: None,
        })
    }

    /// Opens the page with this fragment; waits until rows and the first sentence are shown.
    #[track_caller]
    pub fn open(&self, fragment: &str) {
        self.browser.load(fragment);
        let answered = "document.querySelector('#answer strong')";
        let shown = "document.querySelector('.rows > .row, .notice:not(form), td')";
        self.browser.wait(&format!("!!({answered} && {shown})"));
    }

    /// Changes the fragment of the open page.
    pub fn turn(&self, fragment: &str) {
        self.browser
            .run("location.hash = arguments[0]", json!([fragment]));
    }

    /// Sends a request to the mock; returns the body.
    pub fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let request = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// The JSON at a path of the API.
    pub fn api(&self, path: &str) -> Value {
        serde_json::from_str(&self.ask("GET", path)).unwrap()
    }

    /// The texts of all elements that match, in the order of the document.
    pub fn texts(&self, selector: &str) -> Vec<String> {
        let script =
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)";
        serde_json::from_value(self.browser.run(script, json!([selector]))).unwrap()
    }

    /// The text of the only element that matches.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let mut texts = self.texts(selector);
        assert_eq!(texts.len(), 1, "{selector}");
        texts.remove(0)
    }

    /// Clicks an element.
    pub fn click(&self, selector: &str) {
        let script = "document.querySelector(arguments[0]).click()";
        self.browser.run(script, json!([selector]));
    }

    /// The keys of the rows from the top.
    pub fn keys(&self) -> Vec<String> {
        serde_json::from_value(self.browser.eval(KEYS)).unwrap()
    }

    /// The ids of the messages among the rows from the top.
    pub fn message_ids(&self) -> Vec<u64> {
        let keys = self.keys();
        let ids = keys.iter().filter_map(|key| key.strip_prefix("message-"));
        ids.map(|id| id.parse().unwrap()).collect()
    }

    /// Waits for the details of a row.
    #[track_caller]
    pub fn wait_for_details(&self) {
        self.browser.wait(
            "!!document.querySelector('#details .hex, #details .log-text, #details .notice')",
        );
    }

    /// Fails if the page reported an error, or asked another server for something.
    #[track_caller]
    pub fn end(self) {
        let errors = self.browser.errors();
        assert!(errors.is_empty(), "{errors:?}");
        for url in self.browser.asked() {
            // The browser's own pages have another scheme.
            let is_own = !url.starts_with("http") || url.starts_with(&self.browser.base);
            assert!(is_own, "{url}");
        }
    }
}

/// Whether this machine has all these programs. If not, the test is skipped.
fn has(programs: &[&str]) -> bool {
    for program in programs {
        let found = Command::new(program).arg("--version").output();
        if !found.is_ok_and(|output| output.status.success()) {
            skip(format_args!("{program} is not installed"));
            return false;
        }
    }
    true
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
