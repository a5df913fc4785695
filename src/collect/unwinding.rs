//! Keeps the probe's unwind tables in sync with the code that the followed processes have mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nix::sys::eventfd::EventFd;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::collect::aggregate::Aggregator;
use crate::collect::program::Program;
use crate::collect::publish::{Publisher, Registered};
use crate::probe::event::CodeSeen;
use crate::probe::{Probe, TableMaps};
use memprof_code::interpreter::EnabledInterpreters;
use memprof_code::modules::{AddressMap, ModuleTable, MovedCode, open_regular};
use memprof_profile::Losses;
use memprof_sys::ids::{Addr, MmId, Pid};
use memprof_sys::residency::page_size;
use memprof_sys::target_file::TargetFile;
use memprof_sys::text::printable;
use memprof_sys::{messages, proc_dir};

/// Maximum time for which a command waits for the tables of its code, so that its first stacks are complete. A compiler's libraries
/// take a second; on a busy machine, or in an unoptimised build, more than ten.
pub(crate) const PREPARE: Duration = Duration::from_secs(30);

/// Time limit for building the tables of running processes before they are followed, in total.
const PREPARE_PROCESSES: Duration = Duration::from_secs(1);

/// Builds unwind tables and publishes them to the probe's maps.
pub struct Unwinding {
    publisher: Publisher,
    maps: TableMaps,
}

impl Unwinding {
    /// Starts the threads that build tables; they write to `wake` when a table is ready.
    ///
    /// # Errors
    /// A thread cannot be started, or the maps cannot be used.
    pub fn start(
        probe: &Probe,
        wake: Arc<EventFd>,
        interpreters: EnabledInterpreters,
    ) -> Result<Unwinding> {
        Ok(Unwinding {
            publisher: Publisher::start(wake, interpreters)?,
            maps: probe.table_maps()?,
        })
    }

    /// Handles code that the probe could not bind: numbers its files, starts building their tables and binds
    /// the code of the processes.
    ///
    /// # Errors
    /// The probe's maps cannot be written.
    pub fn seen(
        &mut self,
        seen: &[CodeSeen],
        aggregator: &mut Aggregator,
        probe: &mut Probe,
    ) -> Result<()> {
        let mut by_space: BTreeMap<MmId, Vec<&CodeSeen>> = BTreeMap::new();
        for code in seen {
            // The address space may be gone: its files are reported again when another process maps them.
            let mm = code.mm.filter(|mm| aggregator.has(*mm));
            match (mm, code.file) {
                (Some(mm), None) => aggregator.look_for_moved_code(mm),
                (Some(mm), Some(_)) if !(code.bound && self.knows(code)) => {
                    by_space.entry(mm).or_default().push(code);
                }
                _ => {}
            }
        }
        let mut bind = BTreeSet::new();
        for (mm, seen) in by_space {
            bind.extend(seen.iter().find_map(|code| code.pid));
            // The file may have been registered for another process since the report.
            if !seen.iter().all(|code| self.knows(code)) {
                self.register(&seen, aggregator, |aggregator| aggregator.code_now(mm))?;
            }
        }
        let bind: Vec<Pid> = bind.into_iter().collect();
        probe.bind(&bind)
    }

    /// Whether the file of reported code is registered; true for code without a file.
    fn knows(&self, code: &CodeSeen) -> bool {
        code.file.is_none_or(|file| self.publisher.knows(&file))
    }

    /// Binds code that was moved from file mappings to other memory.
    ///
    /// # Errors
    /// The probe cannot bind it.
    pub fn bind_moved(&mut self, aggregator: &mut Aggregator, probe: &mut Probe) -> Result<()> {
        while let Some((pid, code, modules)) = aggregator.moved_code() {
            let mut number = |at: &MovedCode| {
                let number = self.publisher.number_of::<TableMaps>(at.module, modules)?;
                Some((*at, number))
            };
            let moved: Vec<_> = code.moved().iter().filter_map(&mut number).collect();
            probe.bind_moved(pid, &moved)?;
        }
        Ok(())
    }

    /// Numbers the files of the mappings that `read` returns.
    fn register(
        &mut self,
        seen: &[&CodeSeen],
        aggregator: &mut Aggregator,
        read: impl Fn(&mut Aggregator) -> Option<(Arc<AddressMap>, &mut ModuleTable)>,
    ) -> Result<()> {
        // Repeated once if a file has changed since it was opened.
        for _ in 0..2 {
            let Some((code, modules)) = read(aggregator) else {
                return Ok(());
            };
            for moved in code.moved() {
                // The table of moved code must also be ready before the process is followed.
                let _ = self.publisher.number_of::<TableMaps>(moved.module, modules);
            }
            let mut changed = false;
            for seen in seen {
                let moved = |moved: &&MovedCode| moved.start == seen.start.0;
                // A file that is mapped where moved code is, is shared memory.
                let module = match code.moved().iter().find(moved) {
                    Some(_) => modules.intern_jit(),
                    None => code.locate(seen.start.0).map(|(module, _)| module),
                };
                if let (Some(file), Some(module)) = (seen.file, module) {
                    let maps = &mut self.maps;
                    let came = self.publisher.register(file, module, modules, maps)?;
                    changed |= came == Registered::Changed;
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Builds the tables of files that a command is about to map; waits up to `PREPARE` for them.
    ///
    /// # Errors
    /// The probe's maps cannot be written.
    pub fn prepare(
        &mut self,
        files: &MappedFiles,
        seen: &[CodeSeen],
        aggregator: &mut Aggregator,
    ) -> Result<()> {
        let mapped = |code: &&CodeSeen| files.begins_at(code.start);
        let seen: Vec<&CodeSeen> = seen.iter().filter(mapped).collect();
        let own = Pid(std::process::id());
        self.register_unfollowed(own, &files.program, &seen, aggregator)?;
        for (path, file) in &files.served {
            let modules = aggregator.modules_mut();
            let is_program = *path == files.program;
            if let Some(module) = modules.intern_file(path, file, is_program) {
                let (key, maps) = (file.about().key(), &mut self.maps);
                self.publisher.register(key, module, modules, maps)?;
            }
        }
        self.publisher.finish(&mut self.maps, PREPARE);
        Ok(())
    }

    /// Builds the tables of processes that are about to be followed; waits up to `PREPARE_PROCESSES` for them.
    ///
    /// # Errors
    /// The probe's maps cannot be written.
    pub fn prepare_processes(
        &mut self,
        seen: &[CodeSeen],
        aggregator: &mut Aggregator,
    ) -> Result<()> {
        let mut by_pid: BTreeMap<Pid, Vec<&CodeSeen>> = BTreeMap::new();
        for code in seen.iter().filter(|code| code.mm.is_none()) {
            by_pid
                .entry(code.pid.unwrap_or(Pid(0)))
                .or_default()
                .push(code);
        }
        for (pid, seen) in by_pid {
            let exe = PathBuf::from(proc_dir::path(pid, "exe"));
            self.register_unfollowed(pid, &exe, &seen, aggregator)?;
        }
        self.publisher.finish(&mut self.maps, PREPARE_PROCESSES);
        Ok(())
    }

    fn register_unfollowed(
        &mut self,
        pid: Pid,
        exe: &Path,
        seen: &[&CodeSeen],
        aggregator: &mut Aggregator,
    ) -> Result<()> {
        if seen.iter().all(|code| self.knows(code)) {
            return Ok(());
        }
        self.register(seen, aggregator, |aggregator| {
            aggregator.look_at_code(pid, exe)
        })
    }

    /// Notifies the probe that its maps have changed.
    pub fn published(&mut self, probe: &mut Probe) {
        for text in self.publisher.take_unread() {
            messages::print(&printable(&text));
        }
        probe.interpreters_known(self.maps.interpreters());
        probe.tables_changed();
    }

    /// Publishes the finished tables. `followed` returns the processes whose code is reported again if files were dropped.
    ///
    /// # Errors
    /// The probe cannot report code.
    pub fn update(&mut self, followed: impl FnOnce() -> Vec<Pid>, probe: &mut Probe) -> Result<()> {
        if self.publisher.collect(&mut self.maps) {
            self.published(probe);
        }
        match self.publisher.take_forgotten() {
            true => probe.bind(&followed()),
            false => Ok(()),
        }
    }

    /// Adds the number of files whose tables did not fit.
    pub fn losses(&self, losses: &mut Losses) {
        losses.add(
            "files without an unwind table: tables full",
            self.publisher.refused(),
        );
    }
}

/// Files that memprof maps as code so that the probe reports the kernel's ids of them: on some file systems, `stat` shows another
/// device. memprof does not map files that another process or machine serves, and uses the ids from `stat` for them.
pub struct MappedFiles {
    program: PathBuf,
    /// The program and its libraries.
    paths: Vec<PathBuf>,
    mapped: Vec<Mapped>,
    served: Vec<(PathBuf, TargetFile)>,
}

impl MappedFiles {
    /// Maps a program and its libraries. Files that cannot be mapped are left out: their tables are built when
    /// they run.
    pub fn new(program: Program) -> MappedFiles {
        let files = std::iter::once(&program.path).chain(&program.libraries);
        let paths: Vec<PathBuf> = files.cloned().collect();
        let (mut mapped, mut served) = (Vec::new(), Vec::new());
        for path in &paths {
            match open_regular(path) {
                Ok(file) if file.opened().is_none() => served.push((path.clone(), file)),
                Ok(file) => mapped.extend(Mapped::new(&file)),
                Err(_) => {}
            }
        }
        MappedFiles {
            paths,
            program: program.path,
            mapped,
            served,
        }
    }

    /// The program and its libraries.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn begins_at(&self, start: Addr) -> bool {
        self.mapped.iter().any(|m| m.at.as_ptr() as u64 == start.0)
    }
}

/// The first page of a file, mapped as code.
struct Mapped {
    at: NonNull<c_void>,
    length: NonZeroUsize,
}

// SAFETY: the mapping is never read or executed; any thread may unmap it.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &TargetFile) -> Option<Mapped> {
        let length = NonZeroUsize::new(usize::try_from(page_size()).ok()?)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: a new mapping at an address that the kernel chooses, never read or executed.
        let at = unsafe {
            mmap(
                None,
                length,
                protection,
                MapFlags::MAP_PRIVATE,
                file.opened()?,
                0,
            )
        };
        Some(Mapped {
            at: at.ok()?,
            length,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: unmaps the mapping from `new`; nothing refers to it.
        let _ = unsafe { munmap(self.at, self.length.get()) };
    }
}
