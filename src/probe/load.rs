//! Loading the BPF programs: open, set options and table sizes, load, attach.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject, PrintLevel, ProgramMut, RingBuffer, RingBufferBuilder,
};

use super::config::{ProbeConfig, Stacks};
use super::fault_events::FaultEvents;
use super::faults::FaultHooks;
use super::hooks::{FunctionHooks, MultiHooks, TrampolineHooks};
use super::stacks::StackSlots;
use super::{Inbox, Missing, Probe, SyscallHooks, exact, sizes};
use crate::probe::source::{SOURCES, Source};
use crate::probe::wire::{self, MemprofSkel, MemprofSkelBuilder, OpenMemprofSkel};
use memprof_sys::residency::page_size;

/// Environment variable: if set, libbpf's messages and the verifier's statistics go to stderr.
const LOG: &str = "MEMPROF_LIBBPF_LOG";

/// Life-cycle programs, which every source needs.
const LIFECYCLE: [&str; 4] = [
    "process_fork",
    "process_exec",
    "process_exit",
    "process_free",
];

impl Probe {
    /// Loads the programs, and attaches all programs that need no target.
    ///
    /// # Errors
    /// If the kernel refuses the programs or a required hook; the message names it.
    pub fn load(config: &ProbeConfig) -> Result<Probe> {
        let hooks = SyscallHooks::choose()?;
        match Probe::load_with(config, hooks) {
            Err(Failure::Functions(e)) if !SyscallHooks::is_forced() => Ok(Probe::load_with(
                config,
                SyscallHooks::Tracepoints(format!("{e:#}")),
            )?),
            loaded => Ok(loaded?),
        }
    }

    fn load_with(config: &ProbeConfig, syscall_hooks: SyscallHooks) -> Result<Probe, Failure> {
        let began = Instant::now();
        raise_memlock();
        quiet_libbpf();
        // The skeleton borrows this object for its lifetime, which lasts until the process ends, except in tests.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = MemprofSkelBuilder::default()
            .open(object)
            .context("cannot open the BPF object built into memprof")?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .ok_or_else(|| anyhow!("the BPF object has no settings section"))?;
        rodata.page_shift = page_size().trailing_zeros();
        rodata.view_ns = own_pid_namespace()?;
        rodata.follow_forks = config.follow_forks.into();
        for (to, from) in rodata.wanted_comm.iter_mut().zip(wanted_bytes(config)) {
            *to = from as _;
        }
        let data = open.maps.data_data.as_deref_mut();
        let data = data.ok_or_else(|| anyhow!("the BPF object has no data section"))?;
        data.unwind_mode = config.unwind as u8;
        data.max_frames = config.max_frames;
        data.walk_mode = config.stacks.mode().0 as u8;
        match config.stacks {
            Stacks::OneIn(interval) => data.walk_share = interval.get(),
            Stacks::Auto(overhead) => data.walk_budget = overhead.millionths(),
            Stacks::All | Stacks::Off => {}
        }
        data.exact_max = config.exact.max_size;
        data.exact_every = config.exact.every;
        data.exact_temporary_ns = u64::try_from(config.temporary.as_nanos()).unwrap_or(u64::MAX);
        if std::env::var_os(LOG).is_some() {
            // 4: statistics only.
            open.open_object_mut()
                .progs_mut()
                .for_each(|mut p| p.set_log_level(4));
        }
        if let Some(bss) = open.maps.bss_data.as_deref_mut() {
            bss.exact_min = config.exact.min_size;
            bss.exact_skip = config.exact.skip;
            bss.swap_on = sizes::has_swap().into();
        }
        let multi = exact::prepare(&mut open);
        sizes::set(&mut open)?;
        for source in SOURCES {
            let mut sources = config.sources.iter();
            if !sources.any(|chosen| std::ptr::eq(*chosen, source)) {
                leave_out(&mut open, source)?;
            } else if config.stacks == Stacks::Off {
                leave_out_programs(&mut open, source.at_faults);
            }
        }
        leave_out_programs(&mut open, &syscall_hooks.other_programs());
        let fault_hooks = FaultHooks::choose()?;
        leave_out_programs(&mut open, fault_hooks.other_programs());
        // The program that does the pending work of others (`src/bpf/pending.bpf.h`).
        let walks = fault_hooks == FaultHooks::Tracepoints && config.stacks != Stacks::Off;
        if walks {
            leave_out_programs(&mut open, &["walk_pending"]);
        }
        if config.stacks == Stacks::Off {
            leave_out_programs(&mut open, fault_hooks.programs());
        }
        let loaded = open.load().context(
            "cannot load memprof's BPF program into the kernel (run `memprof doctor` to see what is missing)",
        );
        let skel = match syscall_hooks {
            // The kernel's BTF may lack one of the functions.
            SyscallHooks::Trampolines => loaded.map_err(Failure::Functions)?,
            _ => loaded?,
        };
        let walker = match walks {
            true => &skel.progs.fault_user,
            false => &skel.progs.walk_pending,
        };
        set_program(&skel.maps.walker, walker.as_fd())?;
        let (mut links, missing) = attach_sources(&skel, config)?;
        if config.stacks != Stacks::Off {
            attach_to_faults(&skel, fault_hooks, &mut links)?;
        }
        let sees_faults = (config.stacks != Stacks::Off).then_some(fault_hooks);
        let functions = match syscall_hooks {
            SyscallHooks::Functions => Some(attach_functions(&skel).map_err(Failure::Functions)?),
            SyscallHooks::Trampolines => {
                let hooks = TrampolineHooks::attach(&skel).map_err(Failure::Functions)?;
                Some(FunctionHooks::Trampolines(hooks))
            }
            SyscallHooks::Tracepoints(_) => {
                for name in syscall_hooks.programs() {
                    links.push(attach(&skel, &name)?);
                }
                None
            }
        };
        let inbox = Rc::new(RefCell::new(Inbox::default()));
        let ring = open_ring(&skel, Rc::clone(&inbox))?;
        let find = skel
            .progs
            .find_process
            .attach()
            .context("cannot attach the task iterator")?;
        let forget = skel
            .progs
            .forget_process
            .attach()
            .context("cannot attach the task iterator")?;
        let bind = match config.unwind.needs_tables() {
            true => Some(skel.progs.bind_process.attach())
                .transpose()
                .context("cannot attach the mapping iterator")?,
            false => None,
        };
        let slots = StackSlots::new(&skel)?;
        tracing::info!(took = ?began.elapsed(), programs = links.len(), syscalls = %syscall_hooks, faults = ?fault_hooks, "the probe is loaded and attached");
        Ok(Probe {
            skel,
            ring,
            inbox,
            _links: links,
            syscall_hooks,
            functions,
            find,
            forget,
            bind,
            unbound: Default::default(),
            slots,
            missing,
            fault_hooks: sees_faults,
            fault_events: FaultEvents::new(sees_faults),
            unseen: Cell::default(),
            cpus: libbpf_rs::num_possible_cpus()
                .unwrap_or(wire::MAX_CPUS)
                .min(wire::MAX_CPUS),
            sources: config.sources.clone(),
            ended: RefCell::default(),
            refused: Cell::default(),
            table_pages: Rc::default(),
            sample_probes: Vec::new(),
            counts_every_call: exact::counts_every_call(config),
            multi,
        })
    }
}

/// Why the probe could not be loaded.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The kernel does not attach programs to the functions of system calls.
    #[error("cannot attach to the functions of system calls")]
    Functions(#[source] anyhow::Error),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// Attaches to the tracepoints of page faults. Software events are opened once the processes to follow are known.
fn attach_to_faults(
    skel: &MemprofSkel<'static>,
    hooks: FaultHooks,
    links: &mut Vec<Link>,
) -> Result<()> {
    if hooks == FaultHooks::Tracepoints {
        for name in hooks.programs() {
            links.push(attach(skel, name)?);
        }
    }
    Ok(())
}

/// Sets the program that a tail call through this map reaches.
pub(super) fn set_program(map: &impl MapCore, program: BorrowedFd<'_>) -> Result<()> {
    let program = program.as_raw_fd().to_ne_bytes();
    map.update(&0u32.to_ne_bytes(), &program, MapFlags::ANY)
        .with_context(|| format!("cannot write the BPF map {}", map.name().display()))
}

fn attach_functions(skel: &MemprofSkel<'static>) -> Result<FunctionHooks> {
    set_program(&skel.maps.range_walker, skel.progs.calls_take_range.as_fd())?;
    let progs = &skel.progs;
    let hooks = MultiHooks::attach(progs.calls_begin.as_fd(), progs.calls_return.as_fd())?;
    Ok(FunctionHooks::Multi(hooks))
}

fn wanted_bytes(config: &ProbeConfig) -> impl Iterator<Item = u8> {
    let name = config.wanted_comm.clone().unwrap_or_default();
    name.into_bytes().into_iter().take(15)
}

fn own_pid_namespace() -> Result<u32> {
    let ns = std::fs::metadata("/proc/self/ns/pid")
        .context("cannot read /proc/self/ns/pid (is /proc mounted?)")?;
    Ok(ns.ino() as u32)
}

/// Raises RLIMIT_MEMLOCK, against which BPF maps count before Linux 5.11. Later they count against the cgroup, so a failure to
/// raise the limit is ignored.
fn raise_memlock() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// Silences libbpf unless [`LOG`] is set. It prints to stderr by default, and memprof's errors contain the relevant part.
fn quiet_libbpf() {
    let show = std::env::var_os(LOG).is_some();
    libbpf_rs::set_print(show.then_some((PrintLevel::Debug, |_, message| eprint!("{message}"))));
}

fn open_ring(
    skel: &MemprofSkel<'static>,
    inbox: Rc<RefCell<Inbox>>,
) -> Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&skel.maps.events, move |bytes| {
            // The caller is C: nothing here may panic.
            if let Ok(mut inbox) = inbox.try_borrow_mut() {
                match wire::decode(bytes) {
                    Ok(event) => inbox.events.push(event),
                    Err(_) => inbox.malformed += 1,
                }
            }
            0
        })
        .context("cannot open the ring buffer")?;
    builder.build().context("cannot open the ring buffer")
}

/// Excludes a source's programs and maps from loading.
fn leave_out(open: &mut OpenMemprofSkel<'static>, source: &Source) -> Result<()> {
    for programs in [
        source.programs,
        source.at_faults,
        source.optional,
        source.on_demand,
    ] {
        leave_out_programs(open, programs);
    }
    for mut map in open.open_object_mut().maps_mut() {
        let ledger = source.ledger.map(|ledger| ledger.map);
        let mut own = ledger.iter().chain(source.maps);
        if own.any(|name| map.name() == *name) {
            map.set_autocreate(false)
                .with_context(|| format!("cannot disable the programs for {}", source.name))?;
        }
    }
    Ok(())
}

fn leave_out_programs(open: &mut OpenMemprofSkel<'static>, names: &[impl AsRef<str>]) {
    for mut program in open.open_object_mut().progs_mut() {
        if names.iter().any(|name| program.name() == name.as_ref()) {
            program.set_autoload(false);
        }
    }
}

fn attach_sources(
    skel: &MemprofSkel<'static>,
    config: &ProbeConfig,
) -> Result<(Vec<Link>, Vec<Missing>)> {
    let mut links = Vec::new();
    let mut missing = Vec::new();
    let sources = || config.sources.iter();
    let at_faults = sources().filter(|_| config.stacks != Stacks::Off);
    let needed = LIFECYCLE.iter().chain(sources().flat_map(|s| s.programs));
    for name in needed.chain(at_faults.flat_map(|s| s.at_faults)) {
        links.push(attach(skel, name)?);
    }
    for name in sources().flat_map(|s| s.optional) {
        match attach(skel, name) {
            Ok(link) => links.push(link),
            Err(e) => missing.push((*name, format!("{e:#}"))),
        }
    }
    Ok((links, missing))
}

pub(super) fn attach(skel: &MemprofSkel<'static>, name: &str) -> Result<Link> {
    program(skel, name)?
        .attach()
        .with_context(|| format!("cannot attach the BPF program {name}"))
}

pub(super) fn program<'a>(skel: &'a MemprofSkel<'static>, name: &str) -> Result<ProgramMut<'a>> {
    let mut programs = skel.object().progs_mut();
    programs
        .find(|p| p.name() == name)
        .ok_or_else(|| anyhow!("memprof has no BPF program {name}"))
}
