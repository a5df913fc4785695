use std::ffi::OsString;
use std::time::Duration;

use clap::CommandFactory;

use super::{Cli, Run, parse_from};
use crate::app::config::Config;
use crate::http::exporters::EXPORTERS;
use crate::probe::{Stacks, Unwind};
use crate::tui::ScreenOptions;
use memprof_profile::Kind;
use memprof_profile::tree::Direction;
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;
use memprof_sys::process::Selector;

#[test]
fn an_overhead_is_for_stacks_by_a_budget() {
    let stacks = |line: &str| config_of(line).map(|config| config.stacks);
    let budget = |text: &str| Stacks::Auto(text.parse().unwrap());
    assert_eq!(stacks("memprof --pid 1").ok(), Some(budget("2")));
    let half = stacks("memprof --pid 1 --max-overhead 0.5%");
    assert_eq!(half.ok(), Some(budget("0.5")));
    for other in ["all", "off", "1/8"] {
        let line = format!("memprof --pid 1 --stacks {other} --max-overhead 1");
        let Err(e) = stacks(&line) else {
            panic!("{line}: accepted")
        };
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains("requires --stacks auto"), "{e}");
    }
}

#[test]
fn a_format_is_asked_only_for_what_it_can_hold() {
    let options = |line| config_of(line).map(|c| c.outputs[0].options.clone());
    let found = options("memprof --pid 1 -o x.txt --direction callers --threshold 64KiB");
    let Ok(found) = found else { panic!("refused") };
    assert_eq!(found.direction, Some(Direction::InnermostFirst));
    assert_eq!((found.threshold, found.kind), (Some(65_536), Kind::All));
    let Err(e) = config_of("memprof --pid 1 -o x.json --kind swap") else {
        panic!("accepted")
    };
    assert_eq!(e.exit_code(), 2);
    assert!(
        e.to_string().contains("the format json does not support"),
        "{e}"
    );
}

#[test]
fn each_output_may_have_its_kind() {
    let kinds = |line: &str| {
        let config = config_of(line)?;
        let kinds = config.outputs.iter().map(|o| o.options.kind.name());
        Ok::<_, clap::Error>(kinds.collect::<Vec<_>>())
    };
    let two = "memprof --heap --pid 1 -o count.svg --kind alloc_objects -o traffic.svg --kind alloc_space";
    assert_eq!(kinds(two).unwrap(), ["alloc_objects", "alloc_space"]);
    let one = "memprof --pid 1 -o a.svg -o b.txt --kind anon";
    assert_eq!(kinds(one).unwrap(), ["anon", "anon"]);
    // A saved profile contains every kind.
    let mixed = "memprof --pid 1 -o a.svg -o a.memprof.json --kind anon";
    assert_eq!(kinds(mixed).unwrap(), ["anon", "all"]);
    assert_eq!(
        kinds("memprof --pid 1 -o a.svg -o b.svg").unwrap(),
        ["all"; 2]
    );
    for (line, said) in [
        (
            "memprof --pid 1 -o a.svg -o b.svg -o c.svg --kind anon --kind swap",
            "there are 2 --kind and 3 --output",
        ),
        (
            "memprof --pid 1 -o a.memprof.json -o b.memprof.json --kind anon",
            "does not support a single kind of memory",
        ),
        (
            "memprof --pid 1 -o a.svg --kind anon -o a.memprof.json --kind swap",
            "does not support a single kind of memory",
        ),
        (
            "memprof --pid 1 -o a.svg --kind anon -o b.svg --kind alloc_space",
            "--kind alloc_space requires --heap",
        ),
    ] {
        let Err(e) = kinds(line) else {
            panic!("{line}: accepted")
        };
        assert!(e.to_string().contains(said), "{e}");
    }
    let opened = parse_from(
        two.replace("--heap --pid 1", "open f")
            .split(' ')
            .map(OsString::from),
    );
    let Ok(Run::Open(opened)) = opened else {
        panic!("refused")
    };
    assert_eq!(opened.outputs[1].options.kind.name(), "alloc_space");
}

fn config_of(line: &str) -> Result<Box<Config>, clap::Error> {
    match parse_from(line.split(' ').map(OsString::from))? {
        Run::Profile(config) => Ok(config),
        _ => panic!("not a profile run: {line}"),
    }
}

#[test]
fn the_definitions_hold_together() {
    Cli::command().debug_assert();
}

#[test]
fn exactly_one_target() {
    for line in [
        "memprof",
        "memprof --pid 1 --comm x",
        "memprof --comm x -- y",
        "memprof --cgroup / --pid 1",
        "memprof --cgroup /no/such/group",
        "memprof --cgroup / --follow-forks",
    ] {
        let Err(e) = config_of(line) else {
            panic!("{line} was accepted")
        };
        assert_eq!(e.exit_code(), 2, "{line}");
    }
    let target = |line| config_of(line).map(|c| c.target).ok();
    assert_eq!(
        target("memprof --comm light-node"),
        Some(Selector::Comm("light-node".into()))
    );
    assert_eq!(target("memprof --pid 7"), Some(Selector::Pid(Pid(7))));
    let words = ["ls", "-l"].map(OsString::from).to_vec();
    assert_eq!(target("memprof -- ls -l"), Some(Selector::Command(words)));
}

#[test]
fn bad_values_are_refused() {
    for line in [
        "memprof --pid 0",
        "memprof --pid -3",
        "memprof --pid x",
        "memprof --comm a/b",
        "memprof --pid 1 --duration 0",
        "memprof --pid 1 --duration x",
        "memprof --pid 1 --listen here",
        "memprof --pid 1 --listen unix:",
        "memprof --pid 1 --listen unix:@name",
        "memprof --pid 1 --format json",
        "memprof --pid 1 --output f --format gif",
        "memprof --pid 1 --output f --output g --format svg",
        "memprof --pid 1 --kind swap",
        "memprof --pid 1 --output f --kind some",
        "memprof --pid 1 --output f --direction up",
        "memprof --pid 1 --output f --threshold many",
        "memprof --pid 1 --unwind dwarf",
        "memprof --pid 1 --max-frames 127",
        "memprof --pid 1 --max-frames 1025",
        "memprof --pid 1 --max-freeze 0",
        "memprof --pid 1 --max-freeze 60001",
        "memprof --pid 1 --no-server --listen 127.0.0.1:1",
        "memprof doctor --pid 1",
        "memprof top",
        "memprof top --pid 1 --comm x",
        "memprof top --pid 1 --interval 0",
        "memprof top --pid 1 --interval x",
        "memprof maps",
        "memprof maps --pid 1 --comm x",
        "memprof maps --pid 1 --all --top 3",
        "memprof maps --pid 1 --top -1",
        "memprof maps --pid 1 --format gif",
    ] {
        assert!(
            parse_from(line.split(' ').map(OsString::from)).is_err(),
            "{line}"
        );
    }
}

#[test]
fn the_format_follows_the_name() {
    let format = |line: &str| {
        config_of(line)
            .ok()
            .and_then(|c| Some(c.outputs.first()?.format.name))
    };
    assert_eq!(format("memprof --pid 1 -o x.folded"), Some("folded"));
    assert_eq!(format("memprof --pid 1 -o x.txt"), Some("text"));
    assert_eq!(format("memprof --pid 1 -o x"), Some("json"));
    assert_eq!(format("memprof --pid 1 -o a.b.pb.gz"), Some("pprof"));
    assert_eq!(format("memprof --pid 1 -o -"), Some("json"));
    // An extension that belongs to no format is an error; the error lists the formats.
    for name in ["x.bin", "pb.gz", "x.json.old", "dir/.txt.bak"] {
        let Err(e) = config_of(&format!("memprof --pid 1 -o {name}")) else {
            panic!("{name}: accepted")
        };
        assert_eq!(e.exit_code(), 2, "{name}");
        for exporter in EXPORTERS {
            let text = e.to_string();
            assert!(
                text.contains(&format!(".{} ", exporter.extension)),
                "{text}"
            );
            assert!(
                text.contains(&format!("--format {}", exporter.name)),
                "{text}"
            );
        }
        let named = format!("memprof --pid 1 -o {name} --format svg");
        assert_eq!(format(&named), Some("svg"));
    }
    for e in EXPORTERS {
        let line = format!("memprof --pid 1 -o dir/x.{}", e.extension);
        assert_eq!(format(&line), Some(e.name), "{line}");
    }
    assert_eq!(
        format("memprof --pid 1 -o x.txt --format json"),
        Some("json")
    );
}

#[test]
fn man_pages_name_their_options() {
    let page = |line: &str| match parse_from(line.split(' ').map(OsString::from)) {
        Ok(Run::Print(text)) => String::from_utf8_lossy(&text).replace('\\', ""),
        _ => panic!("no page: {line}"),
    };
    for (line, parts) in [
        ("memprof man", ["--follow-forks", "memprof-top(1)", "maps"]),
        ("memprof man top", ["memprof-top", "--interval", "--color"]),
        ("memprof man maps", ["memprof-maps", "--all", "--comm"]),
    ] {
        let text = page(line);
        for part in parts {
            assert!(text.contains(part), "{line}: no {part} in {text}");
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = page(&format!("memprof completions {shell}"));
        assert!(
            text.contains("interval") && text.contains("maps"),
            "{shell}"
        );
    }
}

#[test]
fn top_is_a_profile_run_with_a_screen() {
    let config = |line| config_of(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let top = config("memprof top --interval 0.5 --color never --no-server -- ls -l");
    let words = ["ls", "-l"].map(OsString::from).to_vec();
    assert_eq!(top.target, Selector::Command(words));
    assert!(top.listen.is_none());
    let screen = ScreenOptions {
        interval: Duration::from_millis(500),
        colour: false,
    };
    assert_eq!(top.screen, Some(screen));
    let always = config("memprof top --pid 1 --color always");
    assert!(always.screen.is_some_and(|s| s.colour));
    assert_eq!(config("memprof --pid 1").screen, None);
}

#[test]
fn defaults_are_the_documented_ones() {
    let Ok(c) = config_of("memprof --pid 1") else {
        panic!("refused")
    };
    assert_eq!(
        c.listen.map(|a| a.to_string()),
        Some("127.0.0.1:17832".into())
    );
    assert!(
        c.unwind == Unwind::Auto
            && c.freeze == Freeze::No
            && c.max_freeze == Duration::from_millis(50)
            && !c.follow_forks
            && c.outputs.is_empty()
            && c.duration.is_none()
    );
}

#[test]
fn debuginfod_servers_are_asked_on_request() {
    use memprof_code::debuginfod::DebuginfodMode;
    for (option, wish) in [
        ("", DebuginfodMode::Environment),
        (" --debuginfod", DebuginfodMode::Usual),
        (" --debuginfod=off", DebuginfodMode::Off),
        (
            " --debuginfod=http://a.example/",
            DebuginfodMode::These(vec!["http://a.example".into()]),
        ),
    ] {
        let config = config_of(&format!("memprof{option} --pid 1"));
        assert_eq!(config.map(|config| config.debuginfod).ok(), Some(wish));
    }
    for line in [
        "memprof --pid 1 --debuginfod=yes",
        "memprof --pid 1 --debuginfod=",
    ] {
        assert_eq!(
            config_of(line).err().map(|e| e.exit_code()),
            Some(2),
            "{line}"
        );
    }
}

#[test]
fn record_is_a_profile_run_without_a_server() {
    let config = |line| config_of(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let recorded =
        config("memprof record r.memprof.db --record-size 4MiB --record-for 12h -- ls -l");
    let words = ["ls", "-l"].map(OsString::from).to_vec();
    assert_eq!(recorded.target, Selector::Command(words));
    assert!(recorded.listen.is_none() && recorded.writes_files());
    let options = memprof_recording::Options {
        size: 4 << 20,
        keep: Duration::from_secs(12 * 3600),
    };
    let to = recorded.record.expect("a recording");
    assert_eq!(
        (to.path.to_str(), to.options),
        (Some("r.memprof.db"), options)
    );
    let beside = config("memprof --record r.memprof.db --pid 1");
    assert!(beside.listen.is_some());
    assert_eq!(
        beside.record.expect("a recording").options,
        Default::default()
    );
    assert!(
        config("memprof top --record r.memprof.db --pid 1")
            .record
            .is_some()
    );
    for (line, wanted) in [
        ("memprof --record-size 4MiB --pid 1", "require --record"),
        (
            "memprof --record r --record-size 1KiB --pid 1",
            "at least 1MiB",
        ),
        ("memprof --record r --record-for 12 --pid 1", "a unit"),
        ("memprof --record r --record-for 0d --pid 1", "a unit"),
        (
            "memprof record r --listen 127.0.0.1:0 --pid 1",
            "serves no HTTP",
        ),
        (
            "memprof record r --record s --pid 1",
            "--record does not go",
        ),
        ("memprof record --pid 1", "<FILE>"),
        ("memprof record r", "required"),
    ] {
        let error = config_of(line).err().map(|e| e.to_string());
        let error = error.unwrap_or_else(|| panic!("{line} is accepted"));
        assert!(error.contains(wanted), "{line}: {error}");
    }
}

#[test]
fn growth_is_of_a_file_or_of_a_process() {
    let config = config_of("memprof growth --pid 7 --by stack").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.target, Selector::Pid(Pid(7)));
    assert_eq!(config.duration, Some(Duration::from_secs(60)));
    assert!(config.listen.is_none() && !config.writes_files());
    let shown = config.growth.expect("a table");
    assert_eq!(shown.by, crate::export::growth::GrowthBy::Stack);
    for (line, wanted) in [
        ("memprof growth", "required"),
        ("memprof growth r --pid 1", "cannot be used with"),
        ("memprof growth --pid 1 --since -2h", "cannot be used with"),
        ("memprof growth r --duration 9", "cannot be used with"),
    ] {
        let error = config_of(line).err().map(|e| e.to_string());
        let error = error.unwrap_or_else(|| panic!("{line} is accepted"));
        assert!(error.contains(wanted), "{line}: {error}");
    }
}
