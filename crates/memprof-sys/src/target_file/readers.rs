//! Sends requests to readers, and waits for each reply only a limited time.
//!
//! A reader that does not reply in time is set aside as silent, and the key of its request rests: further requests with this key
//! fail at once. The key is tried again once the reader replies or exits, otherwise after [`REST`]. The number of silent readers is
//! limited, and each shortens the next wait, so any number of unresponsive file systems costs only seconds in total.

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
use crate::proc_dir;
use crate::procfs::Stat;

/// Time to wait for a reply about a server's device, a directory, or a file on a local disk. A busy disk takes a second for a page.
const PATIENCE_DEVICE: Duration = Duration::from_secs(1);
const PATIENCE_DIRECTORY: Duration = Duration::from_secs(2);
const PATIENCE_FILE: Duration = Duration::from_secs(10);
/// Maximum time to wait for a reader that is not blocked. On a busy machine, a reader may get no CPU time for a while.
const BUSY: Duration = Duration::from_secs(10);
/// Interval at which the state of a reader that has not replied is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Time for which a key rests.
const REST: Duration = Duration::from_secs(30);
/// Maximum total time of the replies for one key per [`REST`]. Many slow replies are as bad as a missing one.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Maximum number of readers, including silent ones.
const MAX_READERS: usize = 24;
/// Number of idle readers to retain.
const KEPT: usize = 2;
/// Maximum number of keys that rest, and of keys with a total time.
const REMEMBERED: usize = 4096;

/// The resource that a request waits for: a device that a server answers for, a file on a local disk (device, inode), a directory
/// in a file tree (identified by its root), or the memory of a process.
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
    /// A pidfd (Linux 5.3), because the process may exit at any time.
    process: OwnedFd,
    socket: OwnedFd,
}

#[derive(Default)]
struct Readers {
    /// The process that starts readers, and the socket to it; `None` if this process reads files itself.
    starter: Option<(NixPid, OwnedFd)>,
    /// True once memprof is about to exit.
    ended: bool,
    /// Number of readers that are serving a request now.
    asked: usize,
    idle: Vec<Reader>,
    /// Readers that have not replied in time, with the key of the request.
    silent: Vec<(Key, Reader)>,
    resting: BTreeMap<Key, Instant>,
    /// Start of the current period of at most [`REST`], and the total time of the replies in it.
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

/// Sets the process that starts readers from now on.
pub(super) fn use_starter(socket: OwnedFd, pid: NixPid) {
    let mut readers = lock();
    readers.pids.insert(pid.as_raw());
    readers.starter = Some((pid, socket));
}

/// Drops all readers and forbids new ones. Returns the process that started them, and the socket to it.
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

/// Whether a process is a reader or the process that starts readers.
pub fn is_reader(pid: Pid) -> bool {
    i32::try_from(pid.0).is_ok_and(|pid| lock().pids.contains(&pid))
}

/// Number of keys (file systems, files, directories, processes) that rest.
pub fn unanswered() -> u64 {
    let mut readers = lock();
    readers.look();
    readers.resting.len() as u64
}

/// Whether a key rests.
pub(super) fn is_backing_off(key: &Key) -> bool {
    let mut readers = lock();
    readers.look();
    readers.resting.contains_key(key)
}

/// Reads at most `buf.len()` bytes. `handle` is the number of a handle (`O_PATH`), `None` if the file is open for reading.
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

/// Reads at most `buf.len()` bytes of a process's file mappings.
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

/// The file system type (`f_type` of `statfs(2)`) of the file that a link of `/proc` leads to.
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
    /// Ends the rest of each key whose reader has replied or exited, or that has rested for [`REST`] and has no silent reader.
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
            None if self.asked + self.silent.len() >= MAX_READERS => return Err(no_answer()),
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
        // The reader exists: it waits for a request.
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

    /// Adds the time of a reply to its key's total. A key whose total is too large rests.
    fn charge(&mut self, key: &Key, took: Duration) {
        // Nobody can slow down a disk for a single file.
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
        let most = MAX_TIME / (1 + self.resting.len() as u32);
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
    /// The reader's reply, or the error that prevents one; `None` if the reply does not arrive in time.
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

    /// Kills the reader; this has no effect while the reader is in an uninterruptible wait.
    fn kill(self) {
        let process = self.process.as_raw_fd();
        // SAFETY: the call takes no pointer but a null one.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, libc::SIGKILL, 0, 0) };
    }

    /// Whether the reader has replied or exited.
    fn has_said(&self) -> bool {
        is_readable(&self.socket, Duration::ZERO)
    }

    /// Whether the reader waits in the kernel, rather than for CPU time.
    fn is_blocked(&self) -> bool {
        !Stat::read(self.pid).is_ok_and(|stat| stat.state() == Some('R'))
    }
}

fn pidfd_open(pid: NixPid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    match fd {
        // SAFETY: the kernel has just created this descriptor, and no other code knows it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_readable(socket: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
}
