//! Processes that the kernel has killed because memory had run out.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::common::cgroup::Group;
use super::common::memprof::Memprof;
use super::common::skip::skip;
use super::common::workload::{Workload, program};
use super::common::{Server, at, kib, report};
use super::lists::until;
use crate::common::browser::Browser;
use ::memprof::http::api::Opened;
use ::memprof::http::server::ServerOptions;
use memprof_profile::{LastFigures, OomKill, OomKills, Report};

const MIB: u64 = 1 << 20;
const MARKUP: &str = "<img src=x onerror=\"window.hacked=1\">";

/// The number of columns of the plot that have the colour of a mark of a killed process, in dashes from top to bottom.
const MARKS: &str = "
    const canvas = document.querySelector('#timeline canvas');
    const [of, plot] = [canvas, document.querySelector('#timeline .u-over')].map((e) => e.getBoundingClientRect());
    const { width, height, data } = canvas.getContext('2d')
        .getImageData(plot.left - of.left, plot.top - of.top, plot.width, plot.height);
    const probe = document.body.appendChild(document.createElement('i'));
    probe.style.color = 'var(--bad)';
    const bad = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    probe.remove();
    const same = (x, y) => data[4 * (y * width + x) + 3] > 200 && bad.every((v, i) => Math.abs(v - data[4 * (y * width + x) + i]) < 40);
    const filled = (x) => Array.from({ length: height }, (_, y) => same(x, y)).filter(Boolean).length;
    return Array.from({ length: width }, (_, x) => filled(x)).filter((n) => n > height * 0.4).length;";

#[test]
fn a_saved_profile_says_that_its_process_was_killed() {
    let samples = [(vec![at(0, 1)], kib(64, 0, 0))];
    let mut report = Report::clone(&report(&samples, &[], &[]));
    let profile = Arc::make_mut(&mut report.profile);
    let taken = profile.taken;
    let kill = OomKill {
        pid: profile.target.pid,
        comm: MARKUP.to_owned(),
        container: None,
        killed: taken + Duration::from_millis(80),
        last: Some(LastFigures {
            resident: 64 << 10,
            taken,
            after_kill: false,
        }),
    };
    let unknown = OomKill {
        comm: "early".to_owned(),
        last: None,
        ..kill.clone()
    };
    profile.oom_kills = OomKills::default().with(kill).with(unknown);
    let opened = Opened::new("oom.memprof.json".to_owned(), Arc::new(report));
    let server = Server::start(opened, ServerOptions::default());
    let browser = Browser::start(server.address);
    browser.open("#view=health");
    browser.wait("document.querySelector('#content').textContent.includes('Killed')");
    assert_eq!(browser.text("#alive"), "killed: out of memory");
    let shown = browser.text("#content");
    for wanted in [
        MARKUP,
        "64 KiB",
        "its last profile, 80 ms before the kill",
        "no profile: it ended before its first one",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert!(browser.eval("window.hacked ?? null").is_null());
    server.stop();
}

#[test]
fn a_kill_is_a_mark_on_the_timeline() {
    let Some((group, _)) = Group::new_where_memory_is_limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    group.limit_memory(64 * MIB);
    let procs = group.dir.join("cgroup.procs");
    let program = program("scenarios");
    let script = format!(
        "echo $$ > {} && exec {}",
        procs.display(),
        program.display()
    );
    let start = || Workload::start_with(Path::new("/bin/sh"), &["-c", &script]);
    let (mut stays, mut victim) = (start(), start());
    stays.lines.tell("mmap 4096");
    victim.lines.tell(&format!("mmap {}", 16 * MIB));
    let m = Memprof::start(&["--cgroup", group.dir.to_str().unwrap()]);
    let browser = Browser::start(m.address());
    browser.open("#view=flame");
    let marks = || browser.run(MARKS, json!([])).as_u64().unwrap();
    until(|| browser.eval("document.querySelector('#timeline canvas') !== null") == true);
    assert_eq!(marks(), 0);
    victim.lines.send(&format!("mmap {}", 256 * MIB));
    m.said("mark 1");
    until(|| marks() == 1);
    // At the kill the memory is at its peak, so that the name of that mark has the same place.
    const NAMED: &str =
        "document.querySelector('.mark-names .killed')?.textContent.includes('OOM: scenarios')";
    until(|| browser.eval(NAMED) == true);
    drop(m);
    stays.end();
}
