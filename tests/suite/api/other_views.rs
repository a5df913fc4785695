//! Other views of the same memory: `/v1`, the exports with independent readers, live events, the breakdown,
//! the terminal and the page.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::{MAPPED, Walk, number};
use crate::common::browser::{Browser, PATIENCE};
use crate::common::contents::must_mean;
use crate::common::memprof::run;
use crate::common::terminal::Top;
use crate::exports::readers;
use ::memprof::http::exporters::EXPORTERS;
use memprof_profile::Kind;
use memprof_sys::residency::figures;

/// In groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(|g| str::from_utf8(g).unwrap()).collect();
    groups.join(",")
}

impl Walk {
    /// Kinds that memprof was not asked to count are left out.
    fn figure(&self, kind: Kind) -> u64 {
        let total = &self.summary["total"][kind.name()];
        match kind {
            Kind::Column(_) if total.is_null() => 0,
            _ => number(total),
        }
    }

    pub fn v1(&self) {
        assert_eq!(self.m.followed(), self.pid);
        for query in ["", "?threshold=0", "?reverse=true", "?threshold=9999999"] {
            let tree = self.get(&format!("/v1/tree{query}"));
            assert_eq!(number(&tree["value"]) << 10, self.total("all"), "{query}");
            assert_eq!(number(&tree["cacheValue"]) << 10, self.total("cache"));
        }
        let short = self.get("/v1/tree?short=true");
        for (name, kind) in [
            ("total", "all"),
            ("cache", "cache"),
            ("anon", "resident"),
            ("systemReportAnon", "anon"),
        ] {
            assert_eq!(number(&short[name]) << 10, self.total(kind), "{name}");
        }
    }

    pub fn exports(&self) {
        for format in EXPORTERS {
            let (name, can) = (format.name, format.supports);
            let directions = ["", "direction=callers", "direction=callees"];
            let some = if can.direction { 3 } else { 1 };
            for direction in &directions[..some] {
                self.export(name, &format!("/v2/export/{name}?{direction}"));
            }
            for kind in Kind::ALL.into_iter().filter(|kind| self.figure(*kind) > 0) {
                if can.kind {
                    let path = format!("/v2/export/{name}?kind={}", kind.name());
                    let (found, of) = readers::shown(name, &self.m.get(&path).body, kind);
                    assert_eq!(found, self.figure(of), "{path}");
                }
            }
        }
        self.export("pprof", "/debug/pprof/heap");
    }

    fn export(&self, format: &str, path: &str) {
        let reply = self.m.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let wanted = readers::wanted(format, |kind| self.figure(kind));
        assert_eq!(readers::read(format, &reply.body), wanted, "{path}");
    }

    /// A new client of the event stream receives the totals at once.
    pub fn events(&self) {
        let address = self.m.address();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET /v2/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "event: summary"));
        let line = lines.next().unwrap();
        let told: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(told["total"], self.summary["total"]);
        assert_eq!(told["agreement"], self.summary["agreement"]);
    }

    /// The sums of `memprof maps` and `/debug/memory`, which come from `smaps`.
    pub fn breakdown(&self) {
        let resident = self.total("resident") + self.total("file");
        assert_eq!(figures::rollup(self.pid).unwrap().rss, resident);
        let out = run(&["maps", "--pid", &self.pid.to_string(), "--format", "json"]);
        let maps: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(number(&maps["total"]["rss"]), resident);
        assert_eq!(number(&maps["total"]["anonymous"]), self.total("anon"));
        assert_eq!(number(&maps["total"]["swap"]), self.total("swap"));
        let space = self.get("/v2/maps");
        assert_eq!(maps["total"]["mappings"], space["count"]);
        assert_eq!(maps["total"]["virtual"], space["size"]);
        let reply = self.m.get("/debug/memory?top=0");
        let text = reply.text();
        let total = text.lines().find(|line| line.ends_with("  total")).unwrap();
        // Mappings, virtual size, RSS.
        let rss = total.split_whitespace().nth(2).unwrap();
        assert_eq!(rss.parse::<u64>().unwrap() << 10, resident, "{text}");
    }

    /// Both lines of totals in `memprof top`, which is another memprof.
    pub fn terminal(&self, top: &mut Top) {
        top.press("f");
        let kib = |kind| grouped(self.total(kind) >> 10);
        top.shows(&format!(
            "resident {} KiB = kernel   anon {}  shmem {}",
            kib("resident"),
            kib("anon"),
            kib("shmem")
        ));
        top.shows(&format!(
            "page cache {} KiB   file maps {}",
            kib("cache"),
            kib("file")
        ));
    }

    pub fn page(&self, mark: &str) {
        let browser = Browser::start(self.m.address());
        browser.open("#view=flame");
        for kind in ["resident", "anon", "shmem", "cache"] {
            let amount = format!("#totals [data-kind={kind}] dd");
            assert_eq!(browser.figure(&amount, "data-bytes"), self.total(kind));
            must_mean(&browser.text(&amount), self.total(kind));
        }
        assert_eq!(browser.text("#sum"), "✓ equals the kernel");
        self.time_line(&browser);
        for kind in ["all", "anon", "shmem", "cache", "file"] {
            for view in ["flame", "treemap", "tree"] {
                for direction in ["callees", "callers"] {
                    let link = format!("#view={view}&kind={kind}&dir={direction}");
                    browser.open(&link);
                    let found = browser.figure("#selection", "data-bytes");
                    assert_eq!(found, self.total(kind), "{link}");
                }
            }
            browser.open(&format!("#view=functions&kind={kind}"));
            assert_eq!(browser.figure(".note", "data-total"), self.total(kind));
            browser.open(&format!("#view=diff&from={mark}&kind={kind}"));
            let found = browser.figure("#selection", "data-bytes");
            assert_eq!(found, self.total(kind), "difference of {kind}");
        }
        browser.open("#view=files");
        assert_eq!(browser.figure(".note", "data-total"), self.total("cache"));
        browser.open("#view=space");
        let in_ram = MAPPED.iter().filter(|kind| **kind != "swap");
        let in_ram: u64 = in_ram.map(|kind| self.total(kind)).sum();
        assert_eq!(browser.figure(".note", "data-total"), in_ram);
        browser.open("#view=health");
        // The exact figures are in tooltips.
        let shown = browser.eval("document.querySelector('#content').innerHTML");
        let shown = shown.as_str().unwrap_or_default();
        for kind in ["resident", "anon", "file"] {
            assert!(
                shown.contains(&grouped(self.total(kind))),
                "{kind}: {shown}"
            );
        }
        browser.must_be_quiet();
    }

    /// The newest point of the timeline.
    fn time_line(&self, browser: &Browser) {
        browser.wait("document.querySelector('.plot canvas')");
        for (kind, name) in [("anon", "Anonymous "), ("shmem", "Shared ")] {
            let text = format!(
                "document.querySelector('.timeline-foot .swatch.{kind}')?.parentElement.textContent"
            );
            let text = browser.wait(&text);
            let size = text.as_str().unwrap().strip_prefix(name).unwrap();
            must_mean(size, self.total(kind));
        }
    }
}
