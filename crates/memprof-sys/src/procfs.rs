//! Parses the files of `/proc` that describe a process or a thread: `stat`, `status`, `auxv` and `comm`.
//!
//! Files that show a process's memory, files or namespaces are opened by [`proc_dir`]. The `procfs` crate opens `/proc/PID` itself,
//! so it finds nothing once the first thread has ended, and one field that it cannot parse makes it reject the whole file.

use std::fmt::Display;
use std::fs;
use std::io;
use std::str::FromStr;

use crate::ids::Pid;
use crate::proc_dir;

/// Reads a file as text, with U+FFFD for invalid UTF-8. A name of a process or thread may be any bytes, and the kernel truncates it
/// to 15 bytes, often in the middle of a character.
///
/// # Errors
/// The file cannot be read: the process has ended, or memprof may not inspect it.
pub fn text(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The name of a process or thread as the kernel stores it (`comm`); `None` if it is gone. `of` is its directory in `/proc`.
pub fn comm(of: impl Display) -> Option<String> {
    let mut name = text(&format!("/proc/{of}/comm")).ok()?;
    name.truncate(name.trim_end_matches('\n').len());
    Some(name)
}

/// Whether this process is in the initial pid namespace, where BPF programs see the same pids; `None` if `/proc` does not show it.
pub fn in_initial_pid_namespace() -> Option<bool> {
    in_initial_namespace("pid", 0xEFFF_FFFC)
}

/// Whether this process is in the initial user namespace; `None` if `/proc` does not show it.
pub fn in_initial_user_namespace() -> Option<bool> {
    in_initial_namespace("user", 0xEFFF_FFFD)
}

/// The kernel gives the initial namespaces fixed inode numbers (`PROC_PID_INIT_INO`, `PROC_USER_INIT_INO`).
fn in_initial_namespace(kind: &str, inode: u64) -> Option<bool> {
    let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
    Some(link.to_str()? == format!("{kind}:[{inode}]"))
}

/// Numeric fields of `stat`, by their numbers in `proc_pid_stat(5)`.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// The parent's process id.
    Parent = 4,
    /// Flags of the kernel (`PF_…`).
    Flags = 9,
    /// Minor page faults, including those of ended threads.
    MinorFaults = 10,
    /// Major page faults, including those of ended threads.
    MajorFaults = 12,
    /// Number of threads.
    Threads = 20,
    /// Start time in ticks of 10 ms since boot.
    Started = 22,
    /// Signal to the parent at the end.
    ExitSignal = 38,
    /// Exit status, as `waitpid` returns it.
    ExitCode = 52,
}

/// The text of `stat`, starting with the state.
#[derive(Clone, Debug)]
pub struct Stat(String);

impl Stat {
    /// Reads `stat` of a process or thread. `of` is its directory in `/proc`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(of: impl Display) -> io::Result<Stat> {
        text(&format!("/proc/{of}/stat")).map(|text| Stat::parse(&text))
    }

    /// Parses `PID (NAME) STATE …`. The name may contain any characters, including parentheses.
    pub fn parse(text: &str) -> Stat {
        Stat(text.rsplit_once(") ").unwrap_or_default().1.to_owned())
    }

    /// The state letter.
    pub fn state(&self) -> Option<char> {
        self.0.chars().next()
    }

    /// The value of a field; `None` if it is absent or malformed.
    pub fn number<T: FromStr>(&self, field: Field) -> Option<T> {
        let mut fields = self.0.split_ascii_whitespace();
        // The state is field 3.
        fields.nth(field as usize - 3)?.parse().ok()
    }
}

/// The text of `status`.
#[derive(Clone, Debug, Default)]
pub struct StatusFile(String);

impl StatusFile {
    /// Reads `status` of a process.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn for_process(pid: Pid) -> io::Result<StatusFile> {
        proc_dir::text(pid, "status").map(StatusFile)
    }

    /// Reads `status` of a thread: its id, or `thread-self`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn for_thread(tid: impl Display) -> io::Result<StatusFile> {
        text(&format!("/proc/{tid}/status")).map(StatusFile)
    }

    /// The value of the line `KEY: VALUE`.
    pub fn field(&self, key: &str) -> Option<&str> {
        value(&self.0, key).map(str::trim)
    }

    /// The value of a line with one number.
    pub fn number<T: FromStr>(&self, key: &str) -> Option<T> {
        self.field(key)?.parse().ok()
    }

    /// The value of a line with a hexadecimal bit mask.
    pub fn mask(&self, key: &str) -> Option<u64> {
        u64::from_str_radix(self.field(key)?, 16).ok()
    }
}

/// The effective capabilities of the current thread, as a bit mask; 0 if unknown.
pub fn effective_capabilities() -> u64 {
    let status = StatusFile::for_thread("thread-self").unwrap_or_default();
    status.mask("CapEff").unwrap_or(0)
}

/// A value of `/proc/meminfo`, in bytes.
pub fn meminfo(key: &str) -> Option<u64> {
    kib(value(&fs::read_to_string("/proc/meminfo").ok()?, key)?)
}

/// The release of the running kernel, such as `6.1.0-18-amd64`; empty if it is unknown.
pub fn kernel_release() -> String {
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Parses `/proc/PID/cgroup`: a line `ID:CONTROLLERS:GROUP` for each hierarchy. Returns the controllers, which are empty in
/// version 2, and the group.
pub fn cgroups(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines();
    lines.filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// Whether these controllers of a cgroup v1 hierarchy, or options of its mount, include the memory controller.
pub fn controls_memory(controllers: &str) -> bool {
    controllers.split(',').any(|one| one == "memory")
}

/// The text after the colon of the line `KEY: VALUE`. A process name cannot forge a line of `status`: the kernel escapes newlines.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

/// Parses `N kB`; returns bytes.
pub(crate) fn kib(text: &str) -> Option<u64> {
    let number = text.trim().strip_suffix("kB")?.trim_end();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// The auxiliary vector, which `execve` passes to the program.
#[derive(Clone, Debug)]
pub struct Auxv(Vec<u8>);

impl Auxv {
    /// Reads `auxv` of a process; the kernel limits it to a few hundred bytes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn for_process(pid: Pid) -> io::Result<Auxv> {
        proc_dir::read(pid, "auxv").map(Auxv)
    }

    /// The value of the first entry with this key (`AT_…`).
    pub fn get(&self, key: u64) -> Option<u64> {
        let (entries, _) = self.0.as_chunks::<16>();
        let mut entries = entries.iter().map(|entry| {
            let (words, _) = entry.as_chunks::<8>();
            (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]))
        });
        let found = entries.find(|(entry, _)| [key, libc::AT_NULL].contains(entry));
        found.and_then(|(entry, value)| (entry == key).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_follow_any_name() {
        let text = "42 (a) (b) S 1 42 42 0 -1 2129984 1203 5 17 6 3 4 0 0 20 0 9 0 1234 5678";
        let stat = Stat::parse(text);
        let number = |field| stat.number::<u64>(field);
        assert_eq!((stat.state(), number(Field::Parent)), (Some('S'), Some(1)));
        assert_eq!(number(Field::Flags), Some(2_129_984));
        let faults = [Field::MinorFaults, Field::MajorFaults, Field::Threads].map(number);
        assert_eq!(faults, [Some(1203), Some(17), Some(9)]);
        assert_eq!(number(Field::Started), Some(1234));
        assert_eq!(number(Field::ExitCode), None);
        for text in ["", "2 (x", "2 (x) "] {
            let stat = Stat::parse(text);
            assert_eq!(
                (stat.state(), stat.number::<u64>(Field::Parent)),
                (None, None)
            );
        }
    }

    #[test]
    fn lines_of_status_are_found_by_their_whole_key() {
        let text = "Name:\tCapEff: 1\nCapPrm:\t0\nCapEff:\t000000c000280000\nThreads:\t3\n";
        let status = StatusFile(text.into());
        assert_eq!(status.mask("CapEff"), Some(0xc0_0028_0000));
        assert_eq!(status.number("Threads"), Some(3));
        assert_eq!(status.number::<u64>("Name"), None);
        assert_eq!((status.field("Cap"), status.field("Thread")), (None, None));
    }

    #[test]
    fn the_auxiliary_vector_ends_at_its_null_entry() {
        let words: [u64; 9] = [7, 0x1000, 25, 0x2000, 0, 0, 23, 1, 31];
        let auxv = Auxv(words.iter().flat_map(|word| word.to_ne_bytes()).collect());
        assert_eq!((auxv.get(7), auxv.get(25)), (Some(0x1000), Some(0x2000)));
        assert_eq!((auxv.get(23), auxv.get(31)), (None, None));
        let own = Auxv::for_process(Pid(std::process::id())).unwrap();
        assert!(own.get(libc::AT_RANDOM).is_some_and(|address| address != 0));
    }
}
