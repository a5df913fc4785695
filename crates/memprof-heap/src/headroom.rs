//! Checks whether there is enough memory for a snapshot: for memprof's copy, and for the pages that the process
//! writes to while it has a copy-on-write child, which are charged to its cgroup. Considers the limits of cgroups (v1
//! and v2) and of their ancestors, and the machine's `MemAvailable`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use memprof_sys::ids::Pid;
use memprof_sys::mounts::{self, Mount};
use memprof_sys::{proc_dir, procfs};

/// Page tables of a child take 1/`PAGE_TABLES` of its anonymous memory.
const PAGE_TABLES: u64 = 512;
/// Maximum number of nested cgroups to check.
const MAX_DEPTH: usize = 64;
/// Cgroup v1 reports about this limit, in bytes, if there is none.
const UNLIMITED: u64 = 1 << 62;

/// A limit on memory: the machine's, or that of a cgroup, by its directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemoryLimit {
    Machine,
    Group(PathBuf),
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Machine => write!(f, "the machine (MemAvailable)"),
            MemoryLimit::Group(dir) => write!(f, "the control group {}", dir.display()),
        }
    }
}

/// Minimum memory that memprof takes, including its maps in the kernel. Measured: 50 MiB for one small process and
/// two CPUs.
const LEAST: u64 = 64 << 20;

/// The bytes that memprof can still take below every limit.
pub(super) fn left() -> u64 {
    let own = Headroom::read(Pid(std::process::id())).own;
    own.into_values().min().unwrap_or(u64::MAX)
}

/// Returns a warning if less memory is left than memprof takes.
pub fn scarce() -> Option<String> {
    let own = Headroom::read(Pid(std::process::id())).own;
    let (place, left) = own.iter().min_by_key(|(_, left)| **left)?;
    let limits = match place {
        MemoryLimit::Group(_) => {
            " of its limit (`memory.max`; `memory.limit_in_bytes` in version 1)"
        }
        MemoryLimit::Machine => "",
    };
    (*left < LEAST).then(|| {
        format!(
            "{place} has {} MiB left{limits}, and memprof takes {} MiB or more: it may fail, or be killed by the kernel without a word",
            left >> 20,
            LEAST >> 20
        )
    })
}

/// The memory that is left under each limit that a snapshot is charged to, in bytes.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    /// Limits that memprof's copy is charged to.
    own: BTreeMap<MemoryLimit, u64>,
    /// Limits that the process's memory is charged to.
    target: BTreeMap<MemoryLimit, u64>,
}

impl Headroom {
    /// Reads the limits of memprof and of a process, as far as they are readable.
    pub(super) fn read(pid: Pid) -> Headroom {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = hierarchies(&mounts);
        let machine = procfs::meminfo("MemAvailable");
        let of = |groups: std::io::Result<String>| {
            let mut places = groups_left(&groups.unwrap_or_default(), &mounts);
            places.extend(machine.map(|left| (MemoryLimit::Machine, left)));
            places
        };
        Headroom {
            own: of(fs::read_to_string("/proc/self/cgroup")),
            target: of(proc_dir::text(pid, "cgroup")),
        }
    }

    /// Returns the reason if there is not enough memory to copy a process with `anonymous` bytes of memory.
    pub(super) fn refuses_copy(&self, anonymous: u64) -> Option<String> {
        let needed = needed(anonymous);
        let (place, left) = self.own.iter().find(|(_, left)| **left < needed)?;
        Some(format!(
            "memprof needs up to {} MiB for it, and {place} has {} MiB left",
            needed >> 20,
            left >> 20
        ))
    }

    /// Returns the reason if a process with `anonymous` bytes of memory should not be forked and copied. There must
    /// be enough memory for all of it, because the process may write to every page while the child lives. If memory
    /// runs out, the kernel kills the child first, but frees its memory only when memprof's read of it has finished.
    /// Meanwhile the kernel may kill the process: this happened to 6 of 25 processes that wrote without a pause and
    /// had enough memory for only 60 %.
    pub(super) fn refuses_fork(&self, anonymous: u64) -> Option<String> {
        let written = anonymous + anonymous / PAGE_TABLES;
        let (place, left) = self.target.iter().find(|(place, left)| {
            // A limit that applies to both must leave enough for both.
            let own = self.own.get(place).map_or(0, |_| needed(anonymous));
            **left < written + own
        })?;
        let own = match self.own.contains_key(place) {
            true => format!(
                ", beside {} MiB for memprof's copy",
                needed(anonymous) >> 20
            ),
            false => String::new(),
        };
        Some(format!(
            "{place} has {} MiB left, and while it has a child it may write to all of its memory, {} MiB{own}",
            left >> 20,
            written >> 20
        ))
    }
}

/// Maximum memory that memprof takes for a process with `anonymous` bytes of memory: the copy, the chunk index, and
/// its own memory.
fn needed(anonymous: u64) -> u64 {
    const OWN: u64 = 16 << 20;
    anonymous + anonymous / 4 + OWN
}

/// A mounted cgroup hierarchy that limits memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The cgroup at its root; `point` is the mount point.
    root: PathBuf,
    point: PathBuf,
    version_2: bool,
}

/// Parses the hierarchies that limit memory from the text of a `mountinfo` file.
fn hierarchies(mountinfo: &[u8]) -> Vec<Hierarchy> {
    let hierarchy = |mount: Mount| {
        let version_2 = match mount.kind.as_str() {
            "cgroup2" => true,
            "cgroup" if procfs::controls_memory(&mount.options) => false,
            _ => return None,
        };
        Some(Hierarchy {
            root: mount.root,
            point: mount.point,
            version_2,
        })
    };
    mounts::parse(mountinfo).filter_map(hierarchy).collect()
}

impl Hierarchy {
    /// Directory of a cgroup in this hierarchy.
    fn directory(&self, group: &str) -> Option<PathBuf> {
        // The path of a cgroup outside memprof's cgroup namespace begins with `/..`.
        let below = Path::new(group).strip_prefix(&self.root).ok()?;
        let dir = self.point.join(below);
        (!group.contains("..") && dir.is_dir()).then_some(dir)
    }
}

/// Memory left in the cgroups of a `/proc/PID/cgroup` file and in their ancestors.
fn groups_left(text: &str, mounts: &[Hierarchy]) -> BTreeMap<MemoryLimit, u64> {
    let mut found = BTreeMap::new();
    for (controllers, group) in procfs::cgroups(text) {
        let version_2 = controllers.is_empty();
        if !version_2 && !procfs::controls_memory(controllers) {
            continue;
        }
        for mount in mounts.iter().filter(|mount| mount.version_2 == version_2) {
            let dir = mount.directory(group);
            let above = dir.iter().flat_map(|dir| dir.ancestors());
            let within = above.take_while(|dir| dir.starts_with(&mount.point));
            for dir in within.take(MAX_DEPTH) {
                if let Some(left) = left_in(dir, version_2) {
                    found.insert(MemoryLimit::Group(dir.to_owned()), left);
                }
            }
        }
    }
    found
}

/// Memory left in a cgroup: its limit minus its usage, not counting inactive file pages, which the kernel reclaims
/// first. `None` if it has no limit.
fn left_in(dir: &Path, version_2: bool) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limits, used, files): (&[&str], _, _) = match version_2 {
        // Above `memory.high`, processes are throttled. Without a limit the files contain "max".
        true => (
            &["memory.max", "memory.high"],
            "memory.current",
            "inactive_file ",
        ),
        false => (
            &["memory.limit_in_bytes"],
            "memory.usage_in_bytes",
            "total_inactive_file ",
        ),
    };
    let limits = limits.iter().filter_map(|name| number(name));
    let limit = limits.min().filter(|limit| *limit < UNLIMITED)?;
    let stat = read("memory.stat").unwrap_or_default();
    let files = stat
        .lines()
        .find_map(|line| line.strip_prefix(files)?.parse::<u64>().ok());
    let used = number(used)?.saturating_sub(files.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 20 0:21 / /sys rw - sysfs sysfs rw
30 25 0:26 / POINT/one rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / POINT/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 /outer POINT/two rw,relatime - cgroup2 cgroup2 rw
";

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn what_is_left_is_the_least_of_all_groups() {
        let point = tempfile::tempdir().unwrap();
        let mounts = MOUNTS.replace("POINT", point.path().to_str().unwrap());
        let mounts = hierarchies(mounts.as_bytes());
        assert_eq!(mounts.len(), 2);
        let one = point.path().join("one/a");
        let unlimited = (("memory.limit_in_bytes", "9223372036854771712\n"), "7\n");
        write(
            &point.path().join("one"),
            &[unlimited.0, ("memory.usage_in_bytes", unlimited.1)],
        );
        let limited = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "700\n"),
            (
                "memory.stat",
                "cache 9\ninactive_file 50\ntotal_inactive_file 100\n",
            ),
        ];
        write(&one, &limited);
        let two = point.path().join("two/b/c");
        let high = [
            ("memory.max", "max\n"),
            ("memory.high", "5000\n"),
            ("memory.current", "5100\n"),
            ("memory.stat", "anon 7\ninactive_file 300\n"),
        ];
        write(
            &two,
            &[
                ("memory.max", "max\n"),
                ("memory.high", "max\n"),
                ("memory.current", "5\n"),
            ],
        );
        write(two.parent().unwrap(), &high);
        let left = groups_left("4:memory:/a\n3:cpu:/x\n0::/outer/b/c\n", &mounts);
        let expected = [(one.clone(), 400), (two.parent().unwrap().to_owned(), 200)];
        let expected = expected.map(|(dir, left)| (MemoryLimit::Group(dir), left));
        assert_eq!(left, BTreeMap::from(expected));
        // Outside the namespace, and removed.
        for group in ["4:memory:/../a\n", "0::/other\n", "4:memory:/gone\n", "4\n"] {
            assert_eq!(groups_left(group, &mounts), BTreeMap::new(), "{group}");
        }
    }

    #[test]
    fn a_place_of_both_has_room_for_both() {
        let group = |name: &str| MemoryLimit::Group(name.into());
        let headroom = |own: &[(MemoryLimit, u64)], target: &[(MemoryLimit, u64)]| Headroom {
            own: own.iter().cloned().collect(),
            target: target.iter().cloned().collect(),
        };
        const MIB: u64 = 1 << 20;
        // A copy of 100 MiB needs 141 MiB.
        let separate = headroom(&[(group("/m"), 141 * MIB)], &[(group("/t"), 101 * MIB)]);
        assert_eq!(separate.refuses_copy(100 * MIB), None);
        assert_eq!(separate.refuses_fork(100 * MIB), None);
        let reason = separate.refuses_copy(101 * MIB).unwrap();
        assert!(reason.contains("/m has 141 MiB left"), "{reason}");
        let reason = separate.refuses_fork(101 * MIB).unwrap();
        assert!(
            reason.contains("/t has 101 MiB left") && reason.contains("memory, 101 MiB"),
            "{reason}"
        );
        let machine = [(MemoryLimit::Machine, 241 * MIB)];
        let together = headroom(&machine, &machine);
        assert_eq!(together.refuses_copy(100 * MIB), None);
        let reason = together.refuses_fork(100 * MIB).unwrap();
        assert!(reason.contains("141 MiB for memprof's copy"), "{reason}");
        assert_eq!(together.refuses_fork(99 * MIB), None);
    }
}
