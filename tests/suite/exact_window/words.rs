//! Outputs say whether their figures are exact, and refuse what needs single allocations.

use crate::common::memprof::run;
use crate::exact_window::calls::start;

/// What a reply to `/metrics` says of a metric.
fn help(metrics: &str, name: &str) -> String {
    let start = format!("# HELP {name} ");
    let line = metrics.lines().find(|line| line.starts_with(&start));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

#[test]
fn every_call_is_called_exact_and_one_in_n_estimated() {
    for (args, exact) in [(&[][..], true), (&["--every", "10"][..], false)] {
        let (m, mut lines) = start(args);
        lines.tell("hold 10000 24");
        let report = &m.get("/v2/summary").json()["report"];
        assert_eq!(report["heap_counted"], true);
        assert_eq!(report["heap_exact"], exact, "{args:?}");
        assert_eq!(report["heap_single"], false);
        let of = |target: &str| m.get(target).text().to_owned();
        let said = [
            help(&of("/metrics"), "memprof_heap_alloc_bytes"),
            of("/v2/export/speedscope?kind=alloc_space"),
            of("/v2/export/svg?kind=alloc_space"),
            of("/v2/export/text?kind=alloc_space"),
        ];
        for text in said {
            assert_eq!(text.contains("estimated"), !exact, "{args:?}: {text}");
            assert!(
                !text.contains("sampl") || text.contains("\"sampled\""),
                "{text}"
            );
        }
        for target in [
            "/v2/tree?kind=alloc_space&filter=live",
            "/v2/functions?kind=alloc_space&filter=live",
            "/v2/export/folded?kind=alloc_space&filter=live",
            "/v2/allocations",
        ] {
            let reply = m.get(target);
            assert_eq!(reply.status, 400, "{target}: {}", reply.text());
            let said = reply.text();
            assert!(said.contains("need sampled ones"), "{target}: {said}");
        }
    }
}

#[test]
fn one_run_writes_an_image_of_the_calls_and_one_of_the_bytes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [count, traffic] = ["count.svg", "traffic.svg"].map(|name| dir.path().join(name));
    let out = run(&[
        "--heap=exact",
        "--duration",
        "60",
        "--no-server",
        "-o",
        count.to_str().unwrap(),
        "--kind",
        "alloc_objects",
        "-o",
        traffic.to_str().unwrap(),
        "--kind",
        "alloc_space",
        "--",
        "sh",
        "-c",
        "true",
    ]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    // What it will cost is said beforehand, by kind of program.
    assert!(said.contains("times"), "{said}");
    let [count, traffic] = [count, traffic].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(count.contains("allocations (exact)"), "{count}");
    assert!(traffic.contains("allocated (exact)"), "{traffic}");
    let summary = String::from_utf8_lossy(&out.stdout);
    assert!(!summary.contains("estimated"), "{summary}");
    let filtered = run(&[
        "--heap=exact",
        "--duration",
        "1",
        "-o",
        "/dev/null",
        "--format",
        "text",
        "--kind",
        "alloc_space",
        "--filter",
        "live",
        "--",
        "true",
    ]);
    let said = String::from_utf8_lossy(&filtered.stderr);
    assert_eq!(filtered.status.code(), Some(2), "{said}");
    assert!(said.contains("sampled allocations"), "{said}");
}
