//! Releasing entries of the page ledger: entries of ended address spaces, and chunks without a record.
//!
//! Both happen in steps, while the caller has time. BPF programs that are run from here do the work: they know which chunks an
//! address space has (`directory.bpf.h`), and modify the ledger as the hooks do.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, ProgramInput, ProgramMut, libbpf_sys};

use super::Probe;
use super::read::chunk_key;
use crate::probe::source::resident_pages::{Chunk, PageLedger};
use crate::probe::wire::{self, page_chunk};
use memprof_sys::ids::MmId;

/// Maximum number of chunks that one run of the program drops: about a millisecond of work.
const DROPPED_AT_ONCE: u64 = 1024;

/// Chunks per read of the ledger, 2 KiB each.
const READ_AT_ONCE: usize = 256;

/// A stepwise search of the whole page ledger for chunks without a record.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The position in the kernel's iteration of the map; `None` at its start.
    at: Option<u32>,
    /// Empty chunks found by this search.
    found: HashSet<u64>,
    /// Empty chunks found by the previous search.
    empty: HashSet<u64>,
    keys: Vec<u64>,
    values: Vec<u8>,
}

impl Sweep {
    /// Number of chunks that were empty in the last complete search.
    pub fn empty(&self) -> usize {
        self.empty.len()
    }
}

impl Probe {
    /// Queues an ended address space: [`Probe::reclaim`] removes its records when there is time.
    pub fn forget_space(&self, mm: MmId) {
        self.ended.borrow_mut().push_back(mm);
    }

    /// Removes the records of ended address spaces, until `until`. Returns whether all are removed.
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
                    // The address space's entries stay until memprof ends; the failure is counted.
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

    /// Continues a search of the page ledger. Drops the chunks that hold no record now and held none in the previous search, so
    /// that recently created chunks stay. Returns whether the search has reached the end of the ledger.
    ///
    /// A fault that is recorded in a chunk while the chunk is dropped is lost. Its page is then attributed to the call that mapped
    /// it.
    ///
    /// # Errors
    /// If the map cannot be read.
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

    /// Reads the next chunks. Returns their number, and whether they are the last.
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
        // SAFETY: the map has 8-byte keys and `page_chunk` values, and both buffers hold `count` of them; a position
        // in the iteration of a hash map has 4 bytes.
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

    /// The records of an address space, by the number of their chunk.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn chunks(&self, mm: MmId) -> Result<BTreeMap<u64, Box<Chunk>>> {
        let mut chunks = BTreeMap::new();
        let mut key = chunk_key(mm, 0);
        loop {
            self.run(&self.skel.progs.next_chunk, &[key])?;
            key = self.bss(|b| &raw const b.chunk_after);
            if key >> wire::REGION_BITS != u64::from(mm.0) {
                return Ok(chunks);
            }
            let number = key & ((1 << wire::REGION_BITS) - 1);
            // It may have been dropped since.
            if let Some(chunk) = self.chunk(mm, number)? {
                chunks.insert(number, Box::new(chunk));
            }
            key += 1;
        }
    }

    /// Number of chunks in the page ledger, and its capacity.
    pub fn page_chunks(&self) -> (u64, u64) {
        let held = self.bss(|b| &raw const b.page_chunks);
        (held, u64::from(self.skel.maps.pages.max_entries()))
    }

    /// The number of chunks, counted by iteration with one system call per chunk.
    pub fn count_page_chunks(&self) -> u64 {
        self.skel.maps.pages.keys().count() as u64
    }

    /// Number of nodes in the page ledger's directory, counted with one system call per node.
    pub fn directory_nodes(&self) -> usize {
        self.skel.maps.directory.keys().count()
    }

    /// Runs a program that is not attached to anything. Returns its return value.
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
