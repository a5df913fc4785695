//! Which processes the probe follows, and the code that they have mapped: by the kernel's iterators over tasks and
//! mappings.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};

use super::batch::each_entry;
use super::{Probe, iterate, shared};
use crate::probe::wire::{self, MAX_MOVED, proc_info};
use memprof_code::modules::{FileNumber, MovedCode};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::{mmap_lock, proc_dir};

/// Processes per read, 16 bytes each.
const PROCESS_BATCH: u32 = 1024;

impl Probe {
    /// Sets whether the probe follows the next process that takes the wanted name at `exec`.
    pub fn set_waiting(&mut self, waiting: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.waiting).store(waiting.into(), SeqCst);
        }
    }

    /// Follows running processes. Each [`Event::Process`](crate::probe::event::Event::Process) comes through the ring
    /// buffer; a process that does not exist causes none.
    ///
    /// # Errors
    /// If the task iterator fails.
    pub fn follow(&mut self, pids: &[Pid]) -> Result<()> {
        self.with_wanted(pids, |probe| iterate::run(&probe.find))
    }

    /// Stops following processes.
    ///
    /// # Errors
    /// If the task iterator fails.
    pub fn forget(&mut self, pids: &[Pid]) -> Result<()> {
        self.with_wanted(pids, |probe| iterate::run(&probe.forget))
    }

    fn with_wanted(&self, pids: &[Pid], run: impl Fn(&Probe) -> Result<()>) -> Result<()> {
        let wanted = &self.skel.maps.wanted;
        // The pids that do not fit are handled in the next run.
        for some in pids.chunks(wanted.max_entries() as usize) {
            for pid in some {
                wanted.update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY)?;
            }
            let done = run(self).context("cannot look up processes in the kernel's task list");
            for pid in some {
                let _ = wanted.delete(&pid.0.to_ne_bytes());
            }
            done?;
        }
        Ok(())
    }

    /// Binds the code that processes have mapped to its files' tables. Code without a table causes an
    /// [`Event::Code`](crate::probe::event::Event::Code) through the ring buffer; for a process that is not followed, that
    /// is the only effect. One that cannot be read now is left for [`Probe::bind_left`].
    ///
    /// # Errors
    /// If the iterator over mappings fails.
    pub fn bind(&mut self, pids: &[Pid]) -> Result<()> {
        if self.bind.is_none() {
            return Ok(());
        }
        let held = mmap_lock::held(pids);
        self.unbound.extend(&held);
        // One by one: an iterator over all mappings would wait for each process of the machine.
        for pid in pids.iter().filter(|pid| !held.contains(pid)) {
            self.bind_with(*pid, |probe| {
                let program = &probe.skel.progs.bind_process;
                match (iterate::run_for(program.as_fd(), *pid), &probe.bind) {
                    // Before 6.1 an iterator cannot be limited to one process.
                    (Err(_), Some(bind)) if proc_dir::lives(*pid) => iterate::run(bind),
                    // The process has ended.
                    _ => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    /// Binds code of a process that was moved from files' mappings to other memory, each range with its file's number. All other
    /// code without a file counts as made at run time from now on.
    ///
    /// # Errors
    /// As for [`Probe::bind`].
    pub fn bind_moved(&mut self, pid: Pid, moved: &[(MovedCode, FileNumber)]) -> Result<()> {
        let (full, last) = moved.split_at(moved.len() / MAX_MOVED * MAX_MOVED);
        for some in full.chunks(MAX_MOVED) {
            self.tell_moved(some, false);
            self.bind(&[pid])?;
        }
        self.tell_moved(last, true);
        let bound = self.bind(&[pid]);
        self.tell_moved(&[], false);
        bound
    }

    fn tell_moved(&mut self, moved: &[(MovedCode, FileNumber)], all: bool) {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        for (to, (code, number)) in bss.moved_code.iter_mut().zip(moved) {
            (to.start, to.end) = (code.start, code.end);
            (to.bias, to.table) = (code.bias, number.0);
        }
        shared(&mut bss.moved_nr).store(moved.len() as u32, SeqCst);
        shared(&mut bss.moved_are_known).store(all.into(), SeqCst);
    }

    /// Binds the code of processes that could not be read before.
    ///
    /// # Errors
    /// As for [`Probe::bind`].
    pub fn bind_left(&mut self) -> Result<()> {
        let left: Vec<Pid> = std::mem::take(&mut self.unbound).into_iter().collect();
        self.bind(&left)
    }

    fn bind_with(&mut self, pid: Pid, run: impl Fn(&Probe) -> Result<()>) -> Result<()> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.bind_pid).store(pid.0, SeqCst);
            shared(&mut bss.bind_thread).store(0, SeqCst);
        }
        run(self).context("cannot iterate over a process's mappings in the kernel")
    }

    /// The processes that the probe follows, each with its address space.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn processes(&self) -> Result<Vec<(Pid, MmId)>> {
        let map = &self.skel.maps.procs;
        let mut found = Vec::new();
        each_entry(map, PROCESS_BATCH, |_, bytes| {
            let record = wire::read_record(bytes, size_of::<proc_info>());
            found.extend(record.map(|p: proc_info| (Pid(p.pid), MmId(p.mm_id))));
        })
        .context("cannot read the BPF map of followed processes")?;
        Ok(found)
    }
}
