//! The page of an opened recording: its time line leads to every moment.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

use super::common::{Server, at, kib, report};
use super::lists::{PLOT, drawn};
use crate::common::browser::Browser;
use ::memprof::http::api::Opened;
use ::memprof::http::server::ServerOptions;
use memprof_profile::symbol::Language;
use memprof_profile::{CodeLayout, Module, OomKill, OomKills, Report};
use memprof_recording::{At, Options, Recorder, Recording, RunInfo};
use memprof_sys::ids::Pid;

const MOMENTS: u64 = 60;
/// When a process was killed.
const KILLED: u64 = 40;
/// When events were lost.
const LOST: u64 = 50;
const FIRST_MS: u64 = 1_700_000_000_000;

/// The report of a minute: `leak` grows by 1 MiB, `hump` has 100 MiB in the middle.
fn moment(minute: u64) -> Arc<Report> {
    let hump = if (20..30).contains(&minute) {
        102_400
    } else {
        1024
    };
    let samples = [
        (vec![at(0, 1), at(0, 3)], kib(1024 * (minute + 1), 0, 0)),
        (vec![at(0, 2), at(0, 3)], kib(hump, 0, 0)),
    ];
    let names = [
        (at(0, 1), "leak", Language::Other),
        (at(0, 2), "hump", Language::Other),
        (at(0, 3), "main", Language::Other),
    ];
    let mut report = Report::clone(&report(&samples, &[], &names));
    let profile = Arc::make_mut(&mut report.profile);
    profile.taken = UNIX_EPOCH + Duration::from_millis(FIRST_MS + minute * 60_000);
    if minute >= KILLED {
        profile.oom_kills = OomKills::default().with(OomKill {
            pid: Pid(7),
            comm: "worker".to_owned(),
            container: None,
            killed: UNIX_EPOCH + Duration::from_millis(FIRST_MS + KILLED * 60_000),
            last: None,
        });
    }
    if minute >= LOST {
        profile.losses.add("events of this test", 7);
    }
    profile.taken_ns = 1 + minute * 60_000_000_000;
    report.sequence = minute + 1;
    Arc::new(report)
}

fn layout(module: &Module) -> Option<Cow<'_, CodeLayout>> {
    module.layout.as_ref().map(Cow::Borrowed)
}

fn recording(path: &Path) -> Opened {
    let run = RunInfo::default();
    let mut recorder = Recorder::open(path, Options::default(), &run, layout).unwrap();
    for minute in 0..MOMENTS {
        recorder.record(&moment(minute)).unwrap();
    }
    recorder.finish().unwrap();
    let recording = Recording::open(path).unwrap();
    let end = recording.find(&At::End).unwrap();
    let report: Report = recording.state(end.id).unwrap().into();
    Opened::new("r.db".into(), Arc::new(report)).with_moments(recording)
}

/// The value of a setting of the link.
fn setting(browser: &Browser, name: &str) -> String {
    let script = "return new URLSearchParams(location.hash.slice(1)).get(arguments[0]) ?? ''";
    browser
        .run(script, json!([name]))
        .as_str()
        .unwrap()
        .to_owned()
}

/// The minute of a setting that is a moment.
fn minute(browser: &Browser, name: &str) -> u64 {
    let id = setting(browser, name);
    let ms: u64 = id
        .strip_prefix('@')
        .and_then(|ms| ms.parse().ok())
        .unwrap_or_else(|| panic!("{name}: {id:?}"));
    assert_eq!((ms - FIRST_MS) % 60_000, 0, "{id}");
    (ms - FIRST_MS) / 60_000
}

#[test]
fn a_time_line_leads_to_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(
        recording(&dir.path().join("r.db")),
        ServerOptions::default(),
    );
    let browser = Browser::start(server.address);
    for (width, height) in [(1440, 900), (390, 844)] {
        browser.size(width, height);
        browser.open("#view=functions");
        drawn(&browser);
        browser
            .wait("document.querySelector('.mark-names .killed')?.textContent === 'worker killed'");
        // Where the cursor rests, it is said what changed most: at the 20th minute, the hump.
        if width > 700 {
            browser.point(PLOT, 20.0 / (MOMENTS - 1) as f64);
            let told = "document.querySelector('.changes').textContent";
            browser.wait(&format!("{told}.includes('leak +1 MiB')"));
            let told = browser.eval(told);
            assert!(told.as_str().unwrap().contains("hump +99 MiB"), "{told}");
        }
        // The time in which events were lost is marked at the bottom, and their number said.
        let marked = "const canvas = document.querySelector('#timeline canvas');
            const [all, plot] = [canvas, document.querySelector('#timeline .u-over')].map((e) => e.getBoundingClientRect());
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
            copy.drawImage(canvas, 0, 0);
            const pixel = (minute) => copy.getImageData(
                (plot.left - all.left + plot.width * minute / 59) * devicePixelRatio,
                (plot.bottom - all.top - 2) * devicePixelRatio, 1, 1).data.join();
            return [45.5, 49.5, 51.5].map((minute) => pixel(minute) === pixel(44.5))";
        assert_eq!(browser.run(marked, json!([])), json!([true, false, true]));
        if width > 700 {
            browser.point(PLOT, LOST as f64 / (MOMENTS - 1) as f64);
            let told = "document.querySelector('#timeline .timeline-foot').textContent";
            browser.wait(&format!("{told}.includes('7 events lost')"));
        }
        // A click shows a moment, here in the hump, in every view.
        browser.drag(PLOT, 0.4, 0.4);
        browser.wait("location.hash.includes('mark=')");
        let clicked = minute(&browser, "mark");
        assert!((20..30).contains(&clicked), "{clicked}");
        let shows = |text: &str| {
            browser.wait(&format!(
                "document.getElementById('content').textContent.includes({text:?})"
            ))
        };
        shows("hump");
        shows("100 MiB");
        // The keys lead to the moment after it, and back.
        browser.press("]");
        assert_eq!(minute(&browser, "mark"), clicked + 1);
        browser.press("[");
        assert_eq!(minute(&browser, "mark"), clicked);
        // A drag shows the difference between two moments.
        browser.drag(PLOT, 0.7, 0.9);
        browser.wait("location.hash.includes('view=diff')");
        let (from, to) = (minute(&browser, "from"), minute(&browser, "to"));
        assert!(30 < from && from < to, "{from} {to}");
        let grown = format!("+{}", to - from);
        let has = format!("document.querySelector('.diff-table')?.textContent.includes({grown:?})");
        browser.wait(&has);
        // What grew in the whole time.
        browser.press("Escape");
        browser.open("#view=growth");
        let has = "document.querySelector('#content .row:not(.head)').textContent.includes('leak')";
        browser.wait(&format!(
            "document.querySelector('#content .row:not(.head)') && {has}"
        ));
        let row = browser.eval("document.querySelector('#content .row:not(.head)').textContent");
        assert!(row.as_str().unwrap().contains("steady"), "{row}");
        // Its table is below the view's controls, not over the header.
        let top = "document.querySelector('#content .row:not(.head)').getBoundingClientRect().top";
        let controls = "document.querySelector('#content .note').getBoundingClientRect().bottom";
        assert_eq!(browser.eval(&format!("{top} >= {controls}")), true);
        let used = browser.eval("document.documentElement.scrollWidth");
        assert!(used.as_u64().unwrap() <= width.into(), "{width}: {used}");
    }
    browser.must_be_quiet();
    server.stop();
}
