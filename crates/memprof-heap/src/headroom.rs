//! Whether there is memory for a snapshot: for memprof's copy, and for the pages that the process writes to while it
//! has a copy-on-write child, which are charged to its control group. Limits of control groups of version 1 and 2, of
//! all that contain it, and the machine's `MemAvailable`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use memprof_sys::ids::Pid;
use memprof_sys::mounts::{self, Mount};
use memprof_sys::proc_dir;
use memprof_sys::residency::figures::kib;

/// The page tables of a child take this share of its anonymous memory: one of this.
const PAGE_TABLES: u64 = 512;
/// Maximum number of control groups above each other that are looked at.
const MAX_DEPTH: usize = 64;
/// A controller's hierarchy of version 1 has limits of about this size where there is none, in bytes.
const UNLIMITED: u64 = 1 << 62;

/// Where memory is limited: the machine, or a control group by its directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Machine,
    Group(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Machine => write!(f, "the machine (MemAvailable)"),
            Place::Group(dir) => write!(f, "the control group {}", dir.display()),
        }
    }
}

/// Memory that memprof takes at least, with its maps in the kernel: 50 MiB for one small process and two processors.
const LEAST: u64 = 64 << 20;

/// Where less memory is left than memprof takes, for its user.
pub fn scarce() -> Option<String> {
    let own = Headroom::of(Pid(std::process::id())).own;
    let (place, left) = own.iter().min_by_key(|(_, left)| **left)?;
    let limits = match place {
        Place::Group(_) => " of its limit (`memory.max`; `memory.limit_in_bytes` in version 1)",
        Place::Machine => "",
    };
    (*left < LEAST).then(|| {
        format!(
            "{place} has {} MiB left{limits}, and memprof takes {} MiB or more: it may fail, or be killed by the kernel without a word",
            left >> 20,
            LEAST >> 20
        )
    })
}

/// The memory that is left in each place that a snapshot takes memory in, in bytes.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    /// Where memprof's copy is charged.
    own: BTreeMap<Place, u64>,
    /// Where the process's memory is charged.
    target: BTreeMap<Place, u64>,
}

impl Headroom {
    /// That of memprof and of a process, as far as it can be read.
    pub(super) fn of(pid: Pid) -> Headroom {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = hierarchies(&mounts);
        let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let machine = kib(&machine, "MemAvailable:");
        let of = |groups: std::io::Result<String>| {
            let mut places = groups_left(&groups.unwrap_or_default(), &mounts);
            places.extend(machine.map(|left| (Place::Machine, left)));
            places
        };
        Headroom {
            own: of(fs::read_to_string("/proc/self/cgroup")),
            target: of(proc_dir::text(pid, "cgroup")),
        }
    }

    /// Why a process with `anonymous` bytes of memory cannot be copied, if it cannot.
    pub(super) fn refuses_copy(&self, anonymous: u64) -> Option<String> {
        let needed = needed(anonymous);
        let (place, left) = self.own.iter().find(|(_, left)| **left < needed)?;
        Some(format!(
            "memprof needs up to {} MiB for it, and {place} has {} MiB left",
            needed >> 20,
            left >> 20
        ))
    }

    /// Why a process with `anonymous` bytes of memory should not be forked and copied, if it should not: there must be room for
    /// all of it, written to while the child lives. If there is less, and that is used up, the kernel ends the child first, but
    /// frees its memory only when memprof's read of it is done: it may end the process meanwhile (6 of 25 that wrote without a pause and
    /// had room for 60 %).
    pub(super) fn refuses_fork(&self, anonymous: u64) -> Option<String> {
        let written = anonymous + anonymous / PAGE_TABLES;
        let (place, left) = self.target.iter().find(|(place, left)| {
            // What is limited for both must have room for both.
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

/// What memprof takes at most for a process with `anonymous` bytes of memory: the copy, what it knows of each chunk, and
/// its own memory.
fn needed(anonymous: u64) -> u64 {
    const OWN: u64 = 16 << 20;
    anonymous + anonymous / 4 + OWN
}

/// A mounted hierarchy of control groups that limits memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The group at its root, and where it is mounted.
    root: PathBuf,
    point: PathBuf,
    version_2: bool,
}

/// The hierarchies that limit memory, in the text of a file like `/proc/self/mountinfo`.
fn hierarchies(mountinfo: &[u8]) -> Vec<Hierarchy> {
    let hierarchy = |mount: Mount| {
        let version_2 = match mount.kind.as_str() {
            "cgroup2" => true,
            "cgroup" if mount.options.split(',').any(|o| o == "memory") => false,
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
    /// The directory of a group in it.
    fn directory(&self, group: &str) -> Option<PathBuf> {
        // A group outside of memprof's namespace begins with `/..`.
        let below = Path::new(group).strip_prefix(&self.root).ok()?;
        let dir = self.point.join(below);
        (!group.contains("..") && dir.is_dir()).then_some(dir)
    }
}

/// What is left in the groups of a file like `/proc/PID/cgroup`, and in those above: `ID:CONTROLLERS:GROUP`, without
/// controllers for version 2.
fn groups_left(text: &str, mounts: &[Hierarchy]) -> BTreeMap<Place, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let version_2 = controllers.is_empty();
        if !version_2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        for mount in mounts.iter().filter(|mount| mount.version_2 == version_2) {
            let dir = mount.directory(group);
            let above = dir.iter().flat_map(|dir| dir.ancestors());
            let within = above.take_while(|dir| dir.starts_with(&mount.point));
            for dir in within.take(MAX_DEPTH) {
                if let Some(left) = left_in(dir, version_2) {
                    found.insert(Place::Group(dir.to_owned()), left);
                }
            }
        }
    }
    found
}

/// What is left in a group: its limit without what it uses, except files that were not used lately, which the kernel
/// drops first. `None` if it has no limit.
fn left_in(dir: &Path, version_2: bool) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limits, used, files): (&[&str], _, _) = match version_2 {
        // Above `memory.high`, processes are slowed down. Without a limit the files say "max".
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
        let expected = expected.map(|(dir, left)| (Place::Group(dir), left));
        assert_eq!(left, BTreeMap::from(expected));
        // Outside of the namespace, and gone.
        for group in ["4:memory:/../a\n", "0::/other\n", "4:memory:/gone\n", "4\n"] {
            assert_eq!(groups_left(group, &mounts), BTreeMap::new(), "{group}");
        }
    }

    #[test]
    fn a_place_of_both_has_room_for_both() {
        let group = |name: &str| Place::Group(name.into());
        let headroom = |own: &[(Place, u64)], target: &[(Place, u64)]| Headroom {
            own: own.iter().cloned().collect(),
            target: target.iter().cloned().collect(),
        };
        const MIB: u64 = 1 << 20;
        // 141 MiB for 100 MiB.
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
        let machine = [(Place::Machine, 241 * MIB)];
        let together = headroom(&machine, &machine);
        assert_eq!(together.refuses_copy(100 * MIB), None);
        let reason = together.refuses_fork(100 * MIB).unwrap();
        assert!(reason.contains("141 MiB for memprof's copy"), "{reason}");
        assert_eq!(together.refuses_fork(99 * MIB), None);
    }
}
