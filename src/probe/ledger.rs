//! The page ledger's room: what ended address spaces held is given back, and chunks that hold no record.
//!
//! Both are done in steps, as long as the caller has time, by BPF programs that are run from here: they
//! know which chunks an address space has (`directory.bpf.h`), and change the ledger as the hooks do.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, ProgramInput, ProgramMut, libbpf_sys};

use super::Probe;
use crate::event::MmId;
use crate::wire::page_chunk;

/// Chunks dropped by one run of the program: a millisecond or so.
const DROPPED_AT_ONCE: u64 = 1024;

/// Chunks read at once when the ledger is looked through, 2 KiB each.
const READ_AT_ONCE: usize = 256;

/// A search of the whole page ledger for chunks that hold no record, in steps.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Where the kernel's walk of the map goes on; `None` at its begin.
    at: Option<u32>,
    /// Found empty by this search.
    found: HashSet<u64>,
    /// Found empty by the search before.
    empty: HashSet<u64>,
    keys: Vec<u64>,
    values: Vec<u8>,
}

impl Sweep {
    /// Chunks that were empty when the last whole search came by.
    pub fn empty(&self) -> usize {
        self.empty.len()
    }
}

impl Probe {
    /// Forgets, when there is time for it ([`Probe::reclaim`]), what is recorded for an address space that
    /// is gone.
    pub fn forget_space(&self, mm: MmId) {
        self.ended.borrow_mut().push_back(mm);
    }

    /// Forgets what ended address spaces held. Returns whether that is all done.
    pub fn reclaim(&self, until: Instant) -> bool {
        let mut ended = self.ended.borrow_mut();
        while let Some(mm) = ended.front() {
            match self.run(
                &self.skel.progs.forget_space,
                &[u64::from(mm.0), DROPPED_AT_ONCE],
            ) {
                Ok(1) => {}
                Ok(_) => drop(ended.pop_front()),
                Err(_) => {
                    // What it held takes room until memprof ends; and is counted.
                    self.refuse();
                    ended.pop_front();
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        ended.is_empty()
    }

    /// Goes on with a search of the page ledger, and drops the chunks that hold no record, as they did when
    /// the search before came by: one that was made a moment ago stays. Returns whether the whole ledger has
    /// been seen, since the search began.
    ///
    /// A fault that is recorded in a dropped chunk at this very moment is lost; its page then stands under
    /// whoever mapped it.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn sweep(&self, sweep: &mut Sweep, until: Instant) -> Result<bool> {
        loop {
            let (read, last) = self.read_chunks(sweep)?;
            let chunks = sweep.values.chunks_exact(size_of::<page_chunk>());
            for (key, _) in sweep.keys[..read]
                .iter()
                .zip(chunks)
                .filter(|(_, chunk)| is_zero(chunk))
            {
                if !sweep.empty.contains(key) {
                    sweep.found.insert(*key);
                } else if self
                    .run(&self.skel.progs.drop_empty_chunk, &[*key])
                    .is_err()
                {
                    self.refuse();
                }
            }
            if last {
                sweep.at = None;
                sweep.empty = std::mem::take(&mut sweep.found);
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// Reads the next chunks: how many, and whether they are the last.
    fn read_chunks(&self, sweep: &mut Sweep) -> Result<(usize, bool)> {
        sweep.keys.resize(READ_AT_ONCE, 0);
        let bytes = READ_AT_ONCE * size_of::<page_chunk>();
        sweep.values.resize(bytes, 0);
        let (from, mut to) = (sweep.at.unwrap_or_default(), 0u32);
        let mut count = READ_AT_ONCE as u32;
        let from = match sweep.at {
            Some(_) => (&raw const from).cast_mut().cast(),
            None => std::ptr::null_mut(),
        };
        // SAFETY: a map of 8-byte keys and `page_chunk` values, of which both buffers hold `count`; the
        // places in the walk of a hash map are 4 bytes each.
        let done = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.skel.maps.pages.as_fd().as_raw_fd(),
                from,
                (&raw mut to).cast(),
                sweep.keys.as_mut_ptr().cast(),
                sweep.values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        let last = done == -libc::ENOENT;
        if done < 0 && !last {
            return Err(std::io::Error::from_raw_os_error(-done))
                .context("cannot read the page ledger");
        }
        sweep.at = Some(to);
        Ok((count as usize, last))
    }

    /// Chunks of the page ledger, and how many it has room for.
    pub fn page_chunks(&self) -> (u64, u64) {
        let held = self.bss(|b| &raw const b.page_chunks);
        (held, u64::from(self.skel.maps.pages.max_entries()))
    }

    /// The same number of chunks, counted. Takes a system call for each.
    pub fn count_page_chunks(&self) -> u64 {
        self.skel.maps.pages.keys().count() as u64
    }

    /// Nodes of the page ledger's directory. Takes a system call for each.
    pub fn directory_nodes(&self) -> usize {
        self.skel.maps.directory.keys().count()
    }

    /// Runs a program that is attached to nothing; what it returns.
    fn run(&self, program: &ProgramMut<'_>, args: &[u64]) -> Result<u32> {
        let mut context: Vec<u8> = args.iter().flat_map(|arg| arg.to_ne_bytes()).collect();
        let output = program.test_run(ProgramInput {
            context_in: Some(&mut context),
            ..ProgramInput::default()
        })?;
        Ok(output.return_value)
    }

    fn refuse(&self) {
        self.refused.set(self.refused.get() + 1);
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}
