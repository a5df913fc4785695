//! The kinds of memory: which are offered, what each answers, and the figures of the heap by stack.

use std::sync::Arc;

use serde_json::{Value, json};

use super::common::memprof::Memprof;
use super::common::process::{cont, stop};
use super::common::workload::program;
use super::common::{Fixed, Server, at, kib, report};
use super::live::MIB;
use crate::common::browser::Browser;
use crate::common::contents::*;
use ::memprof::http::server::ServerOptions;
use memprof_profile::measure::{ColumnId, MEASURES};
use memprof_profile::symbol::Language;
use memprof_profile::{Amounts, Report, Uncertainty};

/// Each kind of the heap, and what its line beside the selector begins with.
const HEAP: [(&str, &str); 8] = [
    ("inuse_space", "Live (estimated): who uses the heap now."),
    ("inuse_objects", "Live (estimated): who uses the heap now."),
    (
        "at_peak_space",
        "Heap at its peak (estimated): who held it when most was live.",
    ),
    (
        "at_peak_objects",
        "Heap at its peak (estimated): who held it when most was live.",
    ),
    (
        "alloc_space",
        "Allocated (estimated): who causes the traffic.",
    ),
    (
        "alloc_objects",
        "Allocated (estimated): who causes the traffic.",
    ),
    (
        "temporary_space",
        "Temporary (estimated): who allocates only to free at once.",
    ),
    (
        "temporary_objects",
        "Temporary (estimated): who allocates only to free at once.",
    ),
];

/// `large` holds 40 MiB in 5,000 allocations and `small` 64 KiB in 9; neither is known better than by 1 MiB or 100
/// allocations. All else is 0. With `figures` false, nothing was sampled.
fn heap(figures: bool) -> Arc<Report> {
    let names = [
        (at(0, 0), "main", Language::Other),
        (at(0, 1), "large", Language::Other),
        (at(0, 2), "small", Language::Other),
    ];
    let samples = [
        (vec![at(0, 1), at(0, 0)], kib(4000, 0, 0)),
        (vec![at(0, 2), at(0, 0)], kib(40, 0, 0)),
    ];
    let exact = report(&samples, &[], &names);
    let mut profile = (*exact.profile).clone();
    profile.measures = MEASURES[..5].to_vec();
    let column = |name: &str| {
        let mut all = ColumnId::ALL.into_iter();
        all.find(|id| id.column().name == name).unwrap()
    };
    for (sample, space, objects) in [(0, 40 * MIB, 5000), (1, MIB / 16, 9)] {
        for (names, figure, error) in [
            (["inuse_space", "at_peak_space", "alloc_space"], space, MIB),
            (
                ["inuse_objects", "at_peak_objects", "alloc_objects"],
                objects,
                100,
            ),
        ] {
            for id in names.map(column).into_iter().filter(|_| figures) {
                let amounts = Amounts::in_column(id, figure);
                profile.samples[sample].amounts += amounts;
                profile.total += amounts;
                let variance = (error as f64).powi(2);
                let uncertainty = Uncertainty::in_column(id, sample as u32, variance);
                profile.uncertainties.push(uncertainty);
            }
        }
    }
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::clone(&exact.symbols),
        sequence: exact.sequence,
    })
}

/// The names of the kinds that the selector offers.
fn offered(browser: &Browser) -> Vec<String> {
    let names = browser
        .wait("[...document.querySelectorAll('[data-name=kind] option')].map((o) => o.value)");
    let names = names.as_array().unwrap().iter();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// A cell of the row that contains a text.
fn cell(browser: &Browser, row: &str, cell: usize, what: &str) -> String {
    let script = format!(
        "const row = [...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('{row}'));
        return row?.children[{cell}].{what} ?? 'no such row'"
    );
    browser.run(&script, json!([])).as_str().unwrap().to_owned()
}

/// Selects a kind as a user does, and waits until the view shows it.
fn select(browser: &Browser, kind: &str) {
    let script = "const box = document.querySelector('[data-name=kind]');
        performance.clearMarks();
        box.value = arguments[0];
        box.dispatchEvent(new Event('change'));";
    browser.run(script, json!([kind]));
    browser.wait(&format!(
        "location.hash.includes('kind={kind}') && performance.getEntriesByName('memprof-painted').length > 0"
    ));
}

#[test]
fn kinds_are_offered_if_they_are_counted() {
    let names = [(at(0, 0), "main", Language::Other)];
    let uncounted = report(&[(vec![at(0, 0)], kib(40, 0, 0))], &[], &names);
    let server = Server::start(Fixed(Ok(uncounted)), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=flame");
    let resident = [
        "all", "resident", "anon", "shmem", "cache", "file", "swap", "hugetlb",
    ];
    assert_eq!(offered(&browser), resident);
    let line = browser.text("#answer");
    assert!(
        line.starts_with("Resident (first touch): who made the process grow."),
        "{line}"
    );
    browser.end(server);

    let server = Server::start(Fixed(Ok(heap(true))), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=flame");
    browser.wait("document.querySelector('[data-name=kind] [value=inuse_space]') !== null");
    let all: Vec<&str> = resident
        .into_iter()
        .chain(["pss"])
        .chain(HEAP.map(|(kind, _)| kind))
        .chain(["kernel"])
        .collect();
    assert_eq!(offered(&browser), all);
    let groups = browser
        .eval("[...document.querySelectorAll('[data-name=kind] optgroup')].map((g) => g.label)");
    assert_eq!(
        groups,
        json!([
            "Resident (first touch)",
            "Proportional (PSS)",
            "Live heap (estimated)",
            "Live heap at its peak (estimated)",
            "Allocated (estimated)",
            "Temporary (estimated)",
            "Kernel (approximate)"
        ])
    );
    browser.must_be_quiet();
    browser.end(server);
}

#[test]
fn figures_of_the_heap_have_their_unit_and_error() {
    let server = Server::start(Fixed(Ok(heap(true))), ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=flame");
    browser.wait("document.querySelector('#totals [data-kind=alloc_space]') !== null");
    let total = |kind: &str| browser.text(&format!("#totals [data-kind={kind}] dd"));
    assert_eq!(total("inuse_space"), "40.1 MiB ± 2.77 MiB");
    assert_eq!(total("alloc_space"), "40.1 MiB ± 2.77 MiB");
    // The whole of a view, in its own words.
    browser.open("#kind=inuse_objects");
    let selection = browser.text("#selection .facts");
    assert!(selection.contains("total 5,009 ± 277"), "{selection}");
    let legend = browser.text(".graph .legend");
    assert!(
        legend.contains(" ~5,009") && !legend.contains("iB"),
        "{legend}"
    );
    // Thresholds are sizes.
    let threshold = "document.querySelector('[data-name=min]').closest('.field').hidden";
    assert_eq!(browser.eval(threshold), true);
    select(&browser, "inuse_space");
    assert_eq!(browser.eval(threshold), false);
    assert!(
        browser
            .text("#selection .facts")
            .contains("total 40.1 MiB ± 2.77 MiB")
    );
    for (kind, large, title, small) in [
        (
            "inuse_space",
            "~40 MiB",
            "41,943,040 bytes ± 1.96 MiB (with 95 % confidence; standard error 1 MiB)",
            "< 2.02 MiB",
        ),
        (
            "alloc_objects",
            "~5,000",
            "5,000 objects ± 196 (with 95 % confidence; standard error 100)",
            "< 205",
        ),
    ] {
        browser.open(&format!("#view=tree&kind={kind}"));
        browser.wait("[...document.querySelectorAll('.rows .row')].some((row) => row.textContent.includes('large')) || null");
        let at = |row, at, what| cell(&browser, row, at, what);
        assert_eq!(at("large", 0, "textContent"), large);
        assert_eq!(at("large", 0, "title"), title);
        assert_eq!(at("large", 2, "title"), title);
        browser.open(&format!("#view=functions&kind={kind}"));
        browser.wait("document.querySelectorAll('.rows .row').length >= 3 || null");
        assert_eq!(at("large", 1, "textContent"), large);
        assert_eq!(at("large", 1, "title"), title);
        assert_eq!(at("small", 0, "textContent"), small);
    }
    assert!(
        browser
            .text(".note")
            .starts_with("Allocations: 5,009 ± 277. 3 functions"),
        "{}",
        browser.text(".note")
    );
    // A difference, of numbers as well.
    browser.open("#view=diff&show=all&kind=inuse_objects");
    browser.click("#mark");
    browser.wait("document.querySelectorAll('.diff-table .rows .row').length >= 2 || null");
    assert_eq!(cell(&browser, "large", 0, "textContent"), "< ±277");
    assert_eq!(cell(&browser, "large", 3, "textContent"), "~5,000");
    browser.must_be_quiet();
    browser.end(server);
}

#[test]
fn without_samples_the_view_says_why() {
    let server = Server::start(Fixed(Ok(heap(false))), ServerOptions::default());
    let browser = Browser::start(server.address);
    for view in ["flame", "functions"] {
        browser.open(&format!("#view={view}&kind=alloc_space"));
        let said = browser
            .wait("document.querySelector('#content .notice')?.textContent")
            .to_string();
        assert!(said.contains("No allocation was sampled"), "{said}");
        assert!(said.contains("memprof --heap -- CMD"), "{said}");
    }
    assert_eq!(browser.text("#totals [data-kind=inuse_space] dd"), "0 B");
    browser.must_be_quiet();
    browser.end(server);
}

/// A real program with the sampler: each kind shows what the API says, and a large allocation is nearly exact.
#[test]
fn a_program_with_the_sampler() {
    let program = program("scenarios");
    let (m, mut lines) = Memprof::start_command(
        &["--heap", "--heap-interval", "64KiB"],
        &[program.to_str().unwrap()],
    );
    lines.tell(&format!("malloc_large {}", 8 * MIB));
    lines.tell("malloc_small 20000");
    let target = m.followed();
    stop(target);
    let browser = Browser::start(m.address());
    browser.open("#view=functions&sort=-total");
    browser.wait("document.querySelector('[data-name=kind] [value=inuse_space]') !== null");
    for (kind, answer) in HEAP {
        select(&browser, kind);
        let line = browser.text("#answer");
        assert!(line.starts_with(answer), "{kind}: {line}");
        let of =
            |path: &str| -> Value { api(m.address(), &format!("{path}?kind={kind}&limit=100")) };
        let functions = of("/v2/functions");
        let total = functions["total"].as_u64().unwrap();
        if total == 0 {
            // What is temporary depends on the machine's speed.
            assert!(kind.starts_with("temporary"), "{kind}");
            continue;
        }
        assert_eq!(browser.figure(".note", "data-total"), total, "{kind}");
        let unit = if kind.ends_with("objects") {
            "objects"
        } else {
            "bytes"
        };
        let title = cell(&browser, "main", 1, "title");
        assert!(title.contains(&format!(" {unit}")), "{kind}: {title}");
        assert_eq!(
            title.contains("iB"),
            unit == "bytes" && title.contains('±'),
            "{kind}: {title}"
        );
    }
    select(&browser, "inuse_space");
    let held = cell(&browser, "cmd_malloc_large", 1, "title");
    let bytes: u64 = held
        .split(' ')
        .next()
        .unwrap()
        .replace(',', "")
        .parse()
        .unwrap();
    assert!((8 * MIB..8 * MIB + MIB / 100).contains(&bytes), "{held}");
    for view in ["flame", "treemap", "tree"] {
        browser.open(&format!("#view={view}&kind=inuse_objects"));
        let shown = browser.figure("#selection", "data-bytes");
        let tree = api(m.address(), "/v2/tree?kind=inuse_objects");
        assert_eq!(tree["total"].as_u64(), Some(shown), "{view}");
    }
    // The timeline shows the chosen kind.
    browser
        .wait("document.querySelector('.timeline-foot').textContent.includes('Live allocations')");
    browser.must_be_quiet();
    cont(target);
}
