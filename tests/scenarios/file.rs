//! Page cache that the workload's own IO brought in and that is still cached equals the kernel's count.

use std::fs::File;

use crate::common::files::{self, cached, evict};
use crate::run::{MIB, Run};
use crate::{Scenario, Skip, scenario};

pub const SCENARIOS: &[Scenario] = &[
    scenario!(file_read),
    scenario!(file_written),
    scenario!(readahead),
    scenario!(direct_io),
    scenario!(file_mapped),
    scenario!(file_truncated_and_punched),
    scenario!(drop_caches),
    scenario!(splice),
    scenario!(copy_file_range),
];

type Done = Result<(), Skip>;

/// A file of `len` bytes, none of them cached.
fn cold(run: &Run, name: &str, len: u64) -> Result<File, Skip> {
    let file = files::written(&run.path(name), len);
    if !files::has_page_cache(run.dir.path()) {
        return Err("files here have no page cache that can be dropped".into());
    }
    evict(&file);
    Ok(file)
}

fn file_read(run: &mut Run) -> Done {
    let file = cold(run, "a", 8 * MIB + 123)?;
    run.with("read", "a", "0 16777216");
    assert!(cached(&file) >= 8192);
    run.cached(&[("cmd_read", &[&file])]);
    evict(&file);
    run.cached(&[("cmd_read", &[])]);
    Ok(())
}

fn file_written(run: &mut Run) -> Done {
    let _probe = cold(run, "a", 4096)?;
    run.with("write", "b", "0 6291456");
    let file = File::open(run.path("b")).unwrap();
    assert_eq!(cached(&file), 6144);
    run.cached(&[("cmd_write", &[&file])]);
    run.with("sync", "b", "");
    run.cached(&[("cmd_write", &[&file])]);
    std::fs::remove_file(run.path("b")).unwrap();
    run.cached(&[("cmd_write", &[&file])]);
    drop(file);
    run.cached(&[("cmd_write", &[])]);
    Ok(())
}

fn readahead(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    run.with("readahead", "a", "1048576");
    run.cached(&[("cmd_readahead", &[&file])]);
    assert!(cached(&file) > 0);
    Ok(())
}

fn direct_io(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    run.with("direct", "a", "4194304");
    assert_eq!(cached(&file), 0);
    run.cached(&[("cmd_direct", &[])]);
    Ok(())
}

fn file_mapped(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    run.with("mapfile 0", "a", "");
    run.tell(&["look 0 0 2097152", "touch 0 3145728 1048576"]);
    let report = run.sums();
    let kind = memprof_profile::Kind::Cache;
    let both = report.under("cmd_look", kind) + report.under("cmd_touch", kind);
    assert_eq!(both, cached(&file) * 1024, "{}", report.text());
    run.tell(&["unmap 0 0 4194304"]);
    file.sync_all().unwrap();
    evict(&file);
    run.cached(&[("cmd_look", &[]), ("cmd_touch", &[])]);
    Ok(())
}

fn file_truncated_and_punched(run: &mut Run) -> Done {
    let file = cold(run, "a", 8 * MIB)?;
    run.with("read", "a", "0 8388608");
    run.with("punch", "a", "1048576 2097152");
    assert_eq!(cached(&file), 6 * 1024);
    run.cached(&[("cmd_read", &[&file])]);
    run.with("truncate", "a", "5242881");
    run.cached(&[("cmd_read", &[&file])]);
    run.with("truncate", "a", "0");
    assert_eq!(cached(&file), 0);
    run.cached(&[("cmd_read", &[])]);
    Ok(())
}

fn drop_caches(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    run.with("read", "a", "0 4194304");
    run.cached(&[("cmd_read", &[&file])]);
    let path = "/proc/sys/vm/drop_caches";
    std::fs::write(path, "1").map_err(|e| format!("{path}: {e}"))?;
    assert!(cached(&file) < 4096);
    run.tell(&[]);
    // The program's own code may also have been dropped.
    let report = run.sums();
    let ours = report.under("cmd_read", memprof_profile::Kind::Cache);
    assert_eq!(ours, cached(&file) * 1024, "{}", report.text());
    Ok(())
}

fn splice(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    run.with("splice", "a", "4194304");
    assert_eq!(cached(&file), 4096);
    run.cached(&[("cmd_splice", &[&file])]);
    Ok(())
}

fn copy_file_range(run: &mut Run) -> Done {
    let file = cold(run, "a", 4 * MIB)?;
    let to = run.path("b");
    run.with("copy", "a", &format!("{} 4194304", to.display()));
    let copy = File::open(to).unwrap();
    run.cached(&[("cmd_copy", &[&file, &copy])]);
    Ok(())
}
