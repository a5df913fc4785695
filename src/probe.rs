//! The user-space half of the BPF programs: loading, attaching, the ring buffer and the ledgers.

mod batch;
mod code;
mod config;
pub mod event;
mod exact;
mod fault_events;
pub(crate) mod faults;
mod follow;
mod hooks;
mod iterate;
mod ledger;
mod load;
mod peak;
mod read;
mod samplers;
mod sizes;
pub(crate) mod source;
mod stacks;
pub(crate) mod table_store;
mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use config::{FRAME_LIMITS, Overhead, ProbeConfig, Stacks, Unwind};
pub use exact::SeenCalls;
use fault_events::FaultEvents;
pub use fault_events::{FaultsSeen, SharedFaultsSeen};
use faults::FaultHooks;
use hooks::FunctionHooks;
pub use hooks::SyscallHooks;
pub use ledger::Sweep;
use memprof_sys::kernel_version::KernelVersion;
pub(crate) use samplers::{is_sampler_probe, sets_marks};
pub use stacks::UsedStacks;
pub use tables::TableMaps;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result};
use libbpf_rs::skel::Skel;
use libbpf_rs::{AsRawLibbpf, Link, MapCore, RingBuffer, libbpf_sys};

use self::stacks::StackSlots;
use crate::probe::event::{Event, FunctionKey};
use crate::probe::source::Source;
use crate::probe::wire::MemprofSkel;
use memprof_profile::measure::{EXACT, HEAP, HEAP_PEAK, MEASURES, Measure, WINDOW};
use memprof_profile::{Faults, Losses};
use memprof_sys::ids::{MmId, Pid};

/// Records taken from the ring buffer per call: about a millisecond of work.
const EVENTS_AT_ONCE: usize = 1024;

/// An optional program that could not be attached, and the reason; memprof works without it.
pub type Missing = (&'static str, String);

/// The loaded and attached probe. Dropping it, or the end of the process, detaches everything.
pub struct Probe {
    skel: MemprofSkel<'static>,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
    _links: Vec<Link>,
    /// How system calls are hooked. `functions` contains the hooks if they are at the calls' functions.
    syscall_hooks: SyscallHooks,
    functions: Option<FunctionHooks>,
    find: Link,
    forget: Link,
    bind: Option<Link>,
    /// Processes whose code is to be bound once their mappings can be read.
    unbound: BTreeSet<Pid>,
    slots: StackSlots,
    missing: Vec<Missing>,
    /// How page faults are hooked; `None` if they have no hook.
    fault_hooks: Option<FaultHooks>,
    fault_events: FaultEvents,
    /// Number of calls of [`Probe::activity`] without a hook on faults, when changes may have gone unnoticed.
    unseen: Cell<u64>,
    /// Number of processors that count events.
    cpus: usize,
    sources: Vec<&'static Source>,
    /// Ended address spaces whose page-ledger records are not released yet.
    ended: RefCell<VecDeque<MmId>>,
    /// Changes of the ledger that the kernel refused.
    refused: Cell<u64>,
    /// Number of entries in the map of unwind-table pages.
    table_pages: Rc<Cell<u64>>,
    /// The records in the map of samplers' probes: argument locations. The index is a link's cookie.
    sample_probes: Vec<Vec<u8>>,
    /// Whether every allocation is counted, so that the heap's figures are exact.
    counts_every_call: bool,
    /// Whether one link can have many uprobes.
    multi: bool,
}

#[derive(Default)]
struct Inbox {
    events: Vec<Event>,
    malformed: u64,
}

impl Probe {
    /// The maps of unwind tables.
    ///
    /// # Errors
    /// If a map cannot be used.
    pub fn table_maps(&self) -> Result<TableMaps> {
        TableMaps::new(&self.skel, Rc::clone(&self.table_pages))
    }

    /// Invalidates cached stack walks, because unwind tables were added.
    pub fn tables_changed(&mut self) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            shared(&mut data.unwind_generation).fetch_add(1, SeqCst);
        }
    }

    /// Sets the number of files with an interpreter in the probe's maps.
    pub fn interpreters_known(&mut self, files: u32) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.interpreters).store(files, SeqCst);
        }
    }

    /// Deletes the functions of an ended interpreter from the BPF map.
    pub fn forget_functions(&self, functions: impl Iterator<Item = FunctionKey>) {
        for f in functions {
            let key = wire::function_key {
                code: f.code.0,
                mm_id: f.mm.0,
                check: f.check,
            };
            // A function that did not fit into the map has no entry.
            let _ = self.skel.maps.functions.delete(wire::record_bytes(&key));
        }
    }

    /// The sources that are loaded.
    pub fn sources(&self) -> &[&'static Source] {
        &self.sources
    }

    /// The measures that the loaded sources fill.
    pub fn measures(&self) -> Vec<&'static Measure> {
        let filled = |measure: &&Measure| {
            let mut sources = self.sources.iter();
            sources.any(|source| source.measure.name == measure.name)
        };
        let mut measures: Vec<&'static Measure> = MEASURES.into_iter().filter(filled).collect();
        if self.sources.iter().any(exact::is_source) {
            measures.push(&WINDOW);
        } else if measures.iter().any(|measure| measure.name == HEAP.name) {
            measures.push(&HEAP_PEAK);
        }
        if self.counts_every_call {
            measures.push(&EXACT);
        }
        measures
    }

    /// Optional hooks that could not be attached.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// How system calls that change address spaces are hooked.
    pub fn syscall_hooks(&self) -> &SyscallHooks {
        &self.syscall_hooks
    }

    /// The descriptor that becomes readable when the ring buffer has data.
    pub fn ring_fd(&self) -> RawFd {
        self.ring.epoll_fd()
    }

    /// Takes at most 1024 of the oldest events from the ring buffer, in order. Returns even if events arrive faster than they are
    /// taken.
    ///
    /// # Errors
    /// If the ring buffer cannot be read.
    pub fn take_events(&mut self) -> Result<Vec<Event>> {
        let taken = self.ring.consume_raw_n(EVENTS_AT_ONCE);
        if taken < 0 {
            return Err(std::io::Error::from_raw_os_error(-taken))
                .context("cannot read the ring buffer");
        }
        Ok(std::mem::take(&mut self.inbox.borrow_mut().events))
    }

    /// Number of bytes waiting in the ring buffer.
    pub fn waiting_bytes(&self) -> u64 {
        // SAFETY: the ring buffer lives as long as `self`, and has one ring.
        unsafe {
            let ring = libbpf_sys::ring_buffer__ring(self.ring.as_libbpf_object().as_ptr(), 0);
            match ring.is_null() {
                true => 0,
                false => libbpf_sys::ring__avail_data_size(ring) as u64,
            }
        }
    }

    /// A counter that changes whenever a hook sees a change of a followed process's memory.
    pub fn activity(&self) -> u64 {
        let sum = self.counters();
        // Without a hook on faults, memory may have changed since the last call.
        if self.fault_hooks.is_none() {
            self.unseen.set(self.unseen.get() + 1);
        }
        sum.walked + sum.unwalked + sum.changes + self.unseen.get()
    }

    /// Number of page faults of followed processes, and of those without a stack walk; `None` if faults have no hook.
    pub fn faults(&self) -> Option<Faults> {
        let sum = self.counters();
        self.fault_hooks.map(|_| Faults {
            all: sum.walked + sum.unwalked,
            unwalked: sum.unwalked,
        })
    }

    /// Whether all faults had their stack walked.
    pub fn walks_all(&self) -> bool {
        self.faults().is_some_and(|faults| faults.unwalked == 0)
    }

    /// Checks whether the machine has swap space. If it has, the probe distinguishes new pages from pages that return from swap.
    pub fn look_for_swap(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.swap_on).store(sizes::has_swap().into(), SeqCst);
        }
    }

    /// The counters, summed over all processors.
    fn counters(&self) -> wire::cpu_state {
        let mut sum = wire::cpu_state::default();
        for cpu in 0..self.cpus {
            let one: wire::cpu_state = self.bss(|b| &raw const b.cpus[cpu]);
            sum.walked += one.walked;
            sum.unwalked += one.unwalked;
            sum.changes += one.changes;
            sum.reports += one.reports;
        }
        sum
    }

    fn lost(&self, what: wire::loss) -> u64 {
        let counters: [u64; wire::LOSS_COUNTERS] = self.bss(|b| &raw const b.losses);
        counters.get(what.0 as usize).copied().unwrap_or_default()
    }

    /// All losses so far.
    pub fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        for (what, name) in wire::LOSSES {
            losses.add(name, self.lost(what));
        }
        let malformed = self.inbox.borrow().malformed;
        losses.add("ring-buffer records that could not be decoded", malformed);
        losses.add(
            "changes of the page ledger that the kernel refused",
            self.refused.get(),
        );
        losses.add(
            "system calls, of any process, that the kernel did not report",
            self.missed_calls(),
        );
        let unreported = self.fault_events.unreported(|| self.counters().reports);
        losses.add(
            Losses::SKIPPED_PROGRAMS,
            self.skipped_programs() + unreported,
        );
        losses
    }

    /// Number of times the kernel skipped one of these programs at a tracepoint, for any process.
    ///
    /// Before [`hooks::PREEMPTS_PROGRAMS`] the kernel does not preempt programs. It only skips programs that would have interrupted
    /// themselves, and such skips are no losses. `fault_kernel` interrupts itself, because a stack walk may read a bad address, so
    /// its skips are not counted.
    fn skipped_programs(&self) -> u64 {
        if KernelVersion::running() < hooks::PREEMPTS_PROGRAMS {
            return 0;
        }
        let progs = &self.skel.progs;
        let mut skipped = 0;
        for program in [
            &progs.fault_user,
            &progs.page_allocated,
            &progs.process_fork,
            &progs.process_exec,
            &progs.process_exit,
            &progs.process_free,
            &progs.cache_add,
            &progs.cache_delete,
        ] {
            // The options determine which of them are loaded. `as_fd` must not be called for a program that is not loaded.
            // SAFETY: the program is a part of the open object.
            let fd = unsafe { libbpf_sys::bpf_program__fd(program.as_libbpf_object().as_ptr()) };
            if fd >= 0 {
                skipped += hooks::skipped(program.as_fd());
            }
        }
        skipped
    }

    /// Number of system calls, of any process, that the kernel did not report to the probe.
    fn missed_calls(&self) -> u64 {
        let by_links = self.functions.as_ref().map_or(0, FunctionHooks::missed);
        let names = self.syscall_hooks.programs();
        let hooks = self.skel.object().progs().filter(|program| {
            let mut names = names.iter();
            program.autoload() && names.any(|name| program.name() == name.as_str())
        });
        by_links + hooks.map(|p| hooks::skipped(p.as_fd())).sum::<u64>()
    }

    /// Detaches from the functions of system calls, in the background if that takes long.
    pub fn detach_from_functions(&mut self) {
        self.functions = None;
    }

    /// Number of address-space events that did not reach user space.
    pub fn ranges_lost(&self) -> u64 {
        self.lost(wire::loss::LOSS_RING_RANGE)
    }

    /// Number of process events that did not reach user space.
    pub fn process_events_lost(&self) -> u64 {
        self.lost(wire::loss::LOSS_RING_PROCESS)
    }

    /// Number of sampled allocations that did not reach user space.
    pub fn samples_lost(&self) -> u64 {
        self.lost(wire::loss::LOSS_RING_ALLOCATION)
    }

    fn bss<T: Copy + Default>(&self, field: impl Fn(&crate::probe::wire::Bss) -> *const T) -> T {
        match self.skel.maps.bss_data.as_deref() {
            // SAFETY: a valid field of the mapped .bss; volatile because the kernel writes it.
            Some(bss) => unsafe { field(bss).read_volatile() },
            None => T::default(),
        }
    }
}

/// Atomic access to a word that the BPF programs also modify.
fn shared(word: &mut u32) -> &AtomicU32 {
    // SAFETY: aligned, valid as long as the borrow, and both sides modify it by atomic operations.
    unsafe { AtomicU32::from_ptr(word) }
}
