//! The reader processes, which open and read files for memprof.
//!
//! One process, the starter, is created before memprof has threads, and only starts readers. So a reader has none of memprof's
//! files and memory. All of these processes are killed when memprof exits; a reader that is waiting for a file server then exits
//! when the server answers.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid, setsid};

use super::message::{Answer, Asked, PART, answer_to_bytes, receive, send};
use super::readers;
use crate::privileges::{self, ThreadRole};

/// Starts the process that starts readers. Without it, this process reads files itself and waits for them. Must be called before
/// this process has a second thread.
///
/// # Errors
/// The kernel refuses a socket or a process.
pub fn start() -> io::Result<()> {
    let (ours, theirs) = pair()?;
    let parent = Pid::this();
    // SAFETY: no other thread could hold a lock in the child.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            readers::use_starter(ours, child);
            Ok(())
        }
        ForkResult::Child => {
            drop(ours);
            let theirs = keep_only(theirs);
            begin(c"memprof-files", parent);
            privileges::reduce(ThreadRole::Files);
            start_readers(&theirs);
            see_readers_end();
            exit()
        }
    }
}

/// Closes all other files. They may include pipes whose reader waits until memprof closes them.
fn keep_only(socket: OwnedFd) -> OwnedFd {
    const KEPT: i32 = 3;
    // SAFETY: this process has no other use of any descriptor. `close_range` exists since Linux 5.9.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..KEPT {
            libc::dup2(null, fd);
        }
        let socket = socket.into_raw_fd();
        if socket != KEPT {
            libc::dup3(socket, KEPT, libc::O_CLOEXEC);
        }
        libc::syscall(libc::SYS_close_range, KEPT + 1, u32::MAX, 0);
        OwnedFd::from_raw_fd(KEPT)
    }
}

fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)
}

/// Detaches this process from memprof's session and from the signals that end or stop memprof. The process is killed when its
/// parent has ended.
fn begin(name: &std::ffi::CStr, parent: Pid) {
    let _ = set_name(name);
    let _ = setsid();
    let _ = set_pdeathsig(Signal::SIGKILL);
    if getppid() != parent {
        exit();
    }
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        // With SIGCHLD ignored, readers do not become zombies.
        Signal::SIGCHLD,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
}

fn exit() -> ! {
    // SAFETY: ends only this process. `_exit` skips the exit handlers, such as flushing buffers, that belong to the parent.
    unsafe { libc::_exit(0) }
}

/// Ends the reader processes, except those that wait for a file server.
pub fn stop() {
    if let Some((socket, starter)) = readers::let_go() {
        drop(socket);
        // The starter exits within a fraction of a second (`see_readers_end`).
        let _ = waitpid(starter, None);
    }
}

/// Waits up to 200 ms for the readers to exit, so that the process that inherits them need not reap them.
fn see_readers_end() {
    let limit = Instant::now() + Duration::from_millis(200);
    // The kernel reaps the readers because SIGCHLD is ignored.
    while matches!(
        waitpid(None, Some(WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::StillAlive)
    ) && Instant::now() < limit
    {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a reader for each packet, and replies with the reader's process id and memprof's end of its socket.
fn start_readers(socket: &OwnedFd) {
    while receive(socket).is_ok() {
        let started = pair().and_then(|(theirs, ours)| {
            let parent = Pid::this();
            // SAFETY: this process has one thread.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => Ok((theirs, child)),
                ForkResult::Child => {
                    drop(theirs);
                    begin(c"memprof-read", parent);
                    serve(&ours);
                    exit()
                }
            }
        });
        let (said, end) = match started {
            Ok((end, child)) => (Ok(child.as_raw().to_ne_bytes().to_vec()), Some(end)),
            Err(e) => (Err(e.into()), None),
        };
        let end = end.as_ref().map(std::os::fd::AsFd::as_fd);
        if send(socket, &answer_to_bytes(&said), end).is_err() {
            return;
        }
    }
}

/// Serves requests until memprof closes its end of the socket.
fn serve(socket: &OwnedFd) {
    let mut last = None;
    while let Ok((bytes, with)) = receive(socket) {
        let (answer, found) = match Asked::from_bytes(&bytes) {
            Some(asked) => answer(&asked, with, &mut last),
            None => (Err(io::ErrorKind::InvalidInput.into()), None),
        };
        let found = found.as_ref().map(std::os::fd::AsFd::as_fd);
        if send(socket, &answer_to_bytes(&answer), found).is_err() {
            return;
        }
    }
}

/// Carries out a request. `last` is the file that was read last, with the number of its handle.
pub(super) fn answer(
    asked: &Asked<'_>,
    with: Option<OwnedFd>,
    last: &mut Option<(u64, File)>,
) -> Answer {
    let with = with.map(File::from);
    match (asked, with) {
        (Asked::Find { flags, path }, root) => match find(root.as_ref(), path, *flags) {
            Ok(found) => (Ok(Vec::new()), Some(found)),
            Err(e) => (Err(e.into()), None),
        },
        (
            Asked::Memory {
                pid,
                address,
                length,
            },
            _,
        ) => (read_memory(*pid, *address, *length), None),
        (_, None) => (Err(io::ErrorKind::InvalidInput.into()), None),
        (
            Asked::Read {
                handle,
                offset,
                length,
            },
            Some(file),
        ) => (read(file, *handle, *offset, *length, last), None),
        (Asked::FileSystem, Some(file)) => (
            file_system(&file).map(|kind| kind.to_ne_bytes().to_vec()),
            None,
        ),
    }
}

fn read(
    file: File,
    handle: Option<u64>,
    offset: u64,
    length: u64,
    last: &mut Option<(u64, File)>,
) -> io::Result<Vec<u8>> {
    let file = match handle {
        None => &last.insert((u64::MAX, file)).1,
        Some(number) => match last {
            Some((known, file)) if *known == number => &*file,
            _ => &last.insert((number, super::reopen(&file)?)).1,
        },
    };
    let mut bytes = vec![0; usize::try_from(length).map_or(PART, |n| n.min(PART))];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Reads memory of a process up to the first page that cannot be read.
fn read_memory(pid: i32, address: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_or(PART, |n| n.min(PART))];
    let from = RemoteIoVec {
        base: usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?,
        len: bytes.len(),
    };
    let mut to = [IoSliceMut::new(&mut bytes)];
    let read = process_vm_readv(Pid::from_raw(pid), &mut to, &[from])?;
    bytes.truncate(read);
    Ok(bytes)
}

fn find(root: Option<&File>, path: &Path, more: i32) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::from_bits_truncate(more);
    match root {
        None => open(path, flags, Mode::empty()),
        Some(root) => {
            // `openat2` exists since Linux 5.6.
            let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
            let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
            openat2(root, &*path, OpenHow::new().flags(flags).resolve(inside))
        }
    }
}

/// The file system type: `f_type` of `fstatfs(2)`.
fn file_system(file: &File) -> io::Result<u64> {
    let mut buffer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and `buffer` has space for the structure that the kernel writes.
    if unsafe { libc::fstatfs(file.as_raw_fd(), buffer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled the whole structure.
    Ok(unsafe { buffer.assume_init() }.f_type as u64)
}
