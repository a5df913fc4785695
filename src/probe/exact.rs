//! Probes on the functions of allocators (`--heap=exact`).

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{Link, MapCore, MapFlags, ProgramAttachType, UprobeMultiOpts, UprobeOpts};

use super::batch::each_entry;
use super::{Probe, ProbeConfig};
use crate::probe::source::Source;
use crate::probe::source::exact::{BEGINS, ENDS, EXITS, FREES, SOURCE, THROWS};
use crate::probe::wire::{self, OpenMemprofSkel, exact_seen, exact_sum};
use memprof_code::allocators::{Function, FunctionRole};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::kernel_version::KernelVersion;
use memprof_sys::proc_dir;

/// First version for which one link has many uprobes. Such links exist since 6.6 (89ae89f53d20 "bpf: Add multi uprobe link"), but
/// before 6.10 they saw only one thread of a process (46ba0e49b642 "bpf: fix multi-uprobe PID filtering logic").
const MULTI: KernelVersion = KernelVersion(6, 10);

/// Entries of the map of blocks per read.
const BLOCKS_AT_ONCE: u32 = 8192;

/// Numbers of calls of allocation functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenCalls {
    /// All calls, except nested calls and calls that only free.
    pub calls: u64,
    /// Calls within another call, which are not counted; nested frees are included.
    pub nested: u64,
    /// Calls that were not counted because of their size.
    pub filtered: u64,
    /// Calls that would have been counted, but failed.
    pub failed: u64,
}

impl std::fmt::Display for SeenCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} calls of allocation functions", self.calls)?;
        for (what, number) in [
            ("failed", self.failed),
            ("not counted because of their size", self.filtered),
            ("calls within these, which count once", self.nested),
        ] {
            if number > 0 {
                write!(f, "; {number} {what}")?;
            }
        }
        Ok(())
    }
}

/// A probe's offset in its file, and its cookie.
type ProbeLocation = (u64, u64);

/// A program's name, whether it runs at returns, and where it is attached.
type Step = (&'static str, bool, Vec<ProbeLocation>);

/// Whether a source is the exact count of allocations.
pub(super) fn is_source(source: &&'static Source) -> bool {
    std::ptr::eq(*source, &SOURCE)
}

/// Whether every allocation is counted, so that the heap's figures are exact.
pub(super) fn counts_every_call(config: &ProbeConfig) -> bool {
    config.exact.every == 1 && config.sources.iter().any(is_source)
}

/// Chooses the attach type of the programs, before they are loaded. Returns whether one link can have many uprobes.
pub(super) fn prepare(open: &mut OpenMemprofSkel<'static>) -> bool {
    let multi = KernelVersion::running() >= MULTI;
    for mut program in open.open_object_mut().progs_mut() {
        let ours = [BEGINS, ENDS, EXITS, THROWS, FREES]
            .iter()
            .any(|name| program.name() == *name);
        if ours && multi {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
    multi
}

impl Probe {
    /// Counts calls of `functions`, which are in `file`, in one process. Counting ends when the links are dropped, in their order.
    ///
    /// # Errors
    /// The process's first thread has ended, or the kernel refuses a probe.
    pub fn count_calls(
        &mut self,
        pid: Pid,
        file: &impl AsRawFd,
        functions: &[Function],
    ) -> Result<Vec<Link>> {
        // The kernel finds the memory for the probes by the first thread, which has none after its end.
        if proc_dir::thread(pid) != pid.0.cast_signed() {
            bail!(
                "the first thread of process {pid} has ended, by which the kernel would find its memory"
            );
        }
        self.add_lost_row()?;
        let entries = |wanted: fn(&Function) -> bool| {
            let chosen = functions.iter().filter(|f| wanted(f));
            chosen
                .map(|f| (f.offset, f.cookie))
                .collect::<Vec<ProbeLocation>>()
        };
        // Functions that end in the same way share their `ret`.
        let exits: BTreeSet<u64> = functions.iter().flat_map(|f| f.exits.clone()).collect();
        // Frees first, and returns before entries: no call begins whose end would be missed.
        let steps: [Step; 5] = [
            (FREES, false, entries(|f| f.role == FunctionRole::Frees)),
            (THROWS, false, entries(|f| f.role == FunctionRole::Throws)),
            (EXITS, false, exits.into_iter().map(|at| (at, 0)).collect()),
            (ENDS, true, entries(|f| f.returns)),
            (
                BEGINS,
                false,
                entries(|f| f.role == FunctionRole::Allocates),
            ),
        ];
        let mut links = Vec::new();
        for (program, retprobe, places) in steps {
            if !places.is_empty() {
                links.extend(self.attach_to(program, pid, file, &places, retprobe)?);
            }
        }
        links.reverse();
        Ok(links)
    }

    fn attach_to(
        &mut self,
        name: &str,
        pid: Pid,
        file: &impl AsRawFd,
        places: &[ProbeLocation],
        retprobe: bool,
    ) -> Result<Vec<Link>> {
        let multi = self.multi;
        let mut programs = self.skel.object().progs_mut();
        let program = programs
            .find(|p| p.name() == name)
            .ok_or_else(|| anyhow!("memprof has no BPF program {name}"))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let pid = pid.0.cast_signed();
        let failed = "cannot attach probes to the functions of an allocator";
        if multi {
            let options = UprobeMultiOpts {
                offsets: places.iter().map(|(offset, _)| *offset as usize).collect(),
                cookies: places.iter().map(|(_, cookie)| *cookie).collect(),
                retprobe,
                ..UprobeMultiOpts::default()
            };
            let link = program.attach_uprobe_multi_with_opts(pid, path, "", options);
            return Ok(vec![link.context(failed)?]);
        }
        let attach = |(offset, cookie): &ProbeLocation| {
            let options = UprobeOpts {
                cookie: *cookie,
                retprobe,
                ..UprobeOpts::default()
            };
            program
                .attach_uprobe_with_opts(pid, &path, *offset as usize, options)
                .context(failed)
        };
        places.iter().map(attach).collect()
    }

    /// Adds the row for allocations whose stack does not fit into the map.
    fn add_lost_row(&self) -> Result<()> {
        let lost = exact_sum {
            stack: wire::STACK_LOST,
            weight: 1,
            ..exact_sum::default()
        };
        let key = wire::STACK_LOST.to_ne_bytes();
        let sums = &self.skel.maps.exact_sums;
        match sums.update(&key, wire::record_bytes(&lost), MapFlags::NO_EXIST) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                Err(e).context("cannot write the BPF map of allocations")
            }
            _ => Ok(()),
        }
    }

    /// Deletes the blocks of ended address spaces, which no free will delete.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget_blocks(&self, ended: &BTreeSet<MmId>) -> Result<()> {
        const SPACE: std::ops::Range<usize> = 8..12;
        let blocks = &self.skel.maps.exact_blocks;
        let of_ended = |key: &[u8]| {
            let mm = key.get(SPACE).and_then(|mm| mm.first_chunk());
            mm.is_some_and(|mm| ended.contains(&MmId(u32::from_ne_bytes(*mm))))
        };
        let mut keys: Vec<Vec<u8>> = Vec::new();
        each_entry(blocks, BLOCKS_AT_ONCE, |key, _| {
            if of_ended(key) {
                keys.push(key.to_vec());
            }
        })
        .context("cannot read the BPF map of blocks")?;
        for key in keys {
            // Another thread of the ending process may have freed the block meanwhile.
            let _ = blocks.delete(&key);
        }
        Ok(())
    }

    /// Numbers of calls of allocation functions so far.
    pub fn seen_calls(&self) -> SeenCalls {
        let seen: exact_seen = self.bss(|b| &raw const b.exact_seen);
        SeenCalls {
            calls: seen.calls,
            nested: seen.nested,
            filtered: seen.filtered,
            failed: seen.failed,
        }
    }
}
