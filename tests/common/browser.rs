//! A real, headless Chromium, controlled over the W3C WebDriver protocol.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout of every operation; long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
];

/// The one browser: several at once would be too slow. The next test goes on with it, in a new tab: to start one takes three
/// seconds of CPU time.
static TURN: Mutex<Option<Driver>> = Mutex::new(None);

/// A Chromium with its driver. Both end when this is dropped.
struct Driver {
    process: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

/// A tab of the browser, which no other test has until this is dropped.
pub struct Browser {
    /// The address of the pages under test.
    pub base: String,
    turn: MutexGuard<'static, Option<Driver>>,
}

impl Driver {
    fn start() -> Driver {
        let mut process = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is needed for these tests (Debian: chromium-driver)");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port(&mut process)));
        let profile = tempfile::tempdir().unwrap();
        let user_data = format!("--user-data-dir={}", profile.path().display());
        let mut driver = Driver {
            process,
            address,
            session: String::new(),
            _profile: profile,
        };
        let flags: Vec<&str> = FLAGS.into_iter().chain([user_data.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "timeouts": {"script": PATIENCE.as_millis() as u64},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"args": flags}}}});
        let session = driver.command("POST", "/session", Some(&wanted));
        driver.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        driver
    }

    /// Goes on in a new tab, which has nothing of the last one's settings; its logs are empty.
    fn new_tab(&self) {
        let tab = self.command("POST", "/window/new", Some(&json!({"type": "tab"})));
        self.command("DELETE", "/window", None);
        self.command("POST", "/window", Some(&json!({"handle": tab["handle"]})));
        for kind in ["browser", "performance"] {
            self.log(kind);
        }
    }

    /// Sends one command; fails the test if the driver reports an error.
    #[track_caller]
    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.session,
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let reply = reply(stream);
        let value: Value = serde_json::from_slice(&reply).unwrap();
        let value = value["value"].clone();
        assert!(value["error"].is_null(), "{method} {path} {body}: {value}");
        value
    }

    #[track_caller]
    fn log(&self, kind: &str) -> Vec<Value> {
        let log = self.command("POST", "/se/log", Some(&json!({"type": kind})));
        log.as_array().unwrap().clone()
    }
}

/// Ends the browser with the test program, which drops no static variable.
extern "C" fn end_driver() {
    let mut turn = match TURN.try_lock() {
        Ok(turn) => turn,
        Err(TryLockError::Poisoned(failed)) => failed.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    *turn = None;
}

impl Browser {
    /// A tab for the pages of a server.
    pub fn start(server: SocketAddr) -> Browser {
        // After a failed test, nobody knows in which state it is.
        let mut turn = TURN.lock().unwrap_or_else(|failed| {
            TURN.clear_poison();
            let mut turn = failed.into_inner();
            *turn = None;
            turn
        });
        if let Some(driver) = &*turn {
            driver.new_tab();
        } else {
            static ENDS: Once = Once::new();
            ENDS.call_once(|| {
                // SAFETY: the function may be called at any time, and does not panic.
                unsafe { libc::atexit(end_driver) };
            });
            *turn = Some(Driver::start());
        }
        Browser {
            base: format!("http://{server}"),
            turn,
        }
    }

    #[track_caller]
    fn driver(&self) -> &Driver {
        self.turn.as_ref().unwrap()
    }

    #[track_caller]
    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.driver().command(method, path, body)
    }

    /// Runs a function body in the page; returns its result.
    #[track_caller]
    pub fn run(&self, script: &str, args: Value) -> Value {
        self.command(
            "POST",
            "/execute/sync",
            Some(&json!({"script": script, "args": args})),
        )
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn eval(&self, expression: &str) -> Value {
        self.run(&format!("return ({expression});"), json!([]))
    }

    /// Waits until an expression is true in the page; returns its value.
    #[track_caller]
    pub fn wait(&self, expression: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.eval(expression);
            if !matches!(value, Value::Null | Value::Bool(false)) && value != "" {
                return value;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "never true: {expression}\nshown: {}\nsaid: {:?}",
                self.eval("document.body.innerText"),
                self.errors()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Loads the page with this fragment.
    #[track_caller]
    pub fn load(&self, fragment: &str) {
        self.command("POST", "/url", Some(&json!({"url": "about:blank"})));
        self.go(&format!("{}/{fragment}", self.base));
    }

    /// Loads a page of memprof, served or saved.
    #[track_caller]
    fn go(&self, url: &str) {
        self.command("POST", "/url", Some(&json!({"url": url})));
    }

    /// Loads the page with this fragment, and waits until its view is shown.
    #[track_caller]
    pub fn open(&self, fragment: &str) {
        self.load(fragment);
        self.shown(fragment);
    }

    /// Shows another view of the loaded page, and waits until it is shown.
    #[track_caller]
    pub fn turn(&self, fragment: &str) {
        let script = "performance.clearMarks(); location.hash = arguments[0]";
        self.run(script, json!([fragment]));
        self.shown(fragment);
    }

    /// Loads a page of memprof from a URL, and waits until its view is shown.
    #[track_caller]
    pub fn open_url(&self, url: &str) {
        self.go(url);
        self.shown(url);
    }

    /// Waits until the view is shown.
    #[track_caller]
    fn shown(&self, fragment: &str) {
        let failed = "document.querySelector('#content .notice.error')";
        self.wait(&format!(
            "performance.getEntriesByName('memprof-painted').length > 0 || {failed}"
        ));
        let failed = self.eval(&format!("{failed}?.textContent"));
        assert!(failed.is_null(), "{fragment}: {failed}");
        self.wait("!!document.querySelector('#totals .total')");
    }

    /// Presses keys, one after the other; special keys are given by their WebDriver code points.
    #[track_caller]
    pub fn press(&self, keys: &str) {
        let one = |key: char| {
            [
                json!({"type": "keyDown", "value": key.to_string()}),
                json!({"type": "keyUp", "value": key.to_string()}),
            ]
        };
        let actions: Vec<Value> = keys.chars().flat_map(one).collect();
        let input = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.command("POST", "/actions", Some(&input));
    }

    /// Presses the mouse button on an element and releases it, at these fractions of its width.
    #[track_caller]
    pub fn drag(&self, selector: &str, from: f64, to: f64) {
        self.mouse(selector, &[(from, "pointerDown"), (to, "pointerUp")]);
    }

    /// Moves the mouse to this fraction of an element's width.
    #[track_caller]
    pub fn point(&self, selector: &str, at: f64) {
        self.mouse(selector, &[(at, "")]);
    }

    /// Performs mouse actions at fractions of an element's width, in the middle of its height.
    #[track_caller]
    fn mouse(&self, selector: &str, steps: &[(f64, &str)]) {
        let script = "const e = document.querySelector(arguments[0]);
            e.scrollIntoView({ block: 'center' });
            const r = e.getBoundingClientRect();
            return [r.left, r.width, r.top + r.height / 2]";
        // Waits for the final position: elements that are drawn late, such as a scroll bar, move others.
        let mut place = self.run(script, json!([selector]));
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(150));
            let now = self.run(script, json!([selector]));
            if now == place {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{selector} never stands still");
            place = now;
        }
        let [left, width, y] = [0, 1, 2].map(|n| place[n].as_f64().unwrap());
        let mut actions = Vec::new();
        for (part, what) in steps {
            let (x, y) = ((left + width * part).round(), y.round());
            actions.push(
                json!({"type": "pointerMove", "x": x, "y": y, "origin": "viewport", "duration": 50}),
            );
            if !what.is_empty() {
                actions.push(json!({"type": what, "button": 0}));
            }
        }
        let input = json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]});
        self.command("POST", "/actions", Some(&input));
    }

    /// Sends a command of the Chrome DevTools protocol.
    #[track_caller]
    pub fn native(&self, command: &str, parameters: Value) {
        let body = json!({"cmd": command, "params": parameters});
        self.command("POST", "/goog/cdp/execute", Some(&body));
    }

    pub fn size(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.native("Emulation.setDeviceMetricsOverride", size);
    }

    /// Runs this script in every page that is opened from now on, before the page's own scripts.
    pub fn before_each_page(&self, script: &str) {
        let source = json!({"source": script});
        self.native("Page.addScriptToEvaluateOnNewDocument", source);
    }

    pub fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.native("Emulation.setEmulatedMedia", features);
    }

    /// Warnings and errors on the console since the last call.
    pub fn errors(&self) -> Vec<String> {
        let bad = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        let log = self.driver().log("browser");
        let text = |entry: &Value| entry["message"].as_str().unwrap().to_owned();
        log.iter().filter(bad).map(text).collect()
    }

    /// Every URL that was requested over the network since the last call, once.
    pub fn asked(&self) -> BTreeSet<String> {
        self.requests().into_iter().collect()
    }

    /// The URL of every request over the network since the last call.
    pub fn requests(&self) -> Vec<String> {
        let url = |entry: &Value| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            let url = message["params"]["request"]["url"].as_str()?;
            (message["method"] == "Network.requestWillBeSent").then(|| url.to_owned())
        };
        self.driver()
            .log("performance")
            .iter()
            .filter_map(url)
            .collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // This also ends Chromium. A panic here would hide the current one.
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            let request = format!(
                "DELETE {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.session, self.address
            );
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read(&mut [0; 1]);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The port that a driver prints; its further output is discarded.
fn port(driver: &mut Child) -> u16 {
    let mut said = BufReader::new(driver.stdout.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        let count = said.read_line(&mut line).unwrap();
        assert!(count > 0, "chromedriver ended without output");
        if let Some((_, port)) = line
            .trim_end()
            .trim_end_matches('.')
            .split_once("started successfully on port ")
        {
            let port = port.parse().unwrap();
            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
            return port;
        }
    }
}

/// The body of a reply, according to its Content-Length.
fn reply(stream: TcpStream) -> Vec<u8> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    body
}
