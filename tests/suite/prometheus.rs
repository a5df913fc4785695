//! Prometheus as Debian packages it: it scrapes memprof by the example configuration of docs/deploy, its figures are
//! memprof's, and its tool accepts the configuration, the rules and the metrics.
//!
//! Needs `prometheus` and `promtool`; `live` also needs root and `cc`.

mod live;
mod promtool;

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::process::{LIMIT, eventually, wait_until};
use crate::common::skip::skip;
use crate::common::workload::Running;
use crate::common::{Reply, exchange};

/// A file of docs/deploy.
pub fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/deploy")
        .join(name)
}

/// Whether a program can be run; reports a skipped test if not.
#[track_caller]
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(format!("{program} is not installed"));
    }
    found
}

/// The example configuration and the rules, in a directory of their own, for these targets and this token.
pub fn configuration(dir: &Path, targets: &[SocketAddr], token: &Path) -> PathBuf {
    let mut text = fs::read_to_string(deploy("prometheus.yml")).unwrap();
    let targets: Vec<String> = targets.iter().map(|a| format!("\"{a}\"")).collect();
    for (example, ours) in [
        ("\"127.0.0.1:17832\"", targets.join(", ")),
        ("/etc/prometheus/memprof.token", token.display().to_string()),
        ("scrape_interval: 30s", "scrape_interval: 2s".to_owned()),
        (
            "evaluation_interval: 30s",
            "evaluation_interval: 1s".to_owned(),
        ),
        ("scrape_timeout: 20s", "scrape_timeout: 2s".to_owned()),
    ] {
        assert_eq!(text.matches(example).count(), 1, "{example}");
        text = text.replace(example, &ours);
    }
    let file = dir.join("prometheus.yml");
    fs::write(&file, text).unwrap();
    fs::copy(deploy("memprof-rules.yml"), dir.join("memprof-rules.yml")).unwrap();
    file
}

/// A running Prometheus, killed when dropped.
pub struct Prometheus {
    _child: Running,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with its data in that directory, and waits until it serves.
    pub fn start(dir: &Path, configuration: &Path) -> Prometheus {
        // Nobody else takes it until Prometheus does, if all goes well.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let log = dir.join("log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn();
        let mut child = Running(child.unwrap());
        wait_until(|| {
            let ended = child.0.try_wait().unwrap();
            let said = || fs::read_to_string(&log).unwrap();
            assert!(ended.is_none(), "Prometheus has ended: {}", said());
            std::net::TcpStream::connect(address).is_ok()
                && get(address, "/-/ready", "").status == 200
        });
        Prometheus {
            _child: child,
            address,
        }
    }

    /// The labels and values of an expression now.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let escaped: String = form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        let reply = get(self.address, &format!("/api/v1/query?query={escaped}"), "");
        assert_eq!(reply.status, 200, "{expression}: {}", reply.text());
        let reply = reply.json();
        let row = |row: &Value| {
            let value = row["value"][1].as_str().unwrap().parse().unwrap();
            (row["metric"].clone(), value)
        };
        let rows = reply["data"]["result"].as_array();
        rows.unwrap_or_else(|| panic!("{expression}: {reply}"))
            .iter()
            .map(row)
            .collect()
    }

    /// The value of an expression once it has one: on a busy machine a scrape may come too late.
    #[track_caller]
    pub fn value(&self, expression: &str) -> f64 {
        let mut rows = Vec::new();
        eventually(LIMIT, expression, || {
            rows = self.query(expression);
            rows.len() == 1
        });
        rows[0].1
    }
}

/// A request with further lines in its header. HTTP/1.0, as the reply is to have no chunks.
pub fn get(address: SocketAddr, target: &str, more: &str) -> Reply {
    let request = format!("GET {target} HTTP/1.0\r\nHost: {address}\r\n{more}\r\n");
    Reply::parse(&exchange(address, request.as_bytes()))
}
