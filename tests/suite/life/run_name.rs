//! An executable with several names is shown under the one that runs.

use std::os::unix::fs::symlink;

use crate::common::memprof::{Memprof, run};
use crate::common::programs::copy_program;
use crate::common::workload::{Workload, program};

#[test]
fn a_program_is_named_as_it_was_started() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("check-rdb"), dir.path().join("server"));
    copy_program(program("scenarios"), &file);
    symlink("check-rdb", &link).unwrap();
    let mut workload = Workload::start(&link);
    let m = Memprof::attach(workload.pid(), &[]);
    workload.lines.tell("malloc_large 8388608");
    let functions = m.get("/v2/functions?kind=anon&limit=10000").json();
    let rows = functions["rows"].as_array().unwrap();
    let own: Vec<_> = rows.iter().filter(|row| row["category"] == "own").collect();
    assert!(!own.is_empty(), "{functions}");
    for row in own {
        assert_eq!(row["file"], "server");
        // The kernel's path is beside it.
        assert_eq!(row["path"], file.to_str().unwrap());
    }
    let space = m.get("/v2/maps?limit=10000").json();
    let rows = space["rows"].as_array().unwrap().iter();
    let mut names: Vec<_> = rows
        .map(|row| (row["category"] == "executable", row["runs_as"].as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, [(false, None), (true, Some("server"))]);
    let pid = workload.pid().to_string();
    let maps = run(&["maps", "--pid", &pid]);
    let maps = String::from_utf8(maps.stdout).unwrap();
    let own = format!("{}  [own binary, runs as server]", file.display());
    assert!(maps.contains(&own), "{maps}");
    m.interrupt();
    workload.end();
}
