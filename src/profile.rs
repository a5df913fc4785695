//! One report's data: every resident and cached byte of the target with the stack it stands under.
//!
//! A [`Profile`] is what the aggregator hands to everyone who shows something: the join is done,
//! addresses are turned into ([`Module`], file offset) pairs, names are not looked up yet.

use std::collections::HashSet;
use std::fs::File;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::event::{Outcome, Pid};

/// Bytes by category. `anon + shmem` is what the kernel calls `RssAnon + RssShmem`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident anonymous memory, in bytes.
    pub anon: u64,
    /// Resident shared memory (shmem, tmpfs, memfd) mapped by the target, in bytes.
    pub shmem: u64,
    /// Resident file mappings, in bytes. The same physical pages may stand under `cache` too.
    pub file: u64,
    /// Swapped-out memory, in bytes; not resident.
    pub swap: u64,
    /// Hugetlb memory, in bytes; the kernel keeps it apart from RSS.
    pub hugetlb: u64,
    /// Page cache that the target's own IO brought in and that is still cached, in bytes.
    pub cache: u64,
    /// Kernel memory that the target had allocated, in bytes; approximate, no part of any sum, and 0
    /// unless [`Profile::kernel_counted`].
    pub kernel: u64,
}

impl Usage {
    /// Resident anonymous and shared memory: `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.anon + self.shmem
    }

    /// What the `/v1` tree counts: resident anonymous and shared memory and page cache, in bytes.
    pub fn value(&self) -> u64 {
        self.resident() + self.cache
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, o: Usage) {
        self.anon += o.anon;
        self.shmem += o.shmem;
        self.file += o.file;
        self.swap += o.swap;
        self.hugetlb += o.hugetlb;
        self.cache += o.cache;
        self.kernel += o.kernel;
    }
}

/// One category of bytes, or the sum that `/v1` counts. The names are those of the HTTP API, of
/// the command line and of the metrics' `kind` label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous, shared and page cache together: [`Usage::value`].
    #[default]
    All,
    /// Anonymous and shared memory: [`Usage::resident`].
    Resident,
    /// [`Usage::anon`].
    Anon,
    /// [`Usage::shmem`].
    Shmem,
    /// [`Usage::cache`].
    Cache,
    /// [`Usage::file`].
    File,
    /// [`Usage::swap`].
    Swap,
    /// [`Usage::hugetlb`].
    Hugetlb,
    /// [`Usage::kernel`].
    Kernel,
}

impl Kind {
    /// Every kind, in the order in which they are offered.
    pub const ALL: [Kind; 9] = [
        Kind::All,
        Kind::Resident,
        Kind::Anon,
        Kind::Shmem,
        Kind::Cache,
        Kind::File,
        Kind::Swap,
        Kind::Hugetlb,
        Kind::Kernel,
    ];

    /// The kinds that are no sums of others.
    pub const SINGLE: [Kind; 7] = [
        Kind::Anon,
        Kind::Shmem,
        Kind::Cache,
        Kind::File,
        Kind::Swap,
        Kind::Hugetlb,
        Kind::Kernel,
    ];

    /// Its name: short, lower-case.
    pub fn name(self) -> &'static str {
        match self {
            Kind::All => "all",
            Kind::Resident => "resident",
            Kind::Anon => "anon",
            Kind::Shmem => "shmem",
            Kind::Cache => "cache",
            Kind::File => "file",
            Kind::Swap => "swap",
            Kind::Hugetlb => "hugetlb",
            Kind::Kernel => "kernel",
        }
    }

    /// Its name, for people: it says that kernel memory is approximate.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel (approximate)",
            exact => exact.name(),
        }
    }

    /// The kind of that name.
    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// So much of this kind, in bytes.
    pub fn of(self, usage: &Usage) -> u64 {
        match self {
            Kind::All => usage.value(),
            Kind::Resident => usage.resident(),
            Kind::Anon => usage.anon,
            Kind::Shmem => usage.shmem,
            Kind::Cache => usage.cache,
            Kind::File => usage.file,
            Kind::Swap => usage.swap,
            Kind::Hugetlb => usage.hugetlb,
            Kind::Kernel => usage.kernel,
        }
    }
}

/// Index of a [`Module`] in [`Profile::modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u16);

/// An executable file mapped by the target, kept open so that it still has names after the process
/// has ended or the file was deleted.
#[derive(Debug)]
pub struct Module {
    /// Path as the kernel shows it in `/proc/PID/maps`, without a ` (deleted)` suffix.
    pub path: PathBuf,
    /// Base name for display: `libc.so.6`.
    pub name: String,
    /// Device and inode number, which tell two files of one name apart.
    pub dev_ino: (u64, u64),
    /// The open file; `None` where it could not be opened.
    pub file: Option<File>,
    /// Whether it is the profiled program's own executable (`/proc/PID/exe`).
    pub own_executable: bool,
}

impl Module {
    /// What all code that was made at run time stands under: no file, and for an offset its address.
    pub fn jit() -> Module {
        Module {
            path: JIT.into(),
            name: JIT.to_owned(),
            dev_ino: (0, 0),
            file: None,
            own_executable: false,
        }
    }

    /// Whether it is [`Module::jit`].
    pub fn is_jit(&self) -> bool {
        // A file's path begins with a slash.
        self.path.as_os_str() == JIT
    }
}

/// The name of code made at run time, as a file and as a function.
pub const JIT: &str = "[JIT]";

/// One frame of a stack: a file offset in a module, or an address no executable file was mapped at.
///
/// Packed into 8 bytes: stacks are most of what memprof keeps in memory. A frame's position is that
/// of the executing or calling instruction: return addresses are stored less one, so that the
/// position lies inside the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame(u64);

/// A [`Frame`] taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Code of a file: the module and the offset in the file, in bytes.
    Code(ModuleId, u64),
    /// An address that no known executable file was mapped at (a damaged stack, a file mapped a moment ago).
    Unmapped(u64),
}

impl Frame {
    const SHIFT: u32 = 48;
    const UNMAPPED: u16 = u16::MAX;
    const LOW: u64 = (1 << Self::SHIFT) - 1;

    /// A frame in a module; `offset` is a file offset in bytes (only the low 48 bits are kept).
    pub fn code(module: ModuleId, offset: u64) -> Frame {
        Frame((u64::from(module.0) << Self::SHIFT) | (offset & Self::LOW))
    }

    /// A frame at an address with no file behind it.
    pub fn unmapped(addr: u64) -> Frame {
        Frame((u64::from(Self::UNMAPPED) << Self::SHIFT) | (addr & Self::LOW))
    }

    /// Takes the frame apart.
    pub fn kind(self) -> FrameKind {
        let module = (self.0 >> Self::SHIFT) as u16;
        if module == Self::UNMAPPED {
            FrameKind::Unmapped(self.0 & Self::LOW)
        } else {
            FrameKind::Code(ModuleId(module), self.0 & Self::LOW)
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind().fmt(f)
    }
}

/// A call stack, innermost frame first.
#[derive(Debug, PartialEq, Eq)]
pub struct Stack {
    /// Frames, innermost first; may be empty.
    pub frames: Box<[Frame]>,
    /// How the walk that took it ended.
    pub outcome: Outcome,
}

/// The bytes that stand under one stack.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The stack.
    pub stack: Arc<Stack>,
    /// Bytes by category.
    pub usage: Usage,
}

/// Why memory has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unobserved {
    /// It was resident before memprof attached.
    BeforeAttach,
    /// It came in while attached, but by no event that memprof sees.
    NoEvent,
    /// An event was seen, but its stack did not fit a table; see [`Losses`].
    StackLost,
}

impl Unobserved {
    /// Its name in the HTTP API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before_attach",
            Unobserved::NoEvent => "no_event",
            Unobserved::StackLost => "stack_lost",
        }
    }

    /// Short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Unobserved::BeforeAttach => "before attach",
            Unobserved::NoEvent => "not observed",
            Unobserved::StackLost => "stack lost",
        }
    }
}

/// What stands for the mapping of memory whose stack was seen and lost.
pub const LOST_STACK: &str = "[stack record lost]";

/// Memory of one mapping that stands under no stack.
#[derive(Clone, Debug)]
pub struct NotObserved {
    /// The mapping: a path, `[heap]`, `[stack]`, `[anon]`, …
    pub mapping: String,
    /// Why there is no stack.
    pub reason: Unobserved,
    /// Bytes by category.
    pub usage: Usage,
}

/// The kernel's own figures for the target, in bytes; what memprof's totals are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFigures {
    /// `Anonymous` of `/proc/PID/smaps_rollup`; `None` where it was not read, as that would have made
    /// the target wait (see [`figures::is_brief`](crate::residency::figures::is_brief)).
    pub anonymous: Option<u64>,
    /// `RssAnon` of `/proc/PID/status` (approximate up to Linux 6.15). Of a command that has ended this and the next
    /// three are sums over `smaps`, by what lies behind each mapping ([`Kept`](crate::residency::Kept)).
    pub rss_anon: u64,
    /// `RssShmem` of `/proc/PID/status`.
    pub rss_shmem: u64,
    /// `RssFile` of `/proc/PID/status`.
    pub rss_file: u64,
    /// `VmSwap` of `/proc/PID/status`.
    pub swap: u64,
    /// `VmPTE` of `/proc/PID/status`: page tables. Kernel memory, no part of RSS.
    pub page_tables: u64,
}

impl Default for KernelFigures {
    /// Nothing, as the start of a sum.
    fn default() -> KernelFigures {
        KernelFigures {
            anonymous: Some(0),
            rss_anon: 0,
            rss_shmem: 0,
            rss_file: 0,
            swap: 0,
            page_tables: 0,
        }
    }
}

impl AddAssign for KernelFigures {
    fn add_assign(&mut self, o: KernelFigures) {
        self.anonymous = self.anonymous.zip(o.anonymous).map(|(a, b)| a + b);
        self.rss_anon += o.rss_anon;
        self.rss_shmem += o.rss_shmem;
        self.rss_file += o.rss_file;
        self.swap += o.swap;
        self.page_tables += o.page_tables;
    }
}

impl KernelFigures {
    /// `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.rss_anon + self.rss_shmem
    }
}

/// What was not seen, lost or cut off, as counts since memprof attached. All zero is the normal case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Named counters that are not zero, in a fixed order: (what, how many).
    pub counters: Vec<(&'static str, u64)>,
}

impl Losses {
    /// Processes for which there was no room.
    pub const NOT_FOLLOWED: &'static str = "processes not followed: table full";
    /// Events that a report was made without: among them may be processes' beginnings.
    pub const BEHIND: &'static str =
        "bytes of events not taken in yet: more came than memprof could take in";

    /// Whether no process of the target is missing.
    pub fn have_all_processes(&self) -> bool {
        let missing =
            |(what, _): &(&str, u64)| [Losses::NOT_FOLLOWED, Losses::BEHIND].contains(what);
        !self.counters.iter().any(missing)
    }

    /// Those that concern processes that are in the report.
    fn of_processes_followed(&self) -> Losses {
        let mut losses = self.clone();
        losses
            .counters
            .retain(|(what, _)| *what != Losses::NOT_FOLLOWED);
        losses
    }

    /// Adds a counter unless it is zero.
    pub fn add(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            self.counters.push((what, count));
        }
    }
}

/// How full a table of the probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFill {
    /// Its name.
    pub name: &'static str,
    /// Entries in use.
    pub entries: u64,
    /// Entries that it has room for.
    pub capacity: u64,
}

/// How many stacks (distinct), and bytes standing under them, ended in which way.
pub type OutcomeRow = (Outcome, u64, u64);

/// The process (or tree of processes) a profile is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// The process id.
    pub pid: Pid,
    /// Its name (`/proc/PID/comm`).
    pub comm: String,
    /// Every followed process, the first one being `pid`.
    pub pids: Vec<Pid>,
    /// False once the target has ended: the profile is then the last one taken.
    pub alive: bool,
}

/// Our resident total beside the kernel's `RssAnon + RssShmem` before and after, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// [`Usage::resident`] of the total.
    pub ours: u64,
    /// The smaller one of the kernel's figures.
    pub low: u64,
    /// The larger one.
    pub high: u64,
    /// No process of the target is missing from all three.
    pub complete: bool,
}

/// The word for an [`Agreement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's figure did not change, and ours is the same.
    Equal,
    /// The kernel's figure changed, and ours lies between.
    Between,
    /// Ours is smaller.
    Below,
    /// Ours is larger.
    Above,
    /// Processes are missing, from our total as from the kernel's figures: see [`Losses`].
    Incomplete,
}

impl Agreement {
    /// The word for it.
    pub fn verdict(&self) -> Verdict {
        match self.ours {
            _ if !self.complete => Verdict::Incomplete,
            ours if ours < self.low => Verdict::Below,
            ours if ours > self.high => Verdict::Above,
            _ if self.low == self.high => Verdict::Equal,
            _ => Verdict::Between,
        }
    }
}

/// One report of the target's memory.
#[derive(Clone, Debug)]
pub struct Profile {
    /// When the page scan ended.
    pub taken: SystemTime,
    /// The target.
    pub target: TargetInfo,
    /// Memory by stack.
    pub samples: Vec<Sample>,
    /// Memory without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of `samples` and `not_observed`.
    pub total: Usage,
    /// The kernel's figures read just before the page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures read just after the page scan.
    pub kernel_after: KernelFigures,
    /// What was lost.
    pub losses: Losses,
    /// The files that frames refer to.
    pub modules: Arc<[Arc<Module>]>,
    /// The same memory, by mapping and by file.
    pub places: Arc<Places>,
    /// Each process's share, in the order of `target.pids`; empty where there is only one process. The
    /// page cache that ended processes brought in is in nobody's.
    pub processes: Vec<Share>,
    /// Whether the target stood still for this report.
    pub hold: Hold,
    /// Whether kernel memory was counted (`--kernel`).
    pub kernel_counted: bool,
}

/// Whether the target of a report stood still for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// It ran: the kernel's figures before and after are the bracket around the total.
    #[default]
    Ran,
    /// It stood still for so long, all of it at once.
    Still(Duration),
    /// Each process stood still for its own scan, one after the other.
    InTurn {
        /// The longest that one of them did.
        longest: Duration,
        /// All of them together.
        sum: Duration,
    },
    /// It was to stand still, but ran.
    Failed {
        /// Why.
        why: String,
        /// For how long it was tried: it stood still then.
        stood: Duration,
    },
}

impl Hold {
    /// How long the target stood still; of several processes that did in turn, the longest.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            Hold::Still(lasted) => Some(*lasted),
            Hold::InTurn { longest, .. } => Some(*longest),
            Hold::Ran | Hold::Failed { .. } => None,
        }
    }

    /// How long any of it stood still for this report, in vain included.
    pub fn cost(&self) -> Duration {
        match self {
            Hold::Ran => Duration::ZERO,
            Hold::Still(time) | Hold::InTurn { sum: time, .. } => *time,
            Hold::Failed { stood, .. } => *stood,
        }
    }

    /// Whether several processes stood still one after the other.
    pub fn in_turn(&self) -> bool {
        matches!(self, Hold::InTurn { .. })
    }

    /// Why the target ran, although it was to stand still.
    pub fn failed(&self) -> Option<&str> {
        match self {
            Hold::Failed { why, .. } => Some(why),
            Hold::Ran | Hold::Still(_) | Hold::InTurn { .. } => None,
        }
    }
}

/// One process's share of a [`Profile`] of several. A page that several processes map is in the share
/// of each, under the stack that brought it in.
#[derive(Clone, Debug)]
pub struct Share {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub comm: String,
    /// Its memory by stack.
    pub samples: Vec<Sample>,
    /// Its memory without a stack, by mapping.
    pub not_observed: Vec<NotObserved>,
    /// The sum of both.
    pub total: Usage,
    /// The kernel's figures for it read just before its page scan.
    pub kernel_before: KernelFigures,
    /// The kernel's figures for it read just after its page scan.
    pub kernel_after: KernelFigures,
    /// Whether it stood still.
    pub hold: Hold,
}

/// Where the memory of a report lies.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The mappings of every followed process, by process, then by address.
    pub mappings: Vec<Mapping>,
    /// The files in the page cache, by device and inode.
    pub files: Vec<CachedFile>,
    /// Page cache of files for which there was no room in `files`, in bytes.
    pub other_files: u64,
}

impl Places {
    /// The mappings of one process, and what of the files its stacks (those of `samples` with page cache)
    /// brought in. Files whose stacks are not known are in nobody's.
    fn of(&self, pid: Pid, samples: &[Sample]) -> Places {
        let mappings = self.mappings.iter().filter(|mapping| mapping.pid == pid);
        let cached = samples.iter().filter(|sample| sample.usage.cache > 0);
        let own: HashSet<*const Stack> = cached.map(|s| Arc::as_ptr(&s.stack)).collect();
        let files = self.files.iter().filter_map(|file| {
            let samples = file.samples.iter();
            let samples: Vec<Sample> = samples
                .filter(|sample| own.contains(&Arc::as_ptr(&sample.stack)))
                .cloned()
                .collect();
            (!samples.is_empty()).then(|| CachedFile {
                id: file.id,
                path: file.path.clone(),
                samples,
                lost: 0,
            })
        });
        Places {
            mappings: mappings.cloned().collect(),
            files: files.collect(),
            other_files: 0,
        }
    }
}

/// A mapping of a followed process.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The process.
    pub pid: Pid,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// `rw-p`, as `/proc/PID/maps` shows it.
    pub permissions: String,
    /// Path, `[heap]`, `[stack]`, `[anon:NAME]`, or `[anon]` where it has none.
    pub name: String,
    /// Its pages.
    pub bytes: MappedBytes,
}

/// The pages of a mapping, in bytes. None of it is page cache, which belongs to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// With the id of a stack (whose frames may have been lost since: see [`Losses`]).
    pub attributed: Usage,
    /// Without.
    pub not_observed: Usage,
    /// In huge pages, of either.
    pub huge: u64,
}

/// A file on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, (major, minor).
    pub dev: (u32, u32),
    /// Inode number.
    pub ino: u64,
}

/// A file of which pages are cached that the target brought in.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// Which file.
    pub id: FileId,
    /// A path of it, where one is known.
    pub path: Option<KnownPath>,
    /// The stacks that brought in its pages; of [`Usage`] only `cache` is set.
    pub samples: Vec<Sample>,
    /// Pages whose stack was lost, in bytes.
    pub lost: u64,
}

/// A path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPath {
    /// The path, without a ` (deleted)` suffix.
    pub path: String,
    /// The path no longer named the file when it was seen.
    pub deleted: bool,
    /// Where it was seen.
    pub from: PathFrom,
    /// When it was seen there last.
    pub seen: SystemTime,
}

/// Where a path was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFrom {
    /// Among the target's open files, `/proc/PID/fd`.
    OpenFile,
    /// Among its mappings, `/proc/PID/maps`.
    Mapping,
}

impl CachedFile {
    /// Page cache of the file, in bytes.
    pub fn cached(&self) -> u64 {
        self.lost + self.samples.iter().map(|s| s.usage.cache).sum::<u64>()
    }
}

impl Profile {
    /// The profile of one of its processes alone; `None` if it is not one of `target.pids`.
    pub fn of(&self, pid: Pid) -> Option<Profile> {
        if self.target.pids == [pid] {
            return Some(self.clone());
        }
        let share = self.processes.iter().find(|share| share.pid == pid)?;
        Some(Profile {
            taken: self.taken,
            target: TargetInfo {
                pid,
                comm: share.comm.clone(),
                pids: vec![pid],
                alive: self.target.alive,
            },
            samples: share.samples.clone(),
            not_observed: share.not_observed.clone(),
            total: share.total,
            kernel_before: share.kernel_before,
            kernel_after: share.kernel_after,
            losses: self.losses.of_processes_followed(),
            modules: Arc::clone(&self.modules),
            places: Arc::new(self.places.of(pid, &share.samples)),
            processes: Vec::new(),
            hold: share.hold.clone(),
            kernel_counted: self.kernel_counted,
        })
    }

    /// The page cache of one file, as a profile of its own.
    pub fn of_file(&self, file: &CachedFile) -> Profile {
        let cache = |bytes| Usage {
            cache: bytes,
            ..Usage::default()
        };
        let lost = NotObserved {
            mapping: LOST_STACK.to_owned(),
            reason: Unobserved::StackLost,
            usage: cache(file.lost),
        };
        Profile {
            taken: self.taken,
            target: self.target.clone(),
            samples: file.samples.clone(),
            not_observed: (file.lost > 0).then_some(lost).into_iter().collect(),
            total: cache(file.cached()),
            kernel_before: self.kernel_before,
            kernel_after: self.kernel_after,
            losses: self.losses.clone(),
            modules: Arc::clone(&self.modules),
            places: Arc::default(),
            processes: Vec::new(),
            hold: self.hold.clone(),
            kernel_counted: self.kernel_counted,
        }
    }

    /// The module a code frame refers to.
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.modules.get(usize::from(id.0))
    }

    /// Memory that stands under stacks.
    pub fn attributed(&self) -> Usage {
        sum(self.samples.iter().map(|s| &s.usage))
    }

    /// Memory that stands under no stack.
    pub fn unattributed(&self) -> Usage {
        sum(self.not_observed.iter().map(|n| &n.usage))
    }

    /// Memory under stacks whose walk ended before the outermost frame.
    pub fn incomplete(&self) -> Usage {
        let partial = |s: &&Sample| !s.stack.outcome.is_complete();
        sum(self.samples.iter().filter(partial).map(|s| &s.usage))
    }

    /// How the resident total stands to the kernel's.
    pub fn agreement(&self) -> Agreement {
        let (before, after) = (self.kernel_before.resident(), self.kernel_after.resident());
        Agreement {
            ours: self.total.resident(),
            low: before.min(after),
            high: before.max(after),
            complete: self.losses.have_all_processes(),
        }
    }

    /// Whether this is the exact state of one moment: the target stood still at once, the kernel's resident
    /// figures are the same before and after, and it finds as much anonymous memory as memprof: by its walk of
    /// the page tables (`smaps_rollup`), or where there was no time for that by its counter (`RssAnon`, exact
    /// from Linux 6.16 on). (`RssShmem` is not asked: up to Linux 6.15 it is approximate even then.)
    pub fn is_exact(&self) -> bool {
        let (before, after) = (&self.kernel_before, &self.kernel_after);
        let anonymous = |k: &KernelFigures| k.anonymous.unwrap_or(k.rss_anon);
        matches!(self.hold, Hold::Still(_))
            && self.losses.have_all_processes()
            && before.resident() == after.resident()
            && [anonymous(before), anonymous(after)] == [self.total.anon; 2]
    }

    /// Distinct stacks and bytes (`Usage::value`) per walk outcome, in outcome order.
    pub fn outcomes(&self) -> Vec<OutcomeRow> {
        let mut rows = std::collections::BTreeMap::new();
        for s in &self.samples {
            let row: &mut (u64, u64) = rows.entry(s.stack.outcome).or_default();
            row.0 += 1;
            row.1 += s.usage.value();
        }
        rows.into_iter().map(|(o, (n, b))| (o, n, b)).collect()
    }
}

fn sum<'a>(parts: impl Iterator<Item = &'a Usage>) -> Usage {
    let mut sum = Usage::default();
    parts.for_each(|part| sum += *part);
    sum
}
