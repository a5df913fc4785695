//! Diagnostics: printed only with `-v` or `MEMPROF_LOG`.

use std::process::{Command, Output};

const MEMPROF: &str = env!("CARGO_BIN_EXE_memprof");

fn profile_true(option: Option<&str>, filter: Option<&str>) -> Output {
    let mut command = Command::new(MEMPROF);
    command.args(option).args(["--no-server", "--", "true"]);
    match filter {
        Some(filter) => command.env("MEMPROF_LOG", filter),
        None => command.env_remove("MEMPROF_LOG"),
    };
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn quiet_unless_asked() {
    let quiet = profile_true(None, None);
    assert!(quiet.status.success(), "{quiet:?}");
    for level in ["DEBUG", " INFO ", " WARN "] {
        assert!(!said(&quiet).contains(level), "{}", said(&quiet));
    }

    let steps = said(&profile_true(Some("-v"), None));
    assert!(steps.contains(" INFO memprof::probe"), "{steps}");
    assert!(!steps.contains("DEBUG"), "{steps}");
    let more = said(&profile_true(Some("-vv"), None));
    assert!(more.contains("DEBUG memprof::collect::publish"), "{more}");
}

#[test]
fn a_filter_chooses_modules() {
    // MEMPROF_LOG overrides -v.
    let chosen = said(&profile_true(Some("-vv"), Some("memprof::collect=debug")));
    assert!(chosen.contains("DEBUG memprof::collect"), "{chosen}");
    assert!(!chosen.contains("memprof_sys::privileges"), "{chosen}");

    let wrong = profile_true(None, Some("memprof=loud"));
    assert_eq!(wrong.status.code(), Some(1));
    let why = said(&wrong);
    for part in ["MEMPROF_LOG", "memprof=loud", "debug"] {
        assert!(why.contains(part), "{why}");
    }
}
