//! Captures the bytes of a node's TCP connections, from outside of the node.
//!
//! The main source are the packets of the node's control group: every byte is seen however the node reads and writes, other
//! processes pay nothing, and an offset from the kernel's own counts comes with every record. The programs never drop a packet.

mod attach;
mod early;
mod follow;
mod load;
mod open;
mod options;
mod status;

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, RingBuffer};
use memprof_sys::procfs;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

pub use self::options::{CaptureOptions, Source, Target};
pub use self::status::{CaptureError, CaptureFacts, CaptureLosses};

use self::attach::Attachments;
use self::early::Early;
use self::follow::Followed;
use self::load::{Inbox, Loaded, Programs};
use self::open::OpenSockets;
use crate::captured::{Captured, Socket, What};
use crate::side::Both;
use crate::time::Wall;
use crate::wire::{self, Kind, Record, RecorderSkel};

/// Where the bytes come from, and whose they are.
enum Captures {
    Packets(Attachments),
    Calls(Followed),
}

/// A running capture. It ends when this is dropped or the process ends, however that happens.
pub struct Capture {
    captures: Captures,
    reason: Option<String>,
    _links: Vec<Link>,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
    open: OpenSockets,
    early: Early,
    wall: Wall,
    ring_size: usize,
    malformed: u64,
    skel: RecorderSkel<'static>,
}

impl Capture {
    /// Records taken out of the ring at once.
    const BATCH: usize = 32;
    /// Maximum number of batches of a poll.
    const MAX_BATCHES: usize = 128;

    /// Loads the BPF programs, and attaches them to the targets that there are. Others are attached when they appear.
    ///
    /// # Errors
    /// If the kernel refuses the programs, or refuses to attach them to the targets.
    pub fn open(options: &CaptureOptions) -> Result<Self, CaptureError> {
        let packets = match options.source {
            Source::Calls => return Self::of_calls(options, None),
            Source::Sockets | Source::Auto => Self::of_packets(options),
        };
        match packets {
            Err(e) if options.source == Source::Auto => {
                Self::of_calls(options, Some(e.to_string()))
            }
            packets => packets,
        }
    }

    fn of_packets(options: &CaptureOptions) -> Result<Self, CaptureError> {
        let mut attachments = Attachments::new(&options.targets)?;
        let loaded = load::load(options, &Programs::PACKETS)?;
        attachments.refresh(&loaded.skel);
        if let Some(problem) = attachments.refused() {
            return Err(CaptureError::Refused(problem));
        }
        let captures = Captures::Packets(attachments);
        Ok(Self::new(options, loaded, captures, None))
    }

    fn of_calls(options: &CaptureOptions, reason: Option<String>) -> Result<Self, CaptureError> {
        if procfs::in_initial_pid_namespace() != Some(true) {
            let why = "system calls cannot be captured from a pid namespace of its own; start the container with --pid=host";
            return Err(CaptureError::Refused(why.into()));
        }
        let loaded = load::load(options, &Programs::CALLS)?;
        let mut followed = Followed::new(&options.targets);
        followed.refresh(&loaded.skel);
        let captures = Captures::Calls(followed);
        Ok(Self::new(options, loaded, captures, reason))
    }

    fn new(
        options: &CaptureOptions,
        loaded: Loaded,
        captures: Captures,
        reason: Option<String>,
    ) -> Self {
        Self {
            captures,
            reason,
            _links: loaded.links,
            ring: loaded.ring,
            inbox: loaded.inbox,
            open: loaded.open,
            early: Early::default(),
            wall: Wall::now(),
            ring_size: options.ring_size() as usize,
            malformed: 0,
            skel: loaded.skel,
        }
    }

    /// Waits for records until `timeout` has passed, and gives those that there are. Few records do not end the wait early: the
    /// timeout is how late they may be.
    ///
    /// # Errors
    /// If the ring buffer cannot be read.
    pub fn poll(
        &mut self,
        timeout: Duration,
        sink: &mut dyn FnMut(Captured<'_>),
    ) -> Result<(), CaptureError> {
        self.wait(timeout)?;
        // It may have been set.
        self.wall = Wall::now();
        match &mut self.captures {
            Captures::Packets(attachments) => attachments.keep(&self.skel),
            Captures::Calls(followed) => followed.keep(&self.skel),
        }
        for _ in 0..Self::MAX_BATCHES {
            let taken = self.ring.consume_raw_n(Self::BATCH);
            if taken < 0 {
                let e = io::Error::from_raw_os_error(-taken);
                return Err(CaptureError::io("cannot read the ring buffer", e));
            }
            self.give(sink);
            if (taken as usize) < Self::BATCH {
                break;
            }
        }
        Ok(())
    }

    /// Has the programs ignore a socket: its bytes are no longer copied. Forgotten when the connection ends.
    ///
    /// # Errors
    /// If the kernel's table cannot be written.
    pub fn ignore(&self, socket: Socket) -> Result<(), CaptureError> {
        let ignored = &self.skel.maps.ignored;
        let added = ignored.update(&socket.0.to_ne_bytes(), &[1], MapFlags::ANY);
        added.map_err(|e| CaptureError::bpf("cannot write the BPF map ignored", e))
    }

    /// The sockets of which something was captured, and whose connections have not ended, as the kernel has them.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn open_sockets(&self) -> Result<HashSet<Socket>, CaptureError> {
        self.open.read()
    }

    /// Sums since the capture began.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn losses(&self) -> Result<CaptureLosses, CaptureError> {
        let counted = &self.skel.maps.counted;
        let read = counted.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let read = read.map_err(|e| CaptureError::bpf("cannot read the BPF map counted", e))?;
        let processors = read.unwrap_or_default();
        Ok(CaptureLosses {
            skipped_events: self.skipped(),
            unclaimed_bytes: self.early.unclaimed(),
            malformed: self.malformed + self.inbox.borrow().malformed,
            ..CaptureLosses::from_counters(&processors)
        })
    }

    fn skipped(&self) -> u64 {
        let progs = &self.skel.progs;
        let programs = match &self.captures {
            Captures::Packets(_) => vec![&progs.state_changes],
            Captures::Calls(_) => vec![&progs.call_returns, &progs.call_states, &progs.call_ends],
        };
        let programs = programs.into_iter();
        programs.map(|program| wire::skipped(program.as_fd())).sum()
    }

    /// The state of the capture.
    pub fn facts(&self) -> CaptureFacts {
        let (source, cgroups, processes, missing) = match &self.captures {
            Captures::Packets(attachments) => {
                let (groups, missing) = (attachments.directories(), attachments.problems());
                (Source::Sockets, groups, Vec::new(), missing)
            }
            Captures::Calls(followed) => {
                let processes = Followed::processes(&self.skel);
                (Source::Calls, Vec::new(), processes, followed.problems())
            }
        };
        CaptureFacts {
            source,
            reason: self.reason.clone(),
            cgroups,
            processes,
            missing,
            ring: self.ring_size,
        }
    }

    /// Waits until the ring is filled to the level at which the programs wake the reader, a control group has changed, or the
    /// time is over.
    fn wait(&self, timeout: Duration) -> Result<(), CaptureError> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut sources = vec![self.skel.maps.records.as_fd()];
        if let Captures::Packets(attachments) = &self.captures {
            sources.push(attachments.changes());
        }
        let sources = sources.into_iter();
        let mut fds: Vec<_> = sources
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match nix::poll::poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(CaptureError::io("cannot wait for records", e.into())),
        }
    }

    /// Gives the records that were taken out of the ring.
    fn give(&mut self, sink: &mut dyn FnMut(Captured<'_>)) {
        let mut inbox = std::mem::take(&mut *self.inbox.borrow_mut());
        let mut start = 0;
        for end in inbox.ends.drain(..) {
            match inbox.bytes.get(start..end).and_then(wire::decode) {
                Some(record) => self.take(&record, sink),
                None => inbox.malformed += 1,
            }
            start = end;
        }
        inbox.bytes.clear();
        self.malformed += std::mem::take(&mut inbox.malformed);
        // The memory is used again.
        *self.inbox.borrow_mut() = inbox;
    }

    fn take(&mut self, record: &Record<'_>, sink: &mut dyn FnMut(Captured<'_>)) {
        let time = self.wall.at(record.time);
        let mut give = |what| {
            sink(Captured {
                socket: Socket(record.socket),
                time,
                local: record.local,
                remote: record.remote,
                what,
            });
        };
        match (record.kind, record.sender) {
            (Kind::RECORD_DATA, Some(sender)) => give(What::Data {
                sender,
                offset: record.offset,
                in_order: record.in_order,
                data: record.data,
                initiator: record.initiator,
            }),
            (Kind::RECORD_EARLY, _) => self.early.wait(time, record),
            (Kind::RECORD_OPENED, _) => {
                give(What::Opened {
                    initiator: record.initiator,
                });
                self.early.claim(record, sink);
            }
            (Kind::RECORD_CLOSED, _) => give(What::Closed {
                sent: Both {
                    local: Some(record.offset),
                    remote: Some(record.in_order),
                },
            }),
            (Kind::RECORD_LISTENS, _) => {
                let (port, pid) = (record.local.port(), record.process);
                match &mut self.captures {
                    Captures::Packets(attachments) => attachments.listens(&self.skel, port, pid),
                    Captures::Calls(followed) => followed.listens(&self.skel, port, pid),
                }
            }
            _ => self.malformed += 1,
        }
    }
}
