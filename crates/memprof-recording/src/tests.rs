//! Random sequences of reports, recorded and read back.

mod bounds;
mod damage;
mod growth;
mod in_memory;
mod made;
mod sql;
mod states;

use std::path::Path;

use crate::{Options, Recorder, Recording, RunInfo};
use made::layout;
use memprof_profile::Report;
use memprof_profile::saved;

fn run() -> RunInfo {
    RunInfo {
        memprof: "1.2.3".into(),
        host: "here".into(),
        boot: "b".into(),
        target: "--pid 1".into(),
    }
}

fn recorder(path: &Path) -> Recorder {
    Recorder::open(path, Options::default(), &run(), layout).unwrap()
}

/// A saved profile of a report.
fn saved_text(report: &Report) -> String {
    let mut bytes = Vec::new();
    saved::write(report, layout, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A saved profile of the state at a moment.
fn state_text(recording: &Recording, moment: i64) -> String {
    let saved = recording
        .state(moment)
        .unwrap_or_else(|e| panic!("moment {moment}: {e}"));
    saved_text(&saved.into())
}

#[track_caller]
fn assert_same(moment: i64, found: &str, wanted: &str) {
    if found != wanted {
        let differs = found
            .bytes()
            .zip(wanted.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let around = |text: &str| {
            let start = differs.saturating_sub(120);
            text.chars().skip(start).take(300).collect::<String>()
        };
        panic!(
            "moment {moment} differs at byte {differs}:\n{}\n--- wanted:\n{}",
            around(found),
            around(wanted)
        );
    }
}
