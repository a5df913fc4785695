//! Identifies the files that a process's code comes from.
//!
//! A [`ModuleTable`] assigns each executable file a number and keeps the file open. An [`AddressMap`] converts a
//! process's addresses to (module, file offset).

mod code_mappings;
mod in_memory;
mod moved;
mod open;
mod run_name;
mod runtime;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};

pub use self::code_mappings::Mapping;
use self::run_name::{Executable, Start};
use crate::elf::Segment;
use memprof_profile::symbol::Language;
use memprof_profile::{Frame, FunctionName, FunctionRoom, Functions, Module, ModuleId, Origin};
use memprof_sys::ids::Pid;
use memprof_sys::residency::ThrottledFile;
use memprof_sys::run_name::base_name;
use memprof_sys::target_file::{FileTree, TargetFile, TreeId, about_path};
use memprof_sys::{mmap_lock, proc_dir};

pub use self::moved::MovedCode;
pub use self::open::open_regular;
pub use self::open::{file_of, mapped_file};

/// Maximum number of modules: a [`ModuleId`] has 16 bits, and its last value marks frames without a module.
pub const MAX_MODULES: usize = 65_534;
/// Maximum number of vDSO images. A kernel has one for each kind of process (64-bit, 32-bit, x32).
const MAX_VDSO_IMAGES: usize = 4;
/// Maximum memory for the names of functions without machine code of their own, in bytes.
const MAX_FUNCTION_BYTES: usize = 64 << 20;

/// The number of a file with code, as user space assigned it for the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileNumber(pub u32);

/// All executable files that have been seen, each once.
#[derive(Debug)]
pub struct ModuleTable {
    modules: Vec<Arc<Module>>,
    by_file: HashMap<(u64, u64), ModuleId>,
    vdso: Vec<(Vec<u8>, ModuleId)>,
    jit: Option<ModuleId>,
    /// The files with a probe number; numbers start at 1.
    numbered: Vec<(ModuleId, Vec<Segment>)>,
    /// Executables whose name may still change.
    unnamed: Vec<Executable>,
    /// Starts of programs whose executable was examined.
    examined: HashSet<Start>,
    /// File trees (root directories) of processes that differ from memprof's own.
    trees: HashMap<TreeId, FileTree>,
    /// Source files of interpreted programs.
    sources: HashMap<(Origin, Language, String), ModuleId>,
    function_room: FunctionRoom,
    /// The last result of `modules()`, while it is current.
    shared: Option<Arc<[Arc<Module>]>>,
    open_files: usize,
    max_open: usize,
    refused: u64,
    unopened: u64,
    copied: u64,
}

impl Default for ModuleTable {
    fn default() -> Self {
        // Half of the file descriptor limit; the rest is for maps, links and connections.
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        ModuleTable::with_limit(usize::try_from(limit / 2).unwrap_or(MAX_MODULES))
    }
}

impl ModuleTable {
    /// Creates an empty table that keeps at most half of the process's file descriptor limit open.
    pub fn new() -> ModuleTable {
        ModuleTable::default()
    }

    /// Creates an empty table that keeps at most `max_open` files open. Files beyond the limit become modules without a
    /// file, and are counted.
    pub fn with_limit(max_open: usize) -> ModuleTable {
        ModuleTable {
            modules: Vec::new(),
            by_file: HashMap::new(),
            vdso: Vec::new(),
            jit: None,
            numbered: Vec::new(),
            unnamed: Vec::new(),
            examined: HashSet::new(),
            trees: HashMap::new(),
            sources: HashMap::new(),
            function_room: FunctionRoom::new(MAX_FUNCTION_BYTES),
            shared: None,
            open_files: 0,
            max_open,
            refused: 0,
            unopened: 0,
            copied: 0,
        }
    }

    /// All modules, indexed by [`ModuleId`]. The call is cheap if no module was added since the last one.
    pub fn modules(&mut self) -> Arc<[Arc<Module>]> {
        let shared = self
            .shared
            .get_or_insert_with(|| self.modules.as_slice().into());
        Arc::clone(shared)
    }

    /// Assigns a file the number that the probe uses for it; `segments` are its code. Numbers are never reused.
    pub fn number(&mut self, module: ModuleId, segments: Vec<Segment>) -> FileNumber {
        self.numbered.push((module, segments));
        FileNumber(self.numbered.len() as u32)
    }

    /// Converts an address in the file's own addresses to a position in the file; `None` if there is no such file or
    /// segment.
    pub fn in_file(&self, file: FileNumber, address: u64) -> Option<Frame> {
        let (module, segments) = self.numbered.get(file.0.checked_sub(1)? as usize)?;
        // A mapping consists of whole pages, so it may start before its segment and end after it. Use the nearest
        // segment.
        let segment = segments
            .iter()
            .min_by_key(|s| match address.checked_sub(s.addr) {
                Some(inside) => inside.saturating_sub(s.size),
                None => s.addr - address,
            })?;
        let offset = address
            .wrapping_sub(segment.addr)
            .wrapping_add(segment.offset);
        Some(Frame::code(*module, offset))
    }

    /// Removes the association of a file with its module after the file's contents have changed. The file becomes a new
    /// module.
    pub fn renew(&mut self, module: ModuleId) {
        self.by_file.retain(|_, id| *id != module);
    }

    /// Number of mappings without a module because the table was full. A mapping counts at each load.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of modules whose file was not opened: it could not be, or the limit was reached.
    pub fn unopened(&self) -> u64 {
        self.unopened
    }

    /// Number of modules whose file could not be opened, and was copied from a process's memory instead.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    fn intern(&mut self, pid: Pid, m: &Mapping, exe: Option<(u64, u64)>) -> Option<ModuleId> {
        if m.anonymous() {
            return self.intern_jit();
        }
        if m.inode == 0 {
            return self.intern_vdso(pid, m);
        }
        if let Some(id) = self.by_file.get(&(m.dev, m.inode)) {
            return Some(*id);
        }
        if self.is_full() {
            return None;
        }
        let file = self.may_open().then(|| self.open(pid, m)).flatten();
        if m.shared_memory() && !runtime::is_program(file.as_ref()) {
            return self.intern_jit();
        }
        // On overlayfs and btrfs, `stat` reports another device than maps, so only values from `stat` are compared.
        let opened = file.as_ref().filter(|file| !file.is_own());
        let identity = opened.map_or((m.dev, m.inode), TargetFile::identity);
        let path = open::undeleted_path(pid, m, opened);
        let own = (exe == Some(identity)).then_some(identity);
        let tree = self.tree_of(pid);
        self.push_file((path, tree), (m.dev, m.inode), file, own)
    }

    /// The module of a file that a process is about to map; `own` says whether it is the process's executable.
    pub fn intern_file(&mut self, path: &Path, file: &TargetFile, own: bool) -> Option<ModuleId> {
        let identity = file.identity();
        if let Some(id) = self.by_file.get(&identity) {
            return Some(*id);
        }
        if !self.may_open() || self.is_full() || file.is_refused() {
            return None;
        }
        let own = own.then_some(identity);
        self.push_file((path.into(), None), identity, Some(file.clone()), own)
    }

    /// Adds a file; `own` is its identity if it is the process's own executable.
    fn push_file(
        &mut self,
        place: (PathBuf, Option<FileTree>),
        mapped: (u64, u64),
        file: Option<TargetFile>,
        own: Option<(u64, u64)>,
    ) -> Option<ModuleId> {
        let module = self.push(place, mapped, file, own.is_some())?;
        self.unnamed.extend(own.map(|identity| Executable {
            module,
            identity,
            runs_as: None,
        }));
        self.by_file.insert(mapped, module);
        Some(module)
    }

    /// The file behind a mapping, or else a copy of the parts that the process has in memory; `None` if neither can be
    /// read.
    fn open(&mut self, pid: Pid, m: &Mapping) -> Option<TargetFile> {
        let file = open::mapped_file(pid, m).filter(|file| !file.is_refused());
        file.or_else(|| {
            let copy = in_memory::copy(pid, m).ok()?;
            self.copied += 1;
            Some(TargetFile::from(copy))
        })
    }

    /// The position of a source line of a function in a source file, which need not contain the function yet; `None` if
    /// the memory budget is exhausted. `own` says whether the file is part of the program.
    pub fn in_source(
        &mut self,
        (origin, language): (Origin, Language),
        path: &str,
        own: bool,
        function: FunctionName,
        line: u32,
    ) -> Option<Frame> {
        let module = match self.sources.get(&(origin, language, path.to_owned())) {
            Some(module) => *module,
            None => self.add_source((origin, language), path, own)?,
        };
        let functions = self.modules[usize::from(module.0)].functions.as_ref()?;
        let number = functions.number(function, &mut self.function_room)?;
        Some(Frame::code(module, Functions::offset(number, line)))
    }

    fn add_source(
        &mut self,
        (origin, language): (Origin, Language),
        path: &str,
        own: bool,
    ) -> Option<ModuleId> {
        if self.is_full() {
            return None;
        }
        let id = ModuleId(u16::try_from(self.modules.len()).ok()?);
        self.modules.push(Arc::new(Module {
            path: path.into(),
            tree: None,
            name: base_name(Path::new(path)),
            dev_ino: (0, 0),
            file: None,
            layout: None,
            functions: Some(Functions::new(language, origin)),
            own_executable: own,
        }));
        self.shared = None;
        self.sources.insert((origin, language, path.to_owned()), id);
        Some(id)
    }

    /// Number of functions that were dropped because the memory budget was exhausted.
    pub fn functions_refused(&self) -> u64 {
        self.function_room.refused()
    }

    fn intern_vdso(&mut self, pid: Pid, m: &Mapping) -> Option<ModuleId> {
        let image = open::read_vdso(pid, m).ok()?;
        if let Some((_, id)) = self.vdso.iter().find(|(known, _)| *known == image) {
            return Some(*id);
        }
        if self.vdso.len() >= MAX_VDSO_IMAGES || self.is_full() {
            return None;
        }
        let file = self
            .may_open()
            .then(|| open::in_memory("vdso", &image).ok())
            .flatten();
        let file = file.map(TargetFile::from);
        let identity = file.as_ref().map_or((0, 0), TargetFile::identity);
        let place = (PathBuf::from(code_mappings::VDSO), None);
        let id = self.push(place, identity, file, false)?;
        self.vdso.push((image, id));
        Some(id)
    }

    /// The file tree of a process, if it differs from memprof's own and the descriptor limit permits keeping it open.
    fn tree_of(&mut self, pid: Pid) -> Option<FileTree> {
        let tree = FileTree::for_process(pid)?;
        if let Some(known) = self.trees.get(&tree.id()) {
            return Some(known.clone());
        }
        if !self.may_open() {
            return None;
        }
        self.open_files += 1;
        self.trees.insert(tree.id(), tree.clone());
        Some(tree)
    }

    fn push(
        &mut self,
        (path, tree): (PathBuf, Option<FileTree>),
        dev_ino: (u64, u64),
        file: Option<TargetFile>,
        own_executable: bool,
    ) -> Option<ModuleId> {
        let id = ModuleId(u16::try_from(self.modules.len()).ok()?);
        match file {
            Some(_) => self.open_files += 1,
            None => self.unopened += 1,
        }
        self.modules.push(Arc::new(Module {
            name: base_name(&path),
            path,
            tree,
            dev_ino,
            file,
            layout: None,
            functions: None,
            own_executable,
        }));
        self.shared = None;
        Some(id)
    }

    fn may_open(&self) -> bool {
        self.open_files < self.max_open
    }

    fn is_full(&mut self) -> bool {
        let full = self.modules.len() >= MAX_MODULES;
        self.refused += u64::from(full);
        full
    }
}

/// A process's executable mappings, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// In ascending order, without overlap.
    ranges: Vec<Range>,
    /// Code that was moved from its file's mapping to anonymous or shared memory.
    moved: Vec<MovedCode>,
    /// Executable memory without a file, between mappings of one file: code of that file may be moved there.
    in_place: Vec<std::ops::Range<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    offset: u64,
    module: ModuleId,
}

impl AddressMap {
    /// Reads `/proc/PID/maps`. Files that have not been seen before are opened and added to `table`.
    ///
    /// # Errors
    /// The process does not exist, may not be inspected, or its mmap lock is held so that reading would block
    /// (`WouldBlock`).
    ///
    /// # Examples
    ///
    /// ```
    /// use memprof_sys::ids::Pid;
    /// use memprof_code::modules::{AddressMap, ModuleTable};
    ///
    /// fn here() {}
    ///
    /// let mut table = ModuleTable::new();
    /// let map = AddressMap::load(Pid(std::process::id()), &mut table)?;
    /// let (module, _offset) = map.locate(here as fn() as usize as u64).unwrap();
    /// assert!(table.modules()[usize::from(module.0)].own_executable);
    /// assert_eq!(map.locate(0), None);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn load(pid: Pid, table: &mut ModuleTable) -> io::Result<AddressMap> {
        AddressMap::load_as(pid, Path::new(&proc_dir::path(pid, "exe")), table)
    }

    /// Like [`AddressMap::load`], for a process that stands in for the one whose executable is `exe`.
    ///
    /// # Errors
    /// Like [`AddressMap::load`].
    pub fn load_as(pid: Pid, exe: &Path, table: &mut ModuleTable) -> io::Result<AddressMap> {
        if mmap_lock::is_held(pid) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let maps = BufReader::new(ThrottledFile::open(pid, "maps")?);
        let exe = match about_path(exe) {
            Ok(about) => Some(about.identity()),
            Err(_) => open::mapped_executable(pid, exe),
        };
        AddressMap::parse(maps, pid, exe, table)
    }

    /// Parses mappings in the format of `/proc/PID/maps`. `exe` is the device and inode number of the process's own
    /// executable.
    pub(crate) fn parse(
        maps: impl BufRead,
        pid: Pid,
        exe: Option<(u64, u64)>,
        table: &mut ModuleTable,
    ) -> io::Result<AddressMap> {
        let mut ranges = Vec::new();
        let mut finder = moved::Finder::default();
        code_mappings::for_each_mapping(maps, |m| {
            finder.see(&m);
            if let Some(module) = m.exec.then(|| table.intern(pid, &m, exe)).flatten() {
                // JIT code has no file; its offset is its address.
                let jit = table.jit == Some(module);
                ranges.push(Range {
                    start: m.start,
                    end: m.end,
                    offset: if jit { m.start } else { m.offset },
                    module,
                });
            }
        })?;
        let mut map = AddressMap::default();
        for enclosed in finder.found() {
            match enclosed.identify(pid, exe, table) {
                Some(moved) => map.moved.push(moved),
                None => map.in_place.push(enclosed.range()),
            }
        }
        map.take_ranges(ranges, table);
        Ok(map)
    }

    /// Sorts the ranges, and assigns the ranges of moved code to the file that the code was moved from.
    fn take_ranges(&mut self, mut ranges: Vec<Range>, table: &ModuleTable) {
        for range in &mut ranges {
            let moved = self.moved.iter().find(|moved| moved.start == range.start);
            if let Some(moved) = moved {
                (range.module, range.offset) = (moved.module, moved.offset);
            }
        }
        // The kernel lists the ranges in order, but a mapping that is moved during the read may appear twice.
        ranges.sort_by_key(|r| r.start);
        // JIT memory often consists of many adjacent mappings with different protection bits.
        ranges.dedup_by(|next, before| {
            let goes_on = table.jit == Some(next.module)
                && before.module == next.module
                && before.end == next.start;
            if goes_on {
                before.end = next.end;
            }
            goes_on
        });
        self.ranges = ranges;
    }

    /// Code that was moved from its file's mapping to anonymous or shared memory.
    pub fn moved(&self) -> &[MovedCode] {
        &self.moved
    }

    /// Whether code may be moved to this address: it lies between mappings of one file, and does not have the file's
    /// contents yet.
    pub fn may_be_moved(&self, addr: u64) -> bool {
        self.in_place.iter().any(|range| range.contains(&addr))
    }

    /// The module mapped at an address, and the position in its file, in bytes; `None` if no executable mapping
    /// contains the address.
    pub fn locate(&self, addr: u64) -> Option<(ModuleId, u64)> {
        let behind = self.ranges.partition_point(|r| r.start <= addr);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        (addr < range.end).then(|| {
            (
                range.module,
                (addr - range.start).saturating_add(range.offset),
            )
        })
    }

    /// The executable mappings, in address order: first address, end, file offset of the first byte, module.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64, ModuleId)> + '_ {
        self.ranges
            .iter()
            .map(|r| (r.start, r.end, r.offset, r.module))
    }

    /// Number of executable mappings.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is no executable mapping, as for a kernel thread or a process that is exiting.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
