//! Loading the programs of one source.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::rc::Rc;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, PrintLevel, RingBuffer, RingBufferBuilder};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::open::OpenSockets;
use super::{CaptureError, CaptureOptions, Target};
use crate::wire::{self, OpenRecorderSkel, RecorderSkel, RecorderSkelBuilder};

/// Environment variable: if set, libbpf's messages go to stderr.
const LOG: &str = "TEZOS_RECORDER_LIBBPF_LOG";

/// Loaded programs, of which those that need no target are attached.
pub(super) struct Loaded {
    pub links: Vec<Link>,
    pub ring: RingBuffer<'static>,
    pub inbox: Rc<RefCell<Inbox>>,
    pub open: OpenSockets,
    pub skel: RecorderSkel<'static>,
}

/// Records that were taken out of the ring, and not given to the caller yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub bytes: Vec<u8>,
    /// Where each record ends.
    pub ends: Vec<usize>,
    /// Records that could not be decoded.
    pub malformed: u64,
}

impl Inbox {
    fn push(&mut self, bytes: &[u8]) {
        match wire::trim(bytes) {
            Some(record) => {
                self.bytes.extend_from_slice(record);
                self.ends.push(self.bytes.len());
            }
            None => self.malformed += 1,
        }
    }
}

/// Programs that are loaded.
pub(super) struct Programs {
    /// Programs at the kernel's tracepoints.
    pub everywhere: &'static [&'static str],
    /// Programs that are attached to control groups.
    pub at_groups: &'static [&'static str],
    /// The program that lists the open sockets.
    pub lists: &'static str,
}

impl Programs {
    /// Those of the main source.
    pub const PACKETS: Self = Self {
        everywhere: &["state_changes"],
        at_groups: &["packet_sent", "packet_received"],
        lists: "open_sockets",
    };
    /// Those of the second source.
    pub const CALLS: Self = Self {
        everywhere: &[
            "call_states",
            "call_returns",
            "call_ends",
            "process_forks",
            "process_exits",
        ],
        at_groups: &[],
        lists: "open_call_sockets",
    };
}

/// Loads programs, and attaches those that need no target.
pub(super) fn load(options: &CaptureOptions, programs: &Programs) -> Result<Loaded, CaptureError> {
    // Before Linux 5.11, BPF memory counts against this limit. Later it counts against the control group.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    quiet_libbpf();
    let failed = |what: &str| {
        let what = what.to_string();
        move |e| CaptureError::bpf(&what, e)
    };
    // Some kernels permit no program that lists sockets. Nothing is captured by it.
    let listing = open(options, programs, true)?.load();
    let lists = listing.is_ok();
    let skel = listing.or_else(|_| {
        open(options, programs, false)?
            .load()
            .map_err(failed("cannot load the BPF programs into the kernel"))
    })?;
    for target in &options.targets {
        if let Target::Port(port) = target {
            let added = skel
                .maps
                .ports
                .update(&port.to_ne_bytes(), &[1], MapFlags::ANY);
            added.map_err(failed("cannot write the BPF map ports"))?;
        }
    }
    let inbox = Rc::new(RefCell::new(Inbox::default()));
    let ring =
        open_ring(&skel, Rc::clone(&inbox)).map_err(failed("cannot open the ring buffer"))?;
    let links = attach(&skel, programs.everywhere)?;
    let open = match lists {
        true if programs.lists == Programs::PACKETS.lists => {
            OpenSockets::new(&skel.progs.open_sockets, &skel.maps.connections)?
        }
        true => OpenSockets::new(&skel.progs.open_call_sockets, &skel.maps.sockets)?,
        false => OpenSockets::NotPermitted,
    };
    Ok(Loaded {
        links,
        ring,
        inbox,
        open,
        skel,
    })
}

/// Opens the object with the programs that are to be loaded, with or without the one that lists sockets.
fn open(
    options: &CaptureOptions,
    programs: &Programs,
    lists: bool,
) -> Result<OpenRecorderSkel<'static>, CaptureError> {
    let failed = |what: &str| {
        let what = what.to_string();
        move |e| CaptureError::bpf(&what, e)
    };
    // The skeleton borrows this object, a pointer, which is never freed.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let open = RecorderSkelBuilder::default().open(object);
    let mut open = open.map_err(failed("cannot open the BPF object"))?;
    let ring = options.ring_size();
    let resized = open.maps.records.set_max_entries(ring);
    resized.map_err(failed("cannot set the size of the ring buffer"))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        let ring = u64::from(ring);
        // A wakeup takes microseconds of the node's time: once for each 4 MiB of 32.
        rodata.wake_level = ring / 8;
        rodata.data_level = ring - (ring / 16).min(1 << 20);
    }
    for mut program in open.open_object_mut().progs_mut() {
        let names = programs.everywhere.iter().chain(programs.at_groups);
        let mut names = names.chain(lists.then_some(&programs.lists));
        let wanted = names.any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    Ok(open)
}

fn attach(skel: &RecorderSkel<'static>, names: &[&str]) -> Result<Vec<Link>, CaptureError> {
    let mut links = Vec::new();
    for program in skel.object().progs_mut() {
        if names.iter().any(|name| program.name() == *name) {
            let link = program.attach().map_err(|e| {
                let name = program.name().to_string_lossy();
                CaptureError::bpf(&format!("cannot attach the BPF program {name}"), e)
            });
            links.push(link?);
        }
    }
    Ok(links)
}

/// Silences libbpf, which prints to stderr, unless [`LOG`] is set.
fn quiet_libbpf() {
    let show = std::env::var_os(LOG).is_some();
    libbpf_rs::set_print(show.then_some((PrintLevel::Debug, |_, message| eprint!("{message}"))));
}

fn open_ring(
    skel: &RecorderSkel<'static>,
    inbox: Rc<RefCell<Inbox>>,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(&skel.maps.records, move |bytes| {
        // The caller is C: nothing here may panic.
        if let Ok(mut inbox) = inbox.try_borrow_mut() {
            inbox.push(bytes);
        }
        0
    })?;
    builder.build()
}
