//! The choice of process and time: all processes or one, the current report or a mark.

use super::common::cgroup::Group;
use super::common::memprof::Memprof;
use super::common::process::{cont, stop};
use super::common::workload::{Family, Workload, program};
use super::lists::until;
use super::live::{MIB, Run};
use crate::common::browser::Browser;
use crate::common::contents::*;
use memprof_sys::ids::Pid;

const ANON: &str = "#totals [data-kind=anon] dd";

#[test]
fn one_of_several_processes() {
    let allocator = program("forked_allocator");
    let args = [allocator.to_str().unwrap()];
    let (m, mut lines) = Memprof::start_command(&["--follow-forks"], &args);
    let family = Family::read(&mut lines);
    let pids: Vec<Pid> = family.processes.iter().map(|p| Pid(p.pid)).collect();
    pids.iter().for_each(|pid| stop(*pid));
    let browser = Browser::start(m.address());
    browser.open("#view=flame");
    let offered =
        browser.eval("[...document.getElementById('process').options].map((o) => o.value)");
    let wanted: Vec<String> = pids.iter().map(Pid::to_string).collect();
    assert_eq!(offered.as_array().unwrap()[1..], wanted);
    for pid in &pids {
        let choose = format!(
            "const box = document.getElementById('process'); box.value = '{pid}'; \
             box.dispatchEvent(new Event('change'))"
        );
        browser.run(&choose, serde_json::json!([]));
        let total = || api(m.address(), &format!("/v2/summary?pid={pid}"))["total"].clone();
        let anon = total()["anon"].as_u64().unwrap();
        browser.wait(&format!(
            "document.querySelector('{ANON}').dataset.bytes === '{anon}'"
        ));
        assert!(browser.link().contains(&format!("pid={pid}")));
        // This includes page cache, which the kernel may drop even of a stopped program.
        until(|| {
            let shown = browser.eval("document.getElementById('selection')?.dataset.bytes");
            let all = total()["all"].to_string();
            shown == all
        });
        // The link restores the choice.
        browser.open(&format!("#view=functions&kind=anon&pid={pid}"));
        assert_eq!(browser.figure(".note", "data-total"), anon);
        browser.wait(&format!(
            "document.querySelector('{ANON}').dataset.bytes === '{anon}'"
        ));
        browser.open("#view=flame");
    }
    browser.must_be_quiet();
    pids.iter().for_each(|pid| cont(*pid));
}

/// The lists of processes and of control groups, and what they lead to.
/// Processes that have ended are in a list of their own, each with its peak, which a click shows.
#[test]
fn the_peaks_of_processes_that_have_ended() {
    let peaks = program("peaks");
    let args = [peaks.to_str().unwrap(), "family"];
    let (m, mut lines) = Memprof::start_command(&["--follow-forks"], &args);
    assert_eq!(lines.line(), "dropped");
    let browser = Browser::start(m.address());
    browser.open("#view=processes&kind=anon&pby=ended");
    assert_eq!(browser.figure(".note", "data-count"), 3);
    let ended = api(m.address(), "/v2/processes")["ended"].clone();
    let ended = ended.as_array().unwrap();
    let highest = |row: &serde_json::Value| row["peak"]["high_water"].as_u64().unwrap();
    let total: u64 = ended.iter().map(highest).sum();
    assert_eq!(browser.figure(".note", "data-total"), total);
    // The largest is first: the third child, with 48 MiB of its own.
    let largest = ended.iter().max_by_key(|row| highest(row)).unwrap();
    let pid = largest["pid"].as_u64().unwrap();
    browser.click(".rows .row");
    browser.wait(&format!(
        "location.hash.includes('pid={pid}') && location.hash.includes('mark=peak')"
    ));
    let summary = api(m.address(), &format!("/v2/summary?mark=peak&pid={pid}"));
    let anon = summary["total"]["anon"].as_u64().unwrap();
    assert!(anon > 48 * MIB, "{summary}");
    browser.wait(&format!(
        "document.querySelector('{ANON}').dataset.bytes === '{anon}'"
    ));
    browser.open(&format!(
        "#view=functions&kind=anon&pid={pid}&mark=peak&q=hold_highest"
    ));
    assert!(browser.figure(".note", "data-total") > 0);
    browser.open("#view=processes&kind=anon");
    let cells = browser.text(".rows .row");
    assert!(cells.contains("MiB"), "{cells}");
    browser.must_be_quiet();
    lines.close();
}

#[test]
fn processes_and_control_groups() {
    let group = Group::new();
    let mut all = [(); 3].map(|()| Workload::start(&program("scenarios")));
    all.iter().for_each(|w| group.put(w.pid()));
    let below = group.child();
    below.put(all[2].pid());
    let name = format!("/{}", group.name().display());
    let m = Memprof::start(&["--cgroup", &name]);
    m.said("following ");
    for (workload, mib) in all.iter_mut().zip([2, 4, 8]) {
        workload.lines.tell(&format!("mmap {}", mib * MIB));
    }
    let pids = all.each_ref().map(Workload::pid);
    pids.into_iter().for_each(stop);
    let browser = Browser::start(m.address());
    browser.open("#view=processes&kind=anon");
    assert_eq!(browser.figure(".note", "data-count"), 3);
    let total = |query: &str| {
        let summary = api(m.address(), &format!("/v2/summary{query}"));
        summary["total"]["anon"].as_u64().unwrap()
    };
    assert_eq!(browser.figure(".note", "data-total"), total(""));
    // Both ways of counting what several processes map.
    let note = browser.text(".note");
    assert!(note.contains("counted once (PSS): "), "{note}");
    browser.open("#view=processes&kind=pss");
    let once = browser.figure(".note", "data-total");
    let summary = api(m.address(), "/v2/summary");
    let each = ["resident", "file"].map(|kind| summary["total"][kind].as_u64().unwrap());
    assert!(once > 14 * MIB && once < each.iter().sum());
    assert!(browser.text(".note").contains("counts once"));
    browser.open("#view=processes&kind=anon");
    // The largest is first, and leads to its own memory.
    browser.click(".rows .row");
    let link = format!("location.hash.includes('pid={}')", pids[2]);
    browser.wait(&link);
    let anon = total(&format!("?pid={}", pids[2]));
    browser.wait(&format!(
        "document.querySelector('{ANON}').dataset.bytes === '{anon}'"
    ));

    browser.open(&format!("#view=processes&kind=anon&pby=group&q={name}"));
    assert_eq!(browser.figure(".note", "data-count"), 2);
    browser.open(&format!(
        "#view=functions&kind=anon&cgroup={name}/{}",
        below.name().file_name().unwrap().display()
    ));
    assert_eq!(browser.figure(".note", "data-total"), anon);
    browser.wait(&format!(
        "document.querySelector('{ANON}').dataset.bytes === '{anon}'"
    ));
    let shown = browser.eval("document.getElementById('process').selectedOptions[0].textContent");
    assert!(
        shown.as_str().unwrap().starts_with("processes in /"),
        "{shown}"
    );
    // With the group above it, all three.
    browser.open(&format!("#view=functions&kind=anon&cgroup={name}"));
    assert_eq!(browser.figure(".note", "data-total"), total(""));
    browser.must_be_quiet();
    pids.into_iter().for_each(cont);
    m.interrupt();
    all.into_iter().for_each(Workload::end);
}

#[test]
fn an_exact_state_and_the_way_back() {
    let (mut run, browser) = Run::shown("#view=flame");
    let hidden = "document.getElementById('process').hidden";
    assert_eq!(browser.eval(hidden), true);
    let before = browser.figure(ANON, "data-bytes");
    browser.click("#freeze");
    browser.wait("location.hash.includes('mark=1')");
    browser.wait("/^exact: frozen for .* ms$/.test(document.getElementById('frozen').textContent)");
    // The view stays while the target continues.
    run.tell(&format!("mmap {}", 16 * MIB));
    let link = browser.link();
    browser.open(&link);
    browser.wait("/^exact/.test(document.getElementById('frozen').textContent)");
    assert_eq!(browser.figure(ANON, "data-bytes"), before);
    browser.click("#now");
    browser.wait(&format!(
        "document.querySelector('{ANON}').dataset.bytes >= {}",
        before + 16 * MIB
    ));
    assert!(!browser.link().contains("mark"));
    assert_eq!(browser.text("#frozen"), "");
    browser.must_be_quiet();
}

/// Kernel memory can be selected only if it is counted.
#[test]
fn kernel_memory_where_it_is_counted() {
    let workload = program("kernel");
    let command = [workload.to_str().unwrap()];
    for (args, offered) in [(&["--kernel"][..], true), (&[], false)] {
        let (m, mut lines) = Memprof::start_command(args, &command);
        lines.tell("pipes 32");
        let browser = Browser::start(m.address());
        browser.open("#view=functions");
        let option = "!!document.querySelector('select option[value=kernel]')";
        if !offered {
            assert_eq!(browser.eval(option), false);
            continue;
        }
        browser.wait(option);
        browser.open("#view=functions&kind=kernel&q=cmd_pipes");
        assert!(browser.figure(".note", "data-total") >= 2 * MIB);
        assert_eq!(browser.figure(".note", "data-count"), 1);
        let totals = "#totals [data-kind=kernel] dd";
        assert!(browser.figure(totals, "data-bytes") >= 2 * MIB);
        assert!(
            browser
                .text("#totals [data-kind=kernel] dt")
                .contains("approximate")
        );
        let tables = "#totals [data-kind=page_tables] dd";
        assert!(browser.figure(tables, "data-bytes") > 0);
        browser.must_be_quiet();
    }
}
