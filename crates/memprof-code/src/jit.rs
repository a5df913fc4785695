//! Names of JIT code, from the perf maps and jitdump files that runtimes write.
//!
//! A runtime frees code and reuses its memory, so a name is only valid for a period of time. memprof therefore reads
//! the file as it grows, and names a frame when its stack is first seen. When code replaces other code, the probe is
//! notified ([`RuntimeCode::take_replaced`]), and treats the same addresses as another stack from then on. A stack
//! whose code has no name yet waits for one. A name that arrives late is marked as late, because other code may have
//! been at the address.
//!
//! The target controls the files, so reads do not block and are bounded, and so is the memory for names.

mod jitdump;
mod names;
mod open;
mod pending_stacks;
mod perf_map;
mod ranges;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub use self::jitdump::{Jitdump, Record};
use self::names::PYTHON;
pub use self::names::RuntimeName;
use self::open::{NoMap, PerfMapPath};
pub use self::pending_stacks::Renamed;
use self::pending_stacks::{Forgotten, Waiting};
pub use self::perf_map::PerfMap;
pub use self::ranges::{Added, Budget, Code, Ranges};
use crate::modules::{AddressMap, ModuleTable};
use memprof_profile::{Frame, FunctionName, Origin};
use memprof_sys::clock;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::target_file::{ReadAt, TargetFile};

/// Maximum memory for the names of all processes' code, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of a perf map per read.
const AT_ONCE: usize = 1 << 20;
/// Minimum time between two searches for a map that is missing, or that may have been replaced.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Maximum number of stacks that wait for a name, and of replaced ranges not yet reported to the probe. Further ranges
/// are merged into the last one.
const MAX_WAITING: usize = 4096;

static SHARED: LazyLock<Budget> = LazyLock::new(|| Budget::new(MAX_BYTES));

/// A write to a file that has the name of a perf map or jitdump file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesWritten {
    /// Address space of the writing process.
    pub mm: MmId,
    /// Inode number of the file.
    pub inode: u64,
    /// File offset at which the write ended, in bytes.
    pub end: u64,
}

/// Counts of what could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Files that were refused: not a regular file of the process's user, or older than the process.
    pub refused: u64,
    /// Lines or records that do not describe code.
    pub malformed: u64,
    /// How often a file was truncated, or rewritten from an earlier offset.
    pub rewritten: u64,
    /// Functions whose name did not fit in the memory budget.
    pub no_room: u64,
}

impl std::ops::AddAssign for Problems {
    fn add_assign(&mut self, other: Problems) {
        self.refused += other.refused;
        self.malformed += other.malformed;
        self.rewritten += other.rewritten;
        self.no_room += other.no_room;
    }
}

/// The JIT code of one process.
#[derive(Debug)]
pub struct RuntimeCode {
    pid: Pid,
    place: Option<PerfMapPath>,
    source: Source,
    /// Time of the last search for a file.
    looked: Option<Instant>,
    /// Inode number of a file that was written, but is not the process's map.
    ignored: Option<u64>,
    ranges: Ranges,
    waiting: VecDeque<Waiting>,
    forgotten: Forgotten,
    replaced: Vec<Range<u64>>,
    /// Whether its perf map was rewritten. Its contents when read may then differ from those when the code ran.
    rewritten: bool,
    /// Whether it has trampolines without a frame pointer, as with `python -X perf`.
    pub has_trampolines: bool,
    /// Problems since the start, including those of files that have been replaced.
    pub problems: Problems,
}

#[derive(Debug)]
enum Source {
    /// No file was found.
    None,
    PerfMap(Tail),
    Jitdump(Dump),
}

/// A perf map, and the position up to which it has been read.
#[derive(Debug)]
struct Tail {
    file: TargetFile,
    inode: u64,
    at: u64,
    /// End of the last write that the probe reported. Later data belongs to later stacks.
    until: Option<u64>,
    map: PerfMap,
}

impl Tail {
    /// Records the end of a write. Returns whether the file was rewritten from its start: writes are reported in order,
    /// because runtimes write under a lock.
    fn written(&mut self, end: u64) -> bool {
        let rewritten = self.until.is_some_and(|until| end <= until);
        if rewritten {
            self.start_again();
        }
        self.until = Some(end);
        rewritten
    }

    fn start_again(&mut self) {
        (self.at, self.until, self.map) = (0, None, PerfMap::default());
    }
}

/// A jitdump file, and the position up to which it has been read.
#[derive(Debug)]
struct Dump {
    file: TargetFile,
    inode: u64,
    /// As in [`Tail`].
    until: Option<u64>,
    dump: Jitdump,
    /// By how many ns the process's clock is ahead of the probe's.
    ahead: i64,
}

impl RuntimeCode {
    /// The code of a process for which no file has been found yet.
    pub fn new(pid: Pid) -> RuntimeCode {
        RuntimeCode {
            pid,
            place: PerfMapPath::for_process(pid),
            source: Source::None,
            looked: None,
            ignored: None,
            ranges: Ranges::new(SHARED.clone()),
            waiting: VecDeque::new(),
            forgotten: Forgotten::default(),
            replaced: Vec::new(),
            rewritten: false,
            has_trampolines: false,
            problems: Problems::default(),
        }
    }

    /// A copy for a forked child, which inherits its parent's code and writes a file of its own.
    pub fn forked(&self, child: Pid) -> RuntimeCode {
        RuntimeCode {
            ranges: self.ranges.forked(),
            ..RuntimeCode::new(child)
        }
    }

    /// The frame of the code at an address; `None` if the code has no name yet.
    pub fn frame(&self, addr: u64, modules: &mut ModuleTable) -> Option<Frame> {
        self.named(addr, pending_stacks::mark(self.rewritten), modules)
    }

    fn named(&self, addr: u64, mark: &str, modules: &mut ModuleTable) -> Option<Frame> {
        let (code, offset) = self.ranges.get(addr)?;
        let name = RuntimeName::parse(&code.name);
        let (path, line) = match &code.lines {
            Some(lines) => (&*lines.file, lines.at(offset)),
            None => (name.path, 0),
        };
        let path = path.strip_prefix("file://").unwrap_or(path);
        let first_line = match &code.lines {
            Some(lines) if name.first_line == 0 => lines.at.first().map_or(0, |(_, line)| *line),
            _ => name.first_line,
        };
        let function = FunctionName {
            name: format!("{}{mark}", name.name).into(),
            first_line,
        };
        modules.in_source(
            (Origin::Runtime, name.language),
            path,
            name.own,
            function,
            line,
        )
    }

    /// Returns the address ranges whose code was replaced since the last call.
    pub fn take_replaced(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.replaced)
    }

    /// Reads what the process has written since the last call. Returns the frames that now have a name.
    pub fn update(&mut self, code: &AddressMap, modules: &mut ModuleTable) -> Vec<Renamed> {
        if self.may_look() {
            self.look(code, modules);
        }
        let mut renamed = Vec::new();
        self.read(&mut renamed, modules);
        renamed
    }

    /// Handles a write of the process to its file: reads the file up to the end of the write. Stacks of earlier events
    /// get their names from the file's contents before the write. Returns the frames that now have a name.
    pub fn written(
        &mut self,
        written: &NamesWritten,
        code: &AddressMap,
        modules: &mut ModuleTable,
    ) -> Vec<Renamed> {
        let mut renamed = Vec::new();
        let ignored = self.ignored == Some(written.inode) && !self.may_look();
        if !ignored && !self.reads(written.inode) {
            self.look(code, modules);
            self.ignored = (!self.reads(written.inode)).then_some(written.inode);
        }
        if self.reads(written.inode) {
            match &mut self.source {
                Source::PerfMap(tail) => {
                    if tail.written(written.end) {
                        self.note_rewritten();
                    }
                }
                Source::Jitdump(dump) => dump.until = Some(written.end),
                Source::None => {}
            }
            self.read(&mut renamed, modules);
        }
        renamed
    }

    fn note_rewritten(&mut self) {
        self.problems.rewritten += 1;
        self.rewritten = true;
    }

    fn reads(&self, inode: u64) -> bool {
        match &self.source {
            Source::PerfMap(tail) => tail.inode == inode,
            Source::Jitdump(dump) => dump.inode == inode,
            Source::None => false,
        }
    }

    /// Whether enough time has passed since the last search for a file. If so, restarts the interval.
    fn may_look(&mut self) -> bool {
        let may = self.looked.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if may {
            self.looked = Some(Instant::now());
        }
        may
    }

    fn read(&mut self, renamed: &mut Vec<Renamed>, modules: &mut ModuleTable) {
        match std::mem::replace(&mut self.source, Source::None) {
            Source::None => {}
            Source::PerfMap(mut tail) => {
                let more = self.read_map(&mut tail);
                self.source = Source::PerfMap(tail);
                if more {
                    self.rename(renamed, None, false, modules);
                }
            }
            Source::Jitdump(mut dump) => {
                self.read_dump(&mut dump, renamed, modules);
                self.source = Source::Jitdump(dump);
            }
        }
    }

    /// Searches for a file, and checks whether the current one was replaced by another.
    fn look(&mut self, code: &AddressMap, modules: &mut ModuleTable) {
        if matches!(self.source, Source::Jitdump(..)) {
            return;
        }
        if let Some(file) = jitdump_of(code, modules) {
            self.source = Source::Jitdump(Dump {
                inode: file.identity().1,
                file,
                until: None,
                dump: Jitdump::default(),
                ahead: clock::ahead(self.pid),
            });
            return;
        }
        self.look_for_map();
    }

    fn look_for_map(&mut self) {
        if self.place.is_none() {
            self.place = PerfMapPath::for_process(self.pid);
        }
        let Some(place) = &self.place else {
            return;
        };
        match place.open() {
            Ok(file) => {
                let inode = file.identity().1;
                if !self.reads(inode) {
                    self.source = Source::PerfMap(Tail {
                        file,
                        inode,
                        at: 0,
                        until: None,
                        map: PerfMap::default(),
                    });
                }
            }
            Err(NoMap::Missing) => {}
            Err(NoMap::Refused) => self.problems.refused = 1,
        }
    }

    /// Reads more of a perf map. Returns whether it got any bytes.
    fn read_map(&mut self, tail: &mut Tail) -> bool {
        let size = tail.file.size().unwrap_or(tail.at);
        if size < tail.at {
            tail.start_again();
            self.note_rewritten();
        }
        let end = tail.until.map_or(size, |until| until.clamp(tail.at, size));
        let more = usize::try_from(end - tail.at).unwrap_or(AT_ONCE);
        let mut bytes = vec![0; more.min(AT_ONCE)];
        let read = match more {
            0 => 0,
            _ => tail.file.read_at(&mut bytes, tail.at).unwrap_or(0),
        };
        tail.at += read as u64;
        let malformed = tail.map.malformed;
        tail.map.read(&bytes[..read], |start, size, code| {
            self.load(start, size, code)
        });
        self.problems.malformed += tail.map.malformed - malformed;
        read > 0
    }

    fn read_dump(
        &mut self,
        from: &mut Dump,
        renamed: &mut Vec<Renamed>,
        modules: &mut ModuleTable,
    ) {
        let Dump {
            file, dump, ahead, ..
        } = from;
        let malformed = dump.malformed;
        let size = file.size().unwrap_or(0);
        let size = from.until.map_or(size, |until| until.min(size));
        let read_at = |to: &mut [u8], at| file.fill(to, at).is_ok();
        let (mut read, mut timed) = (false, true);
        dump.read(size, read_at, |record, time| {
            read = true;
            timed &= time.is_some();
            // Stacks that are older than this code get their names from the code before it.
            if let Some(time) = time {
                let time = clock::without(time, *ahead);
                self.rename(renamed, Some(time), true, modules);
            }
            match record {
                Record::Load(start, size, code) => self.load(start, size, code),
                Record::Move(from, to) => {
                    if let Some((added, left)) = self.ranges.moved(from, to) {
                        let size = left.end - left.start;
                        self.note(added, to..to.saturating_add(size));
                        self.note(Added::Replaced(left.clone()), left);
                    }
                }
            }
        });
        self.problems.malformed += dump.malformed - malformed;
        if read {
            self.rename(renamed, None, timed, modules);
        }
    }

    fn load(&mut self, start: u64, size: u64, code: Code) {
        self.forgotten.named = true;
        self.has_trampolines |= code.name.starts_with(PYTHON);
        let added = self.ranges.add(start, size, code);
        self.note(added, start..start.saturating_add(size));
    }

    /// Records the outcome of adding code at these addresses.
    fn note(&mut self, added: Added, new: Range<u64>) {
        let gone = match added {
            Added::New => return,
            Added::Invalid => {
                self.problems.malformed += 1;
                return;
            }
            Added::NoRoom => {
                self.problems.no_room += 1;
                new
            }
            Added::Replaced(old) => old.start.min(new.start)..old.end.max(new.end),
        };
        let full = self.replaced.len() >= MAX_WAITING;
        match self.replaced.last_mut().filter(|_| full) {
            Some(last) => *last = last.start.min(gone.start)..last.end.max(gone.end),
            None => self.replaced.push(gone),
        }
    }
}

/// The jitdump file of a process. The runtime maps the start of the file as code, so that tools can find it.
fn jitdump_of(code: &AddressMap, modules: &mut ModuleTable) -> Option<TargetFile> {
    let modules = modules.modules();
    let mut mapped = code
        .ranges()
        .filter_map(|(_, _, _, id)| modules.get(usize::from(id.0)));
    let is_dump = |name: &str| {
        let number = name
            .strip_prefix("jit-")
            .and_then(|n| n.strip_suffix(".dump"));
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let module = mapped.find(|module| is_dump(&module.name))?;
    module.file.clone()
}
