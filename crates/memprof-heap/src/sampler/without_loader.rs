//! Places the library in a process that has no dynamic loader, because its program is linked statically. The process makes the
//! system calls that map the library and the code of the detours; memprof writes everything else, as a loader would. None of the
//! library's code runs before the program's first allocation (`sampler/without_loader.c`).
//!
//! If memprof is killed meanwhile, the process keeps memory that nothing uses.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use object::elf::SHT_DYNSYM;

use super::file::{NAME, Places, append_plan};
use super::words::{MappedLibrary, bytes_after_code, put};
use super::{DetoursState, Preloaded};
use crate::attach::detours::{Jumps, Site};
use memprof_code::allocators::{Detours, ThreadStates};
use memprof_code::elf::{Elf, Segment};
use memprof_sys::freeze::{ExecutedProcess, StillProcess};
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::target_file::ReadAt;

const THREADS: &str = "memprof_heap_threads";
const TABLES: &str = "memprof_heap_tables_without_loader";
/// `CONFIG_RDRAND` in `sampler.h`.
const RDRAND: u64 = 4;
/// Offset of the seed in the options, before the flags, in bytes.
const SEED: u64 = 16;
/// `STATE_ACTIVE` in `sampler.h`.
const ACTIVE: u64 = 1;
/// `PYTHON_NOT_FOUND` in `python.h`, and its offset in the counters.
const NO_PYTHON: u64 = 4;
const PYTHON: u64 = 32;

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
const IF_FREE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
const NO_FILE: u64 = u64::MAX;
const PAGE: u64 = 4096;

/// The library's file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The process opens it.
    Path(&'a Path),
    /// The process gets a file with these contents, which no other process sees.
    Contents(&'a [u8]),
}

/// The library for one process, and what it makes lead to it.
pub(crate) struct Placement<'a> {
    pub pid: Pid,
    pub library: &'a dyn ReadAt,
    pub source: Source<'a>,
    pub places: Places,
    pub detours: &'a Detours,
    /// Offset of the detours' code in the library's file.
    pub code: u64,
    /// The load bias of the file with the functions.
    pub bias: u64,
}

impl Preloaded {
    /// Places the library in a process whose program is linked statically, and has the functions of its allocator lead to the
    /// library. The current thread is the process's tracer, with these `options`, and has found it stopped after `execve`.
    ///
    /// # Errors
    /// The reason why nothing is sampled.
    pub fn place(&self, pid: Pid, options: libc::c_int) -> Result<(), String> {
        let site = Site::executable(pid).map_err(|e| format!("{e:#}"))?;
        let detours = site
            .plan(pid, ThreadStates::Table)
            .map_err(|e| format!("{e:#}"))?;
        if detours.all.is_empty() {
            return Err(no_function(&detours));
        }
        let file = File::options().read(true).write(true).open(&self.path);
        let file = file.map_err(|e| format!("{}: {e}", self.path.display()))?;
        let code = append_plan(&file, self.places, &detours);
        let code = code.map_err(|e| format!("{}: {e}", self.path.display()))?;
        let jumps = Jumps::new(pid, site.bias, &detours)?;
        let mut process = ExecutedProcess::take_over(pid, options, site.room())?;
        let placement = Placement {
            pid,
            library: &file,
            source: Source::Path(&self.path),
            places: self.places,
            detours: &detours,
            code: code.ok_or("it has too many functions")?,
            bias: site.bias,
        };
        let state = placement.place(&mut process)?;
        jumps.write(&process, state)
    }
}

/// Why an executable has no detours.
pub(crate) fn no_function(detours: &Detours) -> String {
    match detours.refused.first() {
        Some((name, why)) => format!("its function `{name}` cannot be changed safely: {why}"),
        None => "no function of an allocator has a symbol in it, or in a debug file".into(),
    }
}

/// The mappings of a placement, in the process.
#[derive(Default)]
struct Mapped(Vec<(u64, u64)>);

impl Mapped {
    fn unmap(self, process: &mut dyn StillProcess) {
        for (start, bytes) in self.0 {
            let _ = process.call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]);
        }
    }
}

fn map(process: &mut dyn StillProcess, arguments: [u64; 6]) -> Result<u64, String> {
    process
        .call(libc::SYS_mmap, arguments)
        .map_err(|e| format!("the library cannot be mapped: {e}"))
}

impl Placement<'_> {
    /// Maps the library and the code of the detours, and prepares both. The process's own code is unchanged. Returns the address of the
    /// library's word that says whether the jumps are written.
    ///
    /// # Errors
    /// The reason why they are not there; nothing is left of them.
    pub(crate) fn place(&self, process: &mut dyn StillProcess) -> Result<u64, String> {
        let elf = Elf::read(self.library).map_err(|e| format!("the library: {e}"))?;
        let mut mapped = Mapped::default();
        let placed = self.map_all(&elf, process, &mut mapped);
        let placed = placed.and_then(|base| self.prepare(&elf, process, base));
        let placed = placed.and_then(|placed| match process.is_still() {
            true => Ok(placed),
            false => Err("a system call took so long that its other threads had to go on".into()),
        });
        if placed.is_err() {
            mapped.unmap(process);
        }
        placed
    }

    /// Returns the library's load address.
    fn map_all(
        &self,
        elf: &Elf<'_>,
        process: &mut dyn StillProcess,
        mapped: &mut Mapped,
    ) -> Result<u64, String> {
        // First the memory near the executable, which the kernel might choose for the library.
        let (near, code) = (self.near(), self.detours.code.len() as u64);
        let bytes = code + bytes_after_code(self.detours);
        let taken = "other memory is meanwhile where the code of the detours belongs; try again";
        let wanted = [near, bytes, READ | WRITE, ANONYMOUS | IF_FREE, NO_FILE, 0];
        let at = process.call(libc::SYS_mmap, wanted);
        let at = at.map_err(|e| format!("{taken} ({e})"))?;
        mapped.0.push((at, bytes));
        // Before Linux 4.17 (commit a4ff8e8620d3), the kernel takes the address for a wish.
        if at != near {
            return Err(taken.into());
        }
        let size = elf.end().unwrap_or_default().next_multiple_of(PAGE);
        let base = map(process, [0, size, READ | WRITE, ANONYMOUS, NO_FILE, 0])?;
        mapped.0.push((base, size));
        // If memprof is killed, no descriptor stays. All threads are stopped, so the next one is known.
        let next = next_descriptor(self.pid)?;
        process.if_killed(Some((libc::SYS_close, [next, 0, 0, 0, 0, 0])))?;
        let file = self.open(process, base);
        let done = file.clone().and_then(|file| {
            self.fill(process, (base, size), file)?;
            elf.loaded_segments()
                .try_for_each(|segment| map_segment(segment, process, base, file))?;
            map(
                process,
                [near, code, READ | EXEC, PRIVATE | FIXED, file, self.code],
            )
        });
        process.if_killed(None)?;
        if let Ok(file) = file {
            let _ = process.call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        }
        done.map(|_| base)
    }

    /// Has the process open the library's file. Its memory at `base` is still unused.
    fn open(&self, process: &mut dyn StillProcess, base: u64) -> Result<u64, String> {
        let text = match self.source {
            Source::Path(path) => path.as_os_str().as_bytes(),
            Source::Contents(_) => NAME.as_bytes(),
        };
        let mut name = text.to_vec();
        name.resize(name.len() + 8, 0);
        let written = process.write(base, &name).map_err(|e| e.to_string());
        let opened = written.and_then(|()| match self.source {
            Source::Path(_) => {
                let directory = i64::from(libc::AT_FDCWD).cast_unsigned();
                let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
                process.call(libc::SYS_openat, [directory, base, flags, 0, 0, 0])
            }
            Source::Contents(_) => {
                let flags = u64::from(libc::MFD_CLOEXEC);
                process.call(libc::SYS_memfd_create, [base, flags, 0, 0, 0, 0])
            }
        });
        opened.map_err(|e| format!("the process cannot open the library's file: {e}"))
    }

    /// Has the process fill the file that has no contents yet, from its memory at `base`.
    fn fill(
        &self,
        process: &mut dyn StillProcess,
        (base, size): (u64, u64),
        file: u64,
    ) -> Result<(), String> {
        let Source::Contents(bytes) = self.source else {
            return Ok(());
        };
        let length = bytes.len() as u64;
        if length > size {
            return Err("the library's file is larger than the library in memory".into());
        }
        let written = process.write(base, bytes).map_err(|e| e.to_string());
        let arguments = [file, base, length, 0, 0, 0];
        match written.and_then(|()| process.call(libc::SYS_write, arguments)) {
            Ok(written) if written == length => Ok(()),
            Ok(_) => Err("the library's file could not be written as a whole".into()),
            Err(e) => Err(format!("the library's file cannot be written: {e}")),
        }
    }

    /// Where the detours' code is in the process.
    fn near(&self) -> u64 {
        self.bias.wrapping_add_signed(self.detours.near)
    }

    /// Does a loader's work, and writes what the code of the detours reads.
    fn prepare(
        &self,
        elf: &Elf<'_>,
        process: &mut dyn StillProcess,
        base: u64,
    ) -> Result<u64, String> {
        let found = elf.extents(SHT_DYNSYM, [THREADS, TABLES]);
        let Ok([Some(threads), Some(tables)]) = found else {
            return Err("the library was not compiled correctly".into());
        };
        let library = MappedLibrary {
            base,
            relative: elf.relative_words(),
            tables: tables.address,
            thread_state: 0,
        };
        for (at, value) in &library.relative {
            put(
                process,
                base.wrapping_add(*at),
                &[base.wrapping_add(*value)],
            )?;
        }
        library.put_words(process, self.near(), self.detours)?;
        let places = &self.places;
        let options = base.wrapping_add(places.config) + SEED;
        put(process, options, &self.seed_and_flags(elf)?)?;
        put(process, base.wrapping_add(places.stats), &[ACTIVE])?;
        put(
            process,
            base.wrapping_add(places.stats) + PYTHON,
            &[NO_PYTHON],
        )?;
        let state = base.wrapping_add(places.detours);
        let count = self.detours.all.len() as u64;
        put(
            process,
            state,
            &[DetoursState::PREPARED, count, 0, self.bias],
        )?;
        // Before Linux 4.14 (commit d2cd9ede6e19), forked children continue with their parent's random numbers.
        let wiped = [base.wrapping_add(threads.address), threads.size];
        let advice = libc::MADV_WIPEONFORK as u64;
        let _ = process.call(libc::SYS_madvise, [wiped[0], wiped[1], advice, 0, 0, 0]);
        Ok(state)
    }

    /// The seed, a random one unless the library's file has one, and the flags.
    fn seed_and_flags(&self, elf: &Elf<'_>) -> Result<[u64; 2], String> {
        let mut bytes = [0; 16];
        let place = elf.loaded_at(self.places.config + SEED);
        let (segment, inside) = place.ok_or("the library was not compiled correctly")?;
        let read = elf.read_at(&mut bytes, segment.offset + inside);
        read.map_err(|e| format!("the library: {e}"))?;
        let [mut seed, mut flags] = [0, 8].map(|at| {
            let word = bytes[at..].first_chunk().copied();
            u64::from_le_bytes(word.unwrap_or_default())
        });
        if seed == 0 {
            let mut random = [0; 8];
            // SAFETY: the kernel writes at most 8 bytes to `random`.
            let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
            if got != random.len() as isize {
                return Err(format!("random numbers: {}", io::Error::last_os_error()));
            }
            seed = u64::from_le_bytes(random).max(1);
        }
        if std::arch::is_x86_feature_detected!("rdrand") {
            flags |= RDRAND;
        }
        Ok([seed, flags])
    }
}

/// The number that the process's next descriptor gets.
fn next_descriptor(pid: Pid) -> Result<u64, String> {
    let numbers = std::fs::read_dir(proc_dir::path(pid, "fd"));
    let numbers = numbers.map_err(|e| format!("its descriptors cannot be listed: {e}"))?;
    let used: HashSet<u64> = numbers
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    Ok((0..)
        .find(|number| !used.contains(number))
        .unwrap_or_default())
}

fn map_segment(
    segment: &Segment,
    process: &mut dyn StillProcess,
    base: u64,
    file: u64,
) -> Result<(), String> {
    let (start, offset) = (segment.addr & !(PAGE - 1), segment.offset & !(PAGE - 1));
    let end = segment.addr + segment.size;
    let pages = end.next_multiple_of(PAGE);
    let protection = match (segment.writable(), segment.code()) {
        (true, _) => READ | WRITE,
        (false, true) => READ | EXEC,
        (false, false) => READ,
    };
    let bytes = pages - start;
    map(
        process,
        [
            base + start,
            bytes,
            protection,
            PRIVATE | FIXED,
            file,
            offset,
        ],
    )?;
    if segment.size_in_memory <= segment.size {
        return Ok(());
    }
    // The last page also has what follows the segment in the file. The segment's own words are left alone: some are the probes'
    // semaphores, in which the kernel counts.
    let from = end.next_multiple_of(8).min(pages);
    let zeroes = vec![0; (pages - from) as usize / 8];
    if !zeroes.is_empty() {
        put(process, base + from, &zeroes)?;
    }
    let all = (segment.addr + segment.size_in_memory).next_multiple_of(PAGE);
    if all > pages {
        let zeroes = [
            base + pages,
            all - pages,
            READ | WRITE,
            ANONYMOUS | FIXED,
            NO_FILE,
            0,
        ];
        map(process, zeroes)?;
    }
    Ok(())
}
