//! Places the library where a target's dynamic loader finds it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::mkdtemp;
use object::LittleEndian;
use object::elf::{FileHeader64, PF_W, PT_LOAD, ProgramHeader64, SHT_DYNSYM};

use super::stale_copies::{self, locked};
use super::{BYTES, DEFAULT_INTERVAL, plan};
use memprof_code::allocators::Detours;
use memprof_code::elf::Elf;
use memprof_sys::target_file::ReadAt;

pub(super) const NAME: &str = "libmemprof_heap.so";
/// Prefix of the directories' names.
pub(super) const DIRECTORY: &str = "memprof-heap-";
const CONFIG: &str = "memprof_heap_config";
const STATS: &str = "memprof_heap_stats";
const IMPORTS: &str = "memprof_heap_imports";
pub(super) const DETOURS: &str = "memprof_heap_detours";
/// `CONFIG_MAGIC` in `src/sampler/sampler.h`.
const MAGIC: u64 = u64::from_le_bytes(*b"pm_heap1");
const LEAVE_ENVIRONMENT: u64 = 1;
const INJECTED: u64 = 2;
/// If every allocation is sampled, the library remembers as many addresses as memprof: 2¹⁷ sets of eight. The memory
/// for them is appended to the library's segment in this case only, because a program that locks all its memory would
/// have to pay for it.
const MANY_SETS: u64 = 1 << 17;
/// Bytes per set, and bytes for aligning the first set and the end of the library's memory.
const SET: u64 = 64;
const ALIGNING: u64 = 128;
/// Offset of the plan's position in the options, in bytes.
const PLAN: u64 = 40;
/// Maximum size of the file with all plans of detours, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Larger intervals would overflow the library's counter.
const MAX_INTERVAL: u64 = 1 << 56;

/// Options of the library in a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Mean number of bytes between two samples. With 0, every allocation that is not empty is sampled. Maximum: 2⁵⁶.
    pub interval: u64,
    /// Whether programs that the target executes preload the library as well.
    pub children: bool,
    /// Seed of the random numbers. With `None`, each process uses the kernel's random numbers.
    pub seed: Option<NonZeroU64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            interval: DEFAULT_INTERVAL,
            children: true,
            seed: None,
        }
    }
}

enum Failure {
    Damaged(&'static str),
    Io(io::Error),
}

/// Why the library could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// No directory is suitable. Contains the reason for each.
    #[error(
        "there is no directory for the library that samples allocations: {0}; set TMPDIR to another one"
    )]
    NoDirectory(String),
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The compiled library is not what this module expects.
    #[error("the library that samples allocations was not compiled correctly: {0}")]
    Damaged(&'static str),
}

/// A copy of the library, with its options, in a directory of its own. Dropping it removes both.
///
/// A running target may execute programs later. If their loader does not find the file then, it prints an error to
/// their stderr; [`Library::keep`] leaves the file in place.
#[derive(Debug)]
pub struct Library {
    dir: PathBuf,
    path: PathBuf,
    interval: u64,
    pub(super) places: Places,
    /// Locked until memprof ends, however it ends; see [`stale_copies`].
    _lock: Option<Flock<File>>,
}

impl Library {
    /// Places a copy under `$TMPDIR`, or else in `/tmp`, `/var/tmp` or `/dev/shm`.
    ///
    /// # Errors
    ///
    /// None of the directories is writable and executable, or the disk is full.
    pub fn place(options: &Options) -> Result<Library, SamplerError> {
        let own = env::var_os("TMPDIR").map(PathBuf::from);
        let usual = ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
        let dirs: Vec<PathBuf> = own.into_iter().chain(usual).collect();
        Library::place_in(&dirs, options)
    }

    /// Places a copy in the first of these directories that is suitable.
    ///
    /// # Errors
    ///
    /// The errors of [`Library::place`].
    pub fn place_in(dirs: &[PathBuf], options: &Options) -> Result<Library, SamplerError> {
        let mut reasons = Vec::new();
        for parent in dirs {
            stale_copies::remove(parent);
            match directory_in(parent) {
                Ok(dir) => match Library::write(dir, options) {
                    // The disk may be full.
                    Err(SamplerError::Write { path, source }) => {
                        reasons.push(format!("{}: {source}", path.display()));
                    }
                    placed => return placed,
                },
                Err(reason) => reasons.push(format!("{}: {reason}", parent.display())),
            }
        }
        Err(SamplerError::NoDirectory(reasons.join(", ")))
    }

    fn write(dir: PathBuf, options: &Options) -> Result<Library, SamplerError> {
        let path = dir.join(NAME);
        let mut library = Library {
            dir,
            path,
            interval: options.interval,
            places: Places::default(),
            _lock: None,
        };
        match library.try_write(options) {
            Ok((places, locked)) => {
                library.places = places;
                library._lock = locked;
            }
            Err(Failure::Damaged(what)) => return Err(SamplerError::Damaged(what)),
            Err(Failure::Io(source)) => {
                let path = library.path.clone();
                return Err(SamplerError::Write { path, source });
            }
        }
        Ok(library)
    }

    fn try_write(&self, options: &Options) -> Result<(Places, Option<Flock<File>>), Failure> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&self.path)
            .map_err(Failure::Io)?;
        file.write_all(BYTES).map_err(Failure::Io)?;
        let places = patch(&file, options, 0)?;
        // The target may run as another user, or become one before it executes a program. The file contains no
        // secrets, and only memprof's user can change it.
        file.set_permissions(Permissions::from_mode(0o644))
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o755)))
            .map_err(Failure::Io)?;
        // The lock is optional: without it, a later memprof may remove the file once no process maps it.
        Ok((places, locked(&self.path)))
    }

    /// Absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mean number of bytes between two samples.
    pub fn interval(&self) -> u64 {
        self.interval
    }

    /// Address of the library's [`Stats`](super::Stats) in a target, relative to the library's load address.
    pub fn stats_address(&self) -> u64 {
        self.places.stats
    }

    /// Value of `LD_PRELOAD` for the target, given the `existing` one. The library comes first, so that it calls an
    /// allocator that is preloaded as well.
    pub fn preload(&self, existing: Option<&OsStr>) -> OsString {
        let mut value = self.path.clone().into_os_string();
        if let Some(existing) = existing.filter(|e| !e.is_empty()) {
            value.push(":");
            value.push(existing);
        }
        value
    }

    /// Whether a process visible to memprof has mapped the file, and may pass its path to further programs.
    pub fn is_mapped(&self) -> bool {
        stale_copies::is_mapped(&self.path)
    }

    /// Leaves the file in place, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.dir = PathBuf::new();
        self.path.clone()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !self.dir.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// The library for a process that already runs.
#[derive(Clone, Debug)]
pub struct Image {
    /// Contents of the file.
    pub bytes: Vec<u8>,
    /// Where its options and what it says of itself are.
    pub(crate) places: Places,
    /// Offset of the detours' code in the file; `None` without detours.
    pub(crate) code: Option<u64>,
}

impl Image {
    /// Makes a copy with these options and detours.
    ///
    /// # Errors
    /// Out of memory.
    pub fn for_running(options: &Options, detours: &Detours) -> Result<Image, SamplerError> {
        let made = || {
            let mut file = File::from(memfd_create(c"memprof", MFdFlags::MFD_CLOEXEC)?);
            file.write_all(BYTES)?;
            Ok(file)
        };
        let failed = |source| SamplerError::Write {
            path: PathBuf::from(NAME),
            source,
        };
        let mut file: File = made().map_err(failed)?;
        let places = patch(&file, options, INJECTED).map_err(|failure| match failure {
            Failure::Damaged(what) => SamplerError::Damaged(what),
            Failure::Io(source) => failed(source),
        })?;
        let mut bytes = Vec::new();
        let code = append_plan(&file, places, detours).map_err(failed)?;
        file.rewind()
            .and_then(|()| file.read_to_end(&mut bytes))
            .map_err(failed)?;
        Ok(Image {
            places,
            code,
            bytes,
        })
    }

    /// Whether these bytes are the beginning of the library's options.
    pub fn has_magic(&self, bytes: [u8; 8]) -> bool {
        bytes == MAGIC.to_ne_bytes()
    }
}

/// Whether a file is memprof's library, of any version.
pub fn is_library(file: &dyn ReadAt) -> bool {
    let config = Elf::read(file).and_then(|elf| elf.extents(SHT_DYNSYM, [CONFIG]));
    matches!(config, Ok([Some(_)]))
}

/// Address of the [`Stats`](super::Stats) of a copy of the library in a process, given one of the copy's executable mappings:
/// its first address, its end, and the file offset of its first byte. `None` if the file is another one.
pub fn stats_address(file: &dyn ReadAt, (start, end, offset): (u64, u64, u64)) -> Option<u64> {
    let elf = Elf::read(file).ok()?;
    let [Some(stats), Some(_)] = elf.extents(SHT_DYNSYM, [STATS, CONFIG]).ok()? else {
        return None;
    };
    let first = elf.address_of_mapping(offset, end.checked_sub(start)?)?;
    Some(start.wrapping_sub(first).wrapping_add(stats.address))
}

/// Creates a directory with a random name. The error says why `parent` is unsuitable.
fn directory_in(parent: &Path) -> Result<PathBuf, String> {
    if !parent.is_absolute() {
        return Err("not an absolute path".into());
    }
    // `:` and space separate paths in LD_PRELOAD; the loader expands words after `$`.
    let path = parent.as_os_str().as_bytes();
    if path.iter().any(|byte| b": $".contains(byte)) {
        return Err("LD_PRELOAD cannot contain its path".into());
    }
    let system = statvfs(parent).map_err(|e| e.desc().to_owned())?;
    if system.flags().contains(FsFlags::ST_NOEXEC) {
        return Err("mounted with noexec".into());
    }
    mkdtemp(&parent.join(format!("{DIRECTORY}XXXXXX"))).map_err(|e| e.desc().to_owned())
}

/// Addresses of the library's symbols in its file; in a process, they are relative to its load address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Its options.
    pub config: u64,
    /// Offset in the file of the option that says where the plan of detours is.
    plan: u64,
    /// Its [`Stats`](super::Stats).
    pub stats: u64,
    /// Its [`Imports`](super::Imports).
    pub imports: u64,
    /// Its [`DetoursPlaced`](super::DetoursPlaced).
    pub detours: u64,
}

/// Writes the options, and the additional flags `more`, into a copy of the library.
fn patch(file: &File, options: &Options, more: u64) -> Result<Places, Failure> {
    let damaged = |what| Failure::Damaged(what);
    let elf = Elf::read(file).map_err(|_| damaged("it is no ELF file"))?;
    let symbols = [CONFIG, STATS, IMPORTS, DETOURS];
    let found = elf.extents(SHT_DYNSYM, symbols).ok();
    let Some([Some(config), Some(stats), Some(imports), Some(detours)]) = found else {
        return Err(damaged("a symbol is missing"));
    };
    let (segment, within) = elf
        .loaded_at(config.address)
        .ok_or(damaged("a symbol is in no segment"))?;
    let at = segment.offset + within;
    let values = [
        MAGIC,
        options.interval.min(MAX_INTERVAL),
        options.seed.map_or(0, NonZeroU64::get),
        more | match options.children {
            true => 0,
            false => LEAVE_ENVIRONMENT,
        },
        match options.interval {
            0 => MANY_SETS,
            _ => 0,
        },
        // The plan of detours is added later.
        0,
        0,
    ];
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, at).map_err(Failure::Io)?;
    if magic != MAGIC.to_ne_bytes() || config.size != size_of_val(&values) as u64 {
        return Err(damaged("its options are not where they should be"));
    }
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    file.write_all_at(&bytes, at).map_err(Failure::Io)?;
    if options.interval == 0 {
        let size = memory_size(file)?;
        let more = size.bytes + MANY_SETS * SET + ALIGNING;
        file.write_all_at(&more.to_ne_bytes(), size.at)
            .map_err(Failure::Io)?;
    }
    Ok(Places {
        config: config.address,
        plan: at + PLAN,
        stats: stats.address,
        imports: imports.address,
        detours: detours.address,
    })
}

/// Appends a plan of detours, and has processes that load the library from now on use it. Earlier plans stay: processes execute
/// their code. Returns the offset of the detours' code in the file; `None` if there are no detours, or too many.
pub(super) fn append_plan(
    file: &File,
    places: Places,
    detours: &Detours,
) -> io::Result<Option<u64>> {
    let Some(plan) = plan::bytes(detours) else {
        return Ok(None);
    };
    let at = file.metadata()?.len().next_multiple_of(plan::PAGE as u64);
    if at > MAX_FILE {
        return Err(io::Error::other("it has too many plans of detours"));
    }
    file.write_all_at(&plan.all, at)?;
    let words = [at, plan.header].map(u64::to_ne_bytes);
    file.write_all_at(words.as_flattened(), places.plan)?;
    Ok(Some(at + plan.code))
}

/// Size of a segment in memory, and offset of that field in the file.
struct MemorySize {
    at: u64,
    bytes: u64,
}

/// Finds the size of the last segment, which is the writable one.
fn memory_size(file: &File) -> Result<MemorySize, Failure> {
    let read = |at: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).map_err(Failure::Io)?;
        Ok::<u64, Failure>(u64::from_le_bytes(word))
    };
    let headers = read(offset_of!(FileHeader64<LittleEndian>, e_phoff) as u64)?;
    let counts = read(offset_of!(FileHeader64<LittleEndian>, e_phentsize) as u64)?;
    let (bytes, count) = (counts & 0xffff, counts >> 16 & 0xffff);
    let mut last = None;
    for header in (0..count).map(|number| headers + number * bytes) {
        let kind_and_flags = read(header)?;
        if kind_and_flags as u32 == PT_LOAD.0 {
            last = Some((header, kind_and_flags >> 32));
        }
    }
    match last {
        Some((header, flags)) if flags & u64::from(PF_W.0) != 0 => {
            let at = header + offset_of!(ProgramHeader64<LittleEndian>, p_memsz) as u64;
            let bytes = read(at)?;
            Ok(MemorySize { at, bytes })
        }
        _ => Err(Failure::Damaged("its last segment cannot be written to")),
    }
}
