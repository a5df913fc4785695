//! The BPF program in the kernel: open, settings, load, attach; its ring buffer and its ledgers.

mod iterate;
mod ledger;
mod sizes;
mod stacks;
mod tables;

pub use ledger::Sweep;
pub use stacks::UsedStacks;
pub use tables::TableMaps;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{
    AsRawLibbpf, Link, MapCore, MapFlags, OpenObject, PrintLevel, RingBuffer, RingBufferBuilder,
    libbpf_sys,
};

use self::stacks::StackSlots;
use crate::event::{Event, MmId, Pid, StackId};
use crate::profile::{FileId, Losses, TableFill};
use crate::residency::page_size;
use crate::source::kernel_memory::{self, KernelPages};
use crate::source::page_cache::CachedPages;
use crate::source::resident::{Chunk, PageLedger};
use crate::source::{SOURCES, Source};
use crate::wire::{
    self, MemprofSkel, MemprofSkelBuilder, OpenMemprofSkel, cache_chunk, cache_key, kernel_page,
    page_chunk, proc_info,
};

/// Life-cycle programs, which every source depends on.
const LIFECYCLE: [&str; 3] = ["process_fork", "process_exec", "process_exit"];

/// What the probe is told before it is loaded.
#[derive(Clone, Debug, Default)]
pub struct ProbeConfig {
    /// Follow children too.
    pub follow_forks: bool,
    /// How stacks are taken; without, everything stands under one empty stack.
    pub unwind: Unwind,
    /// Frames of a stack that are taken at most, the innermost ones: a number in [`FRAME_LIMITS`].
    pub max_frames: u32,
    /// Count kernel memory too, at a price for every process of this machine.
    pub kernel: bool,
    /// The name to wait for at `exec` (`comm`, at most 15 bytes).
    pub wanted_comm: Option<String>,
}

/// Set in the environment: libbpf's messages and the verifier's statistics go to stderr.
const LOG: &str = "MEMPROF_LIBBPF_LOG";

/// How stacks are walked: the values of `enum unwind_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unwind {
    /// Not at all.
    Off = 0,
    /// By frame pointers alone.
    FramePointers = 1,
    /// By unwind tables alone.
    Tables = 2,
    /// By unwind tables, and by frame pointers where there is none.
    #[default]
    Auto = 3,
}

impl Unwind {
    /// Whether tables have to be built.
    pub fn needs_tables(self) -> bool {
        matches!(self, Unwind::Tables | Unwind::Auto)
    }
}

/// How many frames of a stack may be taken at most: from what a walk can remember, so that it costs little,
/// to what is bearable where every frame is walked each time.
pub const FRAME_LIMITS: RangeInclusive<u32> = 128..=1024;

/// Processes whose mappings are looked through one by one; of more, all that are followed are.
const MOST_BY_PID: usize = 16;

/// Ledger chunks read at once, 2 KiB each.
const BATCH: u32 = 256;

/// Processes read at once, 16 bytes each.
const PROCESS_BATCH: u32 = 1024;

/// Kernel pages read at once, 16 bytes each.
const KERNEL_BATCH: u32 = 8192;

/// Records taken from the ring buffer at once: a millisecond's work or so.
const EVENTS_AT_ONCE: usize = 1024;

/// Bits of the minor number in the kernel's own `dev_t`.
const KERNEL_MINOR_BITS: u32 = 20;

/// Which program could not be attached, and why; the rest works without it.
pub type Missing = (&'static str, String);

/// The loaded and attached probe. Dropping it detaches everything; so does the end of the process.
pub struct Probe {
    skel: MemprofSkel<'static>,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
    _links: Vec<Link>,
    find: Link,
    forget: Link,
    bind: Option<Link>,
    slots: StackSlots,
    missing: Vec<Missing>,
    kernel: bool,
    /// Address spaces that are gone, and whose part of the page ledger is not yet.
    ended: RefCell<VecDeque<MmId>>,
    /// Operations on the ledger that the kernel refused.
    refused: Cell<u64>,
    /// Pages of unwind tables.
    table_pages: Rc<Cell<u64>>,
}

#[derive(Default)]
struct Inbox {
    events: Vec<Event>,
    malformed: u64,
}

impl Probe {
    /// Loads the program and attaches everything that needs no target.
    ///
    /// # Errors
    /// The kernel refuses the program or a hook that cannot be done without; the message names it.
    pub fn load(config: &ProbeConfig) -> Result<Probe> {
        raise_memlock();
        quiet_libbpf();
        // The skeleton borrows this for its whole life, which is the process's but for tests.
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
        if std::env::var_os(LOG).is_some() {
            // 4: statistics only.
            open.open_object_mut()
                .progs_mut()
                .for_each(|mut p| p.set_log_level(4));
        }
        sizes::set(&mut open)?;
        if !config.kernel {
            leave_out(&mut open, &kernel_memory::SOURCE, &kernel_memory::MAPS)?;
        }
        let skel = open.load().context(
            "the kernel refused memprof's BPF program (`memprof doctor` says what is missing)",
        )?;
        let (links, missing) = attach_sources(&skel, config)?;
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
                .context("cannot attach the iterator of mappings")?,
            false => None,
        };
        let slots = StackSlots::new(&skel)?;
        Ok(Probe {
            skel,
            ring,
            inbox,
            _links: links,
            find,
            forget,
            bind,
            slots,
            missing,
            kernel: config.kernel,
            ended: RefCell::default(),
            refused: Cell::default(),
            table_pages: Rc::default(),
        })
    }

    /// The maps of unwind tables.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn table_maps(&self) -> Result<TableMaps> {
        TableMaps::new(&self.skel, Rc::clone(&self.table_pages))
    }

    /// Tables came: walks that were remembered are void.
    pub fn tables_changed(&mut self) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            shared(&mut data.unwind_generation).fetch_add(1, SeqCst);
        }
    }

    /// Optional hooks that could not be attached.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Lets the probe follow the next process that takes the wanted name at `exec`, or not.
    pub fn set_waiting(&mut self, waiting: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.waiting).store(waiting.into(), SeqCst);
        }
    }

    /// Follows processes that run already. Their [`Event::Process`] come through the ring buffer; none comes of
    /// one that does not exist.
    ///
    /// # Errors
    /// The task iterator could not be run.
    pub fn follow(&mut self, pids: &[Pid]) -> Result<()> {
        self.with_wanted(pids, |probe| iterate::run(&probe.find))
    }

    /// No longer follows processes.
    ///
    /// # Errors
    /// The task iterator could not be run.
    pub fn forget(&mut self, pids: &[Pid]) -> Result<()> {
        self.with_wanted(pids, |probe| iterate::run(&probe.forget))
    }

    fn with_wanted(&self, pids: &[Pid], run: impl Fn(&Probe) -> Result<()>) -> Result<()> {
        let wanted = &self.skel.maps.wanted;
        // Those that do not fit come in the next run.
        for some in pids.chunks(wanted.max_entries() as usize) {
            for pid in some {
                wanted.update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY)?;
            }
            let done = run(self).context("cannot look processes up in the kernel's task list");
            for pid in some {
                let _ = wanted.delete(&pid.0.to_ne_bytes());
            }
            done?;
        }
        Ok(())
    }

    /// Binds the code that processes have mapped to its files' tables. What has no table yet comes as
    /// [`Event::Code`] through the ring buffer; that is all that happens with a process that is not followed.
    ///
    /// # Errors
    /// The iterator of mappings could not be run.
    pub fn bind(&mut self, pids: &[Pid]) -> Result<()> {
        if self.bind.is_none() || pids.is_empty() {
            return Ok(());
        }
        if pids.len() > MOST_BY_PID {
            return self.bind_with(Pid(0), |probe| match &probe.bind {
                Some(bind) => iterate::run(bind),
                None => Ok(()),
            });
        }
        for pid in pids {
            self.bind_with(*pid, |probe| {
                let program = &probe.skel.progs.bind_process;
                match (iterate::run_for(program.as_fd(), *pid), &probe.bind) {
                    // Before 6.1 it goes through all there are.
                    (Err(_), Some(bind)) if Path::new(&format!("/proc/{pid}")).exists() => {
                        iterate::run(bind)
                    }
                    // Gone meanwhile.
                    _ => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    fn bind_with(&mut self, pid: Pid, run: impl Fn(&Probe) -> Result<()>) -> Result<()> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.bind_pid).store(pid.0, SeqCst);
        }
        run(self).context("cannot look through a process's mappings in the kernel")
    }

    /// How many stacks are known, and how many there is room for.
    pub fn stacks_known(&self) -> (usize, usize) {
        (
            self.bss(|b| &raw const b.known_stacks) as usize,
            self.slots.len(),
        )
    }

    /// Begins to look for stacks that nothing refers to: programs that run from now on mark those they use.
    /// Events sent before that are in the ring buffer by the time this returns.
    ///
    /// # Errors
    /// The kernel does not say when programs have ended.
    pub fn begin_collection(&mut self) -> Result<UsedStacks> {
        self.set_collecting(true);
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            shared(&mut data.stack_epoch).fetch_add(1, SeqCst);
        }
        self.slots.wait_for_programs()?;
        Ok(self.slots.nothing_used())
    }

    /// Notes the stacks that the ledgers refer to.
    ///
    /// # Errors
    /// A ledger could not be read.
    pub fn mark_used(&self, used: &mut UsedStacks) -> Result<()> {
        let mut mark = |words: &[u8]| {
            let mut last = [0; 4];
            for word in words.chunks_exact(4).filter_map(|w| w.first_chunk()) {
                if *word != last {
                    used.insert(StackId(u32::from_ne_bytes(*word)));
                    last = *word;
                }
            }
        };
        let maps = &self.skel.maps;
        for (_, bytes) in maps
            .pages
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?
        {
            mark(&bytes);
        }
        const STACKS: usize = std::mem::offset_of!(cache_chunk, stack);
        for (_, bytes) in maps
            .cache
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?
        {
            mark(bytes.get(STACKS..).unwrap_or_default());
        }
        for id in self.kernel_pages()?.iter().flat_map(|pages| pages.keys()) {
            used.insert(StackId(*id));
        }
        Ok(())
    }

    /// Ends what [`Probe::begin_collection`] began: frees the stacks that nothing refers to. Each is given to
    /// `forget` before its id can name another one. With `None`, frees nothing.
    pub fn end_collection(&mut self, used: Option<&UsedStacks>, forget: impl FnMut(StackId)) {
        let epoch = match self.skel.maps.data_data.as_deref_mut() {
            Some(data) => shared(&mut data.stack_epoch).load(SeqCst),
            None => return,
        };
        let freed = used.map_or(0, |used| self.slots.free(epoch, used, forget));
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.known_stacks).fetch_sub(freed, SeqCst);
        }
        self.set_collecting(false);
    }

    fn set_collecting(&mut self, collecting: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.stacks_collected).store(collecting.into(), SeqCst);
        }
    }

    /// The descriptor that becomes readable when the ring buffer wants reading.
    pub fn ring_fd(&self) -> RawFd {
        self.ring.epoll_fd()
    }

    /// Takes events that wait in the ring buffer, in order: the first ones, if there are many. However fast
    /// they come, this returns.
    ///
    /// # Errors
    /// The ring buffer could not be read.
    pub fn take_events(&mut self) -> Result<Vec<Event>> {
        let taken = self.ring.consume_raw_n(EVENTS_AT_ONCE);
        if taken < 0 {
            return Err(std::io::Error::from_raw_os_error(-taken))
                .context("cannot read the ring buffer");
        }
        Ok(std::mem::take(&mut self.inbox.borrow_mut().events))
    }

    /// Bytes that wait in the ring buffer.
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

    /// A number that changes whenever a followed process's memory changed through a hook.
    pub fn activity(&self) -> u64 {
        self.bss(|b| &raw const b.activity)
    }

    /// How full the ledgers and tables are.
    pub fn tables(&self) -> Vec<TableFill> {
        let maps = &self.skel.maps;
        let fill = |name, entries, map: &dyn MapCore| TableFill {
            name,
            entries,
            capacity: u64::from(map.max_entries()),
        };
        let (pages, _) = self.page_chunks();
        let cache = self.bss(|b| &raw const b.cache_chunks);
        let procs = self.bss(|b| &raw const b.followed_processes);
        let mut tables = vec![
            fill("pages", pages, &maps.pages),
            fill("cache", cache, &maps.cache),
            TableFill {
                name: "stacks",
                entries: u64::from(self.bss(|b| &raw const b.known_stacks)),
                capacity: u64::from(maps.stacks.max_entries()) * wire::BUCKET_SLOTS,
            },
            fill("unwind_pages", self.table_pages.get(), &maps.unwind_pages),
            fill("procs", procs, &maps.procs),
        ];
        if self.kernel {
            let held = self.bss(|b| &raw const b.kernel_allocations);
            tables.push(fill("kernel_pages", held, &maps.kernel_pages));
        }
        tables
    }

    /// The raw loss counters, in the order of [`wire::LOSS_NAMES`].
    fn loss_counts(&self) -> [u64; wire::LOSS_NAMES.len()] {
        self.bss(|b| &raw const b.losses)
    }

    /// Everything that was lost so far.
    pub fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        for (what, count) in wire::LOSS_NAMES.into_iter().zip(self.loss_counts()) {
            losses.add(what, count);
        }
        let malformed = self.inbox.borrow().malformed;
        losses.add("ring-buffer records that could not be decoded", malformed);
        losses.add(
            "changes of the page ledger that the kernel refused",
            self.refused.get(),
        );
        losses
    }

    /// How many address-space events did not reach user space.
    pub fn ranges_lost(&self) -> u64 {
        self.loss_counts()[wire::LOSS_RING_RANGE]
    }

    /// How many processes' changes did not reach user space.
    pub fn process_events_lost(&self) -> u64 {
        self.loss_counts()[wire::LOSS_RING_PROCESS]
    }

    /// The processes that the probe follows, each with its address space.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn processes(&self) -> Result<Vec<(Pid, MmId)>> {
        let map = &self.skel.maps.procs;
        let all = map.lookup_batch(PROCESS_BATCH, MapFlags::ANY, MapFlags::ANY)?;
        let records = all.map(|(_, bytes)| wire::read_record(&bytes, size_of::<proc_info>()));
        Ok(records
            .flatten()
            .map(|p: proc_info| (Pid(p.pid), MmId(p.mm_id)))
            .collect())
    }

    fn bss<T: Copy + Default>(&self, field: impl Fn(&crate::wire::Bss) -> *const T) -> T {
        match self.skel.maps.bss_data.as_deref() {
            // SAFETY: a valid field of the mapped .bss; volatile because the kernel writes it.
            Some(bss) => unsafe { field(bss).read_volatile() },
            None => T::default(),
        }
    }

    /// Pages of the kernel by stack id; `None` where they are not counted.
    ///
    /// # Errors
    /// The map could not be read.
    pub(crate) fn kernel_pages(&self) -> Result<Option<KernelPages>> {
        if !self.kernel {
            return Ok(None);
        }
        let mut pages = KernelPages::new();
        let map = &self.skel.maps.kernel_pages;
        for (_, bytes) in map.lookup_batch(KERNEL_BATCH, MapFlags::ANY, MapFlags::ANY)? {
            if let Ok(entry) = wire::read_record::<kernel_page>(&bytes, size_of::<kernel_page>()) {
                *pages.entry(entry.stack).or_default() += u64::from(entry.pages);
            }
        }
        Ok(Some(pages))
    }

    /// Cached pages by file and stack id.
    ///
    /// # Errors
    /// The map could not be read.
    pub(crate) fn cached_pages(&self) -> Result<CachedPages> {
        let mut pages = CachedPages::new();
        let map = &self.skel.maps.cache;
        // In batches: a key-by-key walk starts over when its key is removed meanwhile.
        for (key, bytes) in map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)? {
            let Ok(key) = wire::read_record::<cache_key>(&key, size_of::<cache_key>()) else {
                continue;
            };
            let Ok(chunk) = wire::read_record::<cache_chunk>(&bytes, size_of::<cache_chunk>())
            else {
                continue;
            };
            let file = FileId {
                dev: (
                    key.dev >> KERNEL_MINOR_BITS,
                    key.dev & ((1 << KERNEL_MINOR_BITS) - 1),
                ),
                ino: key.ino,
            };
            for run in chunk.stack.chunk_by(|a, b| a == b) {
                if run[0] != wire::STACK_NONE {
                    *pages.entry((file, run[0])).or_default() += run.len() as u64;
                }
            }
        }
        Ok(pages)
    }
}

impl PageLedger for Probe {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let key = chunk_key(mm, chunk).to_ne_bytes();
        let bytes = self.skel.maps.pages.lookup(&key, MapFlags::ANY)?;
        let chunk =
            bytes.and_then(|b| wire::read_record::<page_chunk>(&b, size_of::<page_chunk>()).ok());
        Ok(chunk.map(|c| c.stack))
    }
}

fn chunk_key(mm: MmId, chunk: u64) -> u64 {
    (u64::from(mm.0) << wire::REGION_BITS) | chunk
}

fn wanted_bytes(config: &ProbeConfig) -> impl Iterator<Item = u8> {
    let name = config.wanted_comm.clone().unwrap_or_default();
    name.into_bytes().into_iter().take(15)
}

fn own_pid_namespace() -> Result<u32> {
    let ns = std::fs::metadata("/proc/self/ns/pid")
        .context("cannot read /proc/self/ns/pid: is /proc mounted?")?;
    Ok(ns.ino() as u32)
}

/// Before Linux 5.11 BPF maps count against RLIMIT_MEMLOCK; from then on against the cgroup, and
/// raising the limit may be refused: then it is not needed either.
fn raise_memlock() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// libbpf prints to stderr by itself; what it says is in our errors where it matters.
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

/// Keeps a source's programs and maps out of the kernel.
fn leave_out(open: &mut OpenMemprofSkel<'static>, source: &Source, maps: &[&str]) -> Result<()> {
    let object = open.open_object_mut();
    for mut program in object.progs_mut() {
        if source.programs.iter().any(|name| program.name() == *name) {
            program.set_autoload(false);
        }
    }
    for mut map in object.maps_mut() {
        if maps.iter().any(|name| map.name() == *name) {
            map.set_autocreate(false)
                .with_context(|| format!("cannot leave {} out", source.name))?;
        }
    }
    Ok(())
}

fn attach_sources(
    skel: &MemprofSkel<'static>,
    config: &ProbeConfig,
) -> Result<(Vec<Link>, Vec<Missing>)> {
    let mut links = Vec::new();
    let mut missing = Vec::new();
    let wanted = SOURCES.iter().filter(|s| !s.opt_in || config.kernel);
    let needed = LIFECYCLE
        .iter()
        .chain(wanted.clone().flat_map(|s| s.programs));
    for name in needed {
        links.push(attach(skel, name)?);
    }
    for name in wanted.flat_map(|s| s.optional) {
        match attach(skel, name) {
            Ok(link) => links.push(link),
            Err(e) => missing.push((*name, format!("{e:#}"))),
        }
    }
    Ok((links, missing))
}

fn attach(skel: &MemprofSkel<'static>, name: &str) -> Result<Link> {
    let program = skel
        .object()
        .progs_mut()
        .find(|p| p.name() == name)
        .ok_or_else(|| anyhow!("memprof has no BPF program {name}"))?;
    program
        .attach()
        .with_context(|| format!("the kernel refused to attach {name}"))
}

/// A word that the kernel changes too.
fn shared(word: &mut u32) -> &AtomicU32 {
    // SAFETY: aligned, valid as long as the borrow, and changed by atomic operations on either side.
    unsafe { AtomicU32::from_ptr(word) }
}
