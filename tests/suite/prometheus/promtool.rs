//! What promtool says of the files of docs/deploy, and of /metrics.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{Fixed, Server, at, kib, report};
use crate::prometheus::{configuration, deploy, get, has};
use ::memprof::http::server::ServerOptions;
use memprof_profile::Report;
use memprof_profile::measure::MEASURES;
use memprof_profile::symbol::Language;

/// Runs promtool; returns whether it succeeded, and what it said.
fn promtool(args: &[&str], input: &[u8]) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (out.status.success(), said)
}

#[track_caller]
fn accepts(args: &[&str]) {
    let (good, said) = promtool(args, b"");
    assert!(good, "{said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_example_configuration_is_valid() {
    if !has("promtool") {
        return;
    }
    accepts(&[
        "check",
        "config",
        "--syntax-only",
        text(&deploy("prometheus.yml")),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let address = "127.0.0.1:17832".parse().unwrap();
    // With the files that it names.
    accepts(&[
        "check",
        "config",
        text(&configuration(dir.path(), &[address], &token)),
    ]);
}

#[test]
fn the_rules_fire_where_they_are_to() {
    if !has("promtool") {
        return;
    }
    accepts(&["check", "rules", text(&deploy("memprof-rules.yml"))]);
    let dir = tempfile::tempdir().unwrap();
    let [rules, tests] = ["memprof-rules.yml", "rules-test.yml"].map(|name| dir.path().join(name));
    let wanted = fs::read_to_string(deploy("memprof-rules.yml")).unwrap();
    fs::write(&rules, &wanted).unwrap();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/prometheus/rules-test.yml");
    fs::copy(source, &tests).unwrap();
    accepts(&["test", "rules", text(&tests)]);
    // Each alert is tested: with another expression the tests fail.
    let alerts = wanted.matches("- alert:").count();
    let parts: Vec<&str> = wanted.split("- alert:").collect();
    for broken in 1..=alerts {
        let (name, rest) = parts[broken].split_once('\n').unwrap();
        let (before, after) = rest.split_once("labels:").unwrap();
        let wait = before
            .split("for:")
            .nth(1)
            .map_or("", |_| "for: 1m\n        ");
        let mut parts = parts.clone();
        let never = format!("{name}\n        expr: vector(1) == 0\n        {wait}labels:{after}");
        parts[broken] = &never;
        fs::write(&rules, parts.join("- alert:")).unwrap();
        let (good, said) = promtool(&["test", "rules", text(&tests)], b"");
        assert!(!good && said.contains(name.trim()), "{name}: {said}");
    }
}

/// A report with every optional figure.
fn everything() -> Arc<Report> {
    let samples = [(vec![at(0, 1)], kib(64, 8, 16))];
    let made = report(
        &samples,
        &[kib(4, 0, 0)],
        &[(at(0, 1), "work", Language::Other)],
    );
    let mut made = Arc::unwrap_or_clone(made);
    let profile = Arc::make_mut(&mut made.profile);
    profile.measures = MEASURES.to_vec();
    profile
        .losses
        .add("page faults not recorded: page ledger full", 3);
    profile
        .losses
        .add("block-device cache pages (file-system metadata)", 2);
    Arc::new(made)
}

#[test]
fn it_has_nothing_to_say_about_the_metrics() {
    if !has("promtool") {
        return;
    }
    let server = Server::start(Fixed(Ok(everything())), ServerOptions::default());
    // As curl asks for them.
    let reply = get(server.address, "/metrics", "Accept: */*\r\n");
    let kind = reply.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    for metric in [
        "memprof_losses_total{",
        "memprof_heap_inuse_bytes 0",
        "memprof_not_counted_total{",
    ] {
        assert!(reply.text().contains(metric), "{metric}: {}", reply.text());
    }
    let (good, said) = promtool(&["check", "metrics"], &reply.body);
    assert!(good && said.is_empty(), "{said}\n{}", reply.text());
    // It reports what is wrong with them.
    let wrong = reply
        .text()
        .replace("# HELP memprof_losses_total", "# HELP memprof_losses");
    assert!(!promtool(&["check", "metrics"], wrong.as_bytes()).0);
    // Both formats have the same samples.
    let samples = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| !line.starts_with("process_"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let accept = "Accept: application/openmetrics-text\r\n";
    let open = get(server.address, "/metrics", accept);
    assert!(open.text().ends_with("# EOF\n"));
    assert_eq!(samples(open.text()), samples(reply.text()));
    server.stop();
}
