//! Finds and opens the perf map of a process. The target controls the directory and the file, so neither is trusted.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use memprof_sys::ids::Pid;
use memprof_sys::procfs::{Field, Stat, StatusFile};
use memprof_sys::target_file::{TargetFile, about, find_in, root_of};

/// Tolerance when the clock is compared with file times.
const SLACK: Duration = Duration::from_secs(1);

/// Why no perf map was opened.
#[derive(Debug)]
pub enum NoMap {
    /// The process has not written one yet.
    Missing,
    /// The file was refused: it is not a regular file, belongs to another user, or is older than the process.
    Refused,
}

/// Location of a process's perf map: `/tmp/perf-PID.map` in the process's own mount and PID namespaces. It is
/// determined while the process lives; the map can still be opened after the process has ended.
#[derive(Debug)]
pub struct PerfMapPath {
    root: File,
    path: PathBuf,
    user: u32,
    started: Option<SystemTime>,
}

impl PerfMapPath {
    /// The location of a process's map; `None` if the process has ended, or may not be inspected.
    pub fn for_process(pid: Pid) -> Option<PerfMapPath> {
        let status = StatusFile::for_process(pid).ok()?;
        // The last id is the one in the process's own PID namespace; the second user id is the effective one.
        let inside = status.field("NStgid")?.split_whitespace().next_back()?;
        let inside: u32 = inside.parse().ok()?;
        let user = status.field("Uid")?.split_whitespace().nth(1)?;
        Some(PerfMapPath {
            root: root_of(pid).ok()?,
            path: format!("tmp/perf-{inside}.map").into(),
            user: user.parse().ok()?,
            started: started(pid),
        })
    }

    /// Opens the map.
    ///
    /// # Errors
    /// [`NoMap`].
    pub fn open(&self) -> Result<TargetFile, NoMap> {
        // `O_NOFOLLOW`: the file itself must not be a link.
        let handle = find_in(&self.root, &self.path, libc::O_NOFOLLOW);
        let handle = handle.map_err(|_| NoMap::Missing)?;
        let about = about(&handle).map_err(|_| NoMap::Missing)?;
        if about.owner() != self.user && about.owner() != 0 {
            return Err(NoMap::Refused);
        }
        // An earlier process may have had the same pid.
        let written = about.modified().ok_or(NoMap::Missing)?;
        if self
            .started
            .is_some_and(|started| written + SLACK < started)
        {
            return Err(NoMap::Refused);
        }
        TargetFile::of_handle(handle).map_err(|_| NoMap::Refused)
    }
}

/// The start time of a process; `None` if it cannot be read.
fn started(pid: Pid) -> Option<SystemTime> {
    let ticks: u64 = Stat::read(pid).ok()?.number(Field::Started)?;
    let since_boot = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    let age = since_boot.checked_sub(Duration::from_millis(ticks.checked_mul(10)?))?;
    SystemTime::now().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn perf_map(pid: Pid) -> Result<TargetFile, NoMap> {
        PerfMapPath::for_process(pid).unwrap().open()
    }

    /// The perf map of the test process. Only one test may use it.
    fn own() -> (Pid, PathBuf) {
        let pid = std::process::id();
        (Pid(pid), PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }

    #[test]
    fn only_a_new_regular_file_of_the_process_is_opened() {
        let (pid, path) = own();
        let _ = fs::remove_file(&path);
        assert!(matches!(perf_map(pid), Err(NoMap::Missing)));
        fs::write(&path, "10 10 f\n").unwrap();
        assert_eq!(perf_map(pid).unwrap().about().size(), 8);
        let old = SystemTime::now() - Duration::from_secs(1 << 24);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert!(matches!(perf_map(pid), Err(NoMap::Refused)));

        fs::remove_file(&path).unwrap();
        symlink("/etc/shadow", &path).unwrap();
        assert!(matches!(perf_map(pid), Err(NoMap::Refused)));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(perf_map(pid), Err(NoMap::Refused)));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(perf_map(pid), Err(NoMap::Refused)));
        fs::remove_dir(&path).unwrap();
        if nix::unistd::geteuid().is_root() {
            fs::write(&path, "10 10 f\n").unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(matches!(perf_map(pid), Err(NoMap::Refused)));
            fs::remove_file(&path).unwrap();
        }
    }
}
