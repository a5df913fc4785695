//! Opens a process's perf map. The target controls the directory and the file, so neither is trusted.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use memprof_sys::ids::Pid;
use memprof_sys::target_file::{TargetFile, about, find_in, root_of};
use memprof_sys::{proc_dir, proc_text};

/// Clocks and file systems do not agree better than this.
const SLACK: Duration = Duration::from_secs(1);

/// Why there is no perf map.
#[derive(Debug)]
pub enum NoMap {
    /// The process has written none (yet).
    Missing,
    /// There is a file, which is not read: it is no regular file, belongs to another user, or is older than the process.
    Refused,
}

/// Where a process writes its perf map: `/tmp/perf-PID.map` in its own mount and pid namespace. It is found out while the
/// process lives, and the map can be opened after its end.
#[derive(Debug)]
pub struct Place {
    root: File,
    path: PathBuf,
    user: u32,
    started: Option<SystemTime>,
}

impl Place {
    /// The place of a process's map; `None` if the process has ended, or may not be inspected.
    pub fn of(pid: Pid) -> Option<Place> {
        let status = proc_dir::text(pid, "status").ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The last id is that in the process's own namespace; the second user id is the effective one.
        let inside: u32 = field("NStgid:")?
            .split_whitespace()
            .next_back()?
            .parse()
            .ok()?;
        Some(Place {
            root: root_of(pid).ok()?,
            path: format!("tmp/perf-{inside}.map").into(),
            user: field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?,
            started: started(pid),
        })
    }

    /// Opens the map.
    ///
    /// # Errors
    /// [`NoMap`].
    pub fn open(&self) -> Result<TargetFile, NoMap> {
        // (The file itself is no link.)
        let handle = find_in(&self.root, &self.path, libc::O_NOFOLLOW);
        let handle = handle.map_err(|_| NoMap::Missing)?;
        let about = about(&handle).map_err(|_| NoMap::Missing)?;
        if about.owner() != self.user && about.owner() != 0 {
            return Err(NoMap::Refused);
        }
        // A process before this one may have had the same id.
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

/// When a process started; `None` if that cannot be read.
fn started(pid: Pid) -> Option<SystemTime> {
    let stat = proc_text::read(&format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything, the start is the twentieth field, in ticks of 10 ms since boot.
    let ticks: u64 = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
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
        Place::of(pid).unwrap().open()
    }

    /// The perf map of this process. Only one test may use it.
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
