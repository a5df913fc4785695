//! Asks readers, and waits for none of them longer than a moment.
//!
//! A question that is not answered in time keeps its reader; what it asked about then rests. It is asked again once that
//! reader answers or ends, else after a while. Readers that keep silent are few, and each of them shortens the next wait, so
//! that any number of silent file systems costs seconds in all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid as NixPid;

use super::message::{Answer, Asked, PART, answer_from_bytes, receive, send};
use super::reader;
use crate::ids::Pid;
use crate::{proc_dir, proc_text};

/// After so long a server does not answer, a path leads nowhere, a disk is stuck: a busy one takes a second for a page.
const PATIENCE_DEVICE: Duration = Duration::from_secs(1);
const PATIENCE_DIRECTORY: Duration = Duration::from_secs(2);
const PATIENCE_FILE: Duration = Duration::from_secs(10);
/// On a busy machine a reader may get no processor for a while, and has not asked then. This is the longest wait.
const BUSY: Duration = Duration::from_secs(10);
/// How often a reader that has not answered is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What does not answer rests for so long.
const REST: Duration = Duration::from_secs(30);
/// One file system may take so much time while it rests not: many slow answers are as bad as one that does not come.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Maximum number of readers, those included that do not answer.
const MOST: usize = 24;
/// Number of readers that are kept for the next questions.
const KEPT: usize = 2;
/// Maximum number of file systems and directories of which something is remembered.
const REMEMBERED: usize = 4096;

/// What a question waits for: a device that a server answers for, a directory in a file tree, a file on a local disk, or the
/// memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Device(u64),
    File((u64, u64)),
    Directory((u64, u64), PathBuf),
    Memory(Pid),
}

impl Key {
    fn patience(&self) -> Duration {
        match self {
            Key::Device(_) | Key::Memory(_) => PATIENCE_DEVICE,
            Key::Directory(..) => PATIENCE_DIRECTORY,
            Key::File(_) => PATIENCE_FILE,
        }
    }
}

struct Reader {
    pid: NixPid,
    /// A descriptor of the process itself (5.3), which may end at any time.
    process: OwnedFd,
    socket: OwnedFd,
}

#[derive(Default)]
struct Readers {
    /// The process that starts readers, and the socket to it; `None` if this process reads itself.
    starter: Option<(NixPid, OwnedFd)>,
    /// Whether memprof is about to end.
    ended: bool,
    /// Number of readers that are asked something now.
    asked: usize,
    idle: Vec<Reader>,
    /// Those that have not answered in time.
    silent: Vec<(Key, Reader)>,
    resting: BTreeMap<Key, Instant>,
    /// Since when, and how much time was taken.
    taken: BTreeMap<Key, (Instant, Duration)>,
    pids: BTreeSet<i32>,
}

static READERS: Mutex<Readers> = Mutex::new(Readers {
    starter: None,
    ended: false,
    asked: 0,
    idle: Vec::new(),
    silent: Vec::new(),
    resting: BTreeMap::new(),
    taken: BTreeMap::new(),
    pids: BTreeSet::new(),
});

fn lock() -> MutexGuard<'static, Readers> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has readers started by this process from now on.
pub(super) fn use_starter(socket: OwnedFd, pid: NixPid) {
    let mut readers = lock();
    readers.pids.insert(pid.as_raw());
    readers.starter = Some((pid, socket));
}

/// Lets all readers go. Returns the process that started them; none is started any more.
pub(super) fn let_go() -> Option<(OwnedFd, NixPid)> {
    let mut readers = lock();
    readers.idle.clear();
    readers
        .silent
        .drain(..)
        .for_each(|(_, reader)| reader.kill());
    readers.ended = true;
    readers.starter.take().map(|(pid, socket)| (socket, pid))
}

/// Whether a process reads files for memprof, or starts those that do.
pub fn is_reader(pid: Pid) -> bool {
    i32::try_from(pid.0).is_ok_and(|pid| lock().pids.contains(&pid))
}

/// Number of file systems and directories that do not answer now.
pub fn unanswered() -> u64 {
    let mut readers = lock();
    readers.look();
    readers.resting.len() as u64
}

/// Whether it rests.
pub(super) fn rests(key: &Key) -> bool {
    let mut readers = lock();
    readers.look();
    readers.resting.contains_key(key)
}

/// Reads at most `buf.len()` bytes. `handle` is the number of a file that is not open yet.
pub(super) fn read(
    key: &Key,
    file: &File,
    handle: Option<u64>,
    buf: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let length = buf.len().min(PART) as u64;
    let asked = Asked::Read {
        handle,
        offset,
        length,
    };
    let (bytes, _) = ask(key, &asked, Some(file))?;
    let to = buf.get_mut(..bytes.len());
    to.ok_or(io::ErrorKind::InvalidData)?
        .copy_from_slice(&bytes);
    Ok(bytes.len())
}

/// Reads at most `buf.len()` bytes of what a process has mapped of files.
pub(super) fn read_memory(pid: Pid, buf: &mut [u8], address: u64) -> io::Result<usize> {
    let asked = Asked::Memory {
        pid: proc_dir::thread(pid),
        address,
        length: buf.len().min(PART) as u64,
    };
    let (bytes, _) = ask(&Key::Memory(pid), &asked, None)?;
    let to = buf.get_mut(..bytes.len());
    to.ok_or(io::ErrorKind::InvalidData)?
        .copy_from_slice(&bytes);
    Ok(bytes.len())
}

pub(super) fn find(key: &Key, root: Option<&File>, path: &Path, flags: i32) -> io::Result<File> {
    let (_, found) = ask(key, &Asked::Find { flags, path }, root)?;
    found.map(File::from).ok_or(io::ErrorKind::NotFound.into())
}

/// The number of the file system (`f_type` of `statfs(2)`) of the file that a link of `/proc` leads to.
///
/// # Errors
/// There is no file, or its file system does not answer.
pub fn file_system_at(link: impl AsRef<Path>) -> io::Result<u64> {
    let file = super::handle_of(link.as_ref())?;
    let key = Key::Device(super::about(&file)?.device());
    let (bytes, _) = ask(&key, &Asked::FileSystem, Some(&file))?;
    let number = bytes.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(u64::from_ne_bytes(*number))
}

fn ask(
    key: &Key,
    asked: &Asked<'_>,
    with: Option<&File>,
) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut readers = lock();
    if readers.ended {
        return Err(no_answer());
    }
    if readers.starter.is_none() {
        drop(readers);
        let with = with.map(|file| file.as_fd().try_clone_to_owned());
        let (said, found) = reader::answer(asked, with.transpose()?, &mut None);
        return Ok((said?, found));
    }
    readers.look();
    readers.may_ask(key)?;
    let reader = readers.take()?;
    let patience = key.patience() / (1 + readers.silent.len() as u32);
    drop(readers);
    let began = Instant::now();
    let answer = reader.ask(asked, with, patience);
    let mut readers = lock();
    readers.asked -= 1;
    readers.charge(key, began.elapsed());
    match answer {
        Some(Ok((answer, found))) => {
            readers.give_back(reader);
            Ok((answer?, found))
        }
        Some(Err(e)) => {
            readers.pids.remove(&reader.pid.as_raw());
            Err(e)
        }
        None => {
            readers.rest(key);
            readers.silent.push((key.clone(), reader));
            Err(no_answer())
        }
    }
}

fn no_answer() -> io::Error {
    let why = "its file system does not answer in time; memprof tries again later";
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl Readers {
    /// Wakes what rests, if its reader has answered or ended, or if it has rested long enough.
    fn look(&mut self) {
        let now = Instant::now();
        let silent = std::mem::take(&mut self.silent);
        let (silent, done): (Vec<_>, _) = silent.into_iter().partition(|(_, r)| !r.has_said());
        self.silent = silent;
        for (key, reader) in done {
            self.resting.remove(&key);
            self.pids.remove(&reader.pid.as_raw());
        }
        let silent = &self.silent;
        self.resting
            .retain(|key, until| *until > now || silent.iter().any(|(of, _)| of == key));
    }

    fn may_ask(&self, key: &Key) -> io::Result<()> {
        match self.resting.contains_key(key) {
            true => Err(no_answer()),
            false => Ok(()),
        }
    }

    fn take(&mut self) -> io::Result<Reader> {
        let reader = match self.idle.pop() {
            Some(reader) => reader,
            None if self.asked + self.silent.len() >= MOST => return Err(no_answer()),
            None => self.start()?,
        };
        self.asked += 1;
        Ok(reader)
    }

    fn start(&mut self) -> io::Result<Reader> {
        let (_, starter) = self.starter.as_ref().ok_or(io::ErrorKind::NotFound)?;
        send(starter, b"start", None)?;
        if !is_readable(starter, BUSY) {
            return Err(no_answer());
        }
        let (said, socket) = receive(starter)?;
        let said = answer_from_bytes(&said)?;
        let pid = said.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        let pid = NixPid::from_raw(i32::from_ne_bytes(*pid));
        let socket = socket.ok_or(io::ErrorKind::InvalidData)?;
        // (It waits for a question, so it is there.)
        let process = pidfd_open(pid)?;
        self.pids.insert(pid.as_raw());
        Ok(Reader {
            pid,
            process,
            socket,
        })
    }

    fn give_back(&mut self, reader: Reader) {
        match self.idle.len() < KEPT {
            true => self.idle.push(reader),
            false => drop(self.pids.remove(&reader.pid.as_raw())),
        }
    }

    /// Counts the time that an answer took; what has taken too much of it rests.
    fn charge(&mut self, key: &Key, took: Duration) {
        // Nobody can make a disk slow for one file.
        if matches!(key, Key::File(_)) {
            return;
        }
        if self.taken.len() >= REMEMBERED {
            self.taken.clear();
        }
        let fresh = (Instant::now(), Duration::ZERO);
        let (since, time) = self.taken.entry(key.clone()).or_insert(fresh);
        if since.elapsed() >= REST {
            (*since, *time) = fresh;
        }
        *time += took;
        let most = MOST_TIME / (1 + self.resting.len() as u32);
        if *time >= most {
            self.taken.remove(key);
            self.rest(key);
        }
    }

    fn rest(&mut self, key: &Key) {
        if self.resting.len() >= REMEMBERED {
            self.resting.clear();
        }
        tracing::warn!(?key, "a file system does not answer in time");
        self.resting.insert(key.clone(), Instant::now() + REST);
    }
}

impl Reader {
    /// Its answer, or why it cannot answer; `None` if that comes too late.
    fn ask(
        &self,
        asked: &Asked<'_>,
        with: Option<&File>,
        patience: Duration,
    ) -> Option<io::Result<Answer>> {
        let began = Instant::now();
        if let Err(e) = send(&self.socket, &asked.to_bytes(), with.map(File::as_fd)) {
            return Some(Err(e));
        }
        while !is_readable(&self.socket, LOOK.min(patience)) {
            let waited = began.elapsed();
            if waited >= BUSY || waited >= patience && self.is_blocked() {
                return None;
            }
        }
        let said = receive(&self.socket);
        Some(said.map(|(bytes, found)| (answer_from_bytes(&bytes), found)))
    }

    /// Ends it, unless it waits for something that no signal interrupts.
    fn kill(self) {
        let process = self.process.as_raw_fd();
        // SAFETY: the call takes no pointer but a null one.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, libc::SIGKILL, 0, 0) };
    }

    /// Whether it has answered or ended.
    fn has_said(&self) -> bool {
        is_readable(&self.socket, Duration::ZERO)
    }

    /// Whether it waits in the kernel. (It does not when it has no processor.)
    fn is_blocked(&self) -> bool {
        let stat = proc_text::read(&format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, state)| !state.starts_with('R'))
    }
}

fn pidfd_open(pid: NixPid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    match fd {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_readable(socket: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
}
