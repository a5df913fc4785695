//! The Unix socket of `--listen unix:PATH`: only the server's user can connect, and its file is removed on exit.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use super::listen::BACKLOG;
use memprof_sys::privileges;

/// Maximum time to wait for the lock of the socket's directory, which another server holds only briefly.
const LOCKED: Duration = Duration::from_secs(2);

/// A listening Unix socket; dropping it removes its file.
#[derive(Debug)]
pub(super) struct UnixSocket {
    // Dropped first: while the socket is open, the kernel cannot reuse its inode for another file.
    pub(super) file: SocketFile,
    pub(super) listener: UnixListener,
}

/// The file of a listening socket; dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl UnixSocket {
    /// Listens at this path. An abandoned socket at the path is replaced.
    ///
    /// # Errors
    /// Another file is at the path, or the system's reason.
    pub(super) fn bind(path: &Path) -> io::Result<UnixSocket> {
        // Until it listens, a new socket looks abandoned. And if two servers find an abandoned socket, the second must
        // not remove the socket of the first.
        let _lock = lock(directory(path))?;
        let listener = match bind_at(path) {
            Err(Errno::EADDRINUSE) => {
                check_abandoned(path)?;
                fs::remove_file(path).map_err(|e| {
                    let message =
                        format!("an abandoned socket is there and cannot be removed: {e}");
                    io::Error::new(e.kind(), message)
                })?;
                bind_at(path)?
            }
            bound => bound?,
        };
        let about = fs::symlink_metadata(path)?;
        let file = SocketFile {
            path: path.to_owned(),
            id: (about.dev(), about.ino()),
        };
        Ok(UnixSocket { file, listener })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |about: fs::Metadata| (about.dev(), about.ino()) == self.id;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // If removal fails, the next server replaces the file.
            let _ = privileges::writing_files(|| fs::remove_file(&self.path));
        }
    }
}

/// The remedy if a socket cannot be bound.
pub(super) fn advice(reason: &io::Error, program: &str) -> String {
    let advice = match reason.kind() {
        io::ErrorKind::AddrInUse => {
            return format!(
                "another program, perhaps another {program}, serves it: end that, or choose another with --listen unix:PATH"
            );
        }
        io::ErrorKind::AlreadyExists => {
            "remove the file if nobody needs it, or choose another with --listen unix:PATH"
        }
        io::ErrorKind::NotFound => {
            "make its directory first, or choose another with --listen unix:PATH"
        }
        io::ErrorKind::PermissionDenied => {
            return format!(
                "{program}'s user must be able to make and remove files in its directory: choose another with --listen unix:PATH"
            );
        }
        io::ErrorKind::WouldBlock => {
            "another program holds the lock of its directory: choose another with --listen unix:PATH"
        }
        _ => "choose another path with --listen unix:PATH",
    };
    advice.to_owned()
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn lock(directory: &Path) -> io::Result<Flock<File>> {
    let mut file = File::open(directory)?;
    let end = Instant::now() + LOCKED;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < end => file = back,
            Err((_, e)) => return Err(e.into()),
        }
        sleep(Duration::from_millis(10));
    }
}

fn bind_at(path: &Path) -> Result<UnixListener, Errno> {
    let address = UnixAddr::new(path)?;
    let socket = new_socket()?;
    // The file has the mode of the open socket from its first moment (`unix_bind_bsd()` in net/unix/af_unix.c), so
    // other users can never connect. `umask` would affect all threads.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &address)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket.into())
}

fn new_socket() -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Fails unless the path is a socket that refuses connections.
fn check_abandoned(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let message = "a file that is not a socket is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match connect(new_socket()?.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => Ok(()),
        // The socket is served, but its queue is full; or it is of another type.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(Errno::EADDRINUSE.into()),
        Err(e) => {
            let message =
                format!("a socket is there, and whether it is served cannot be seen: {e}");
            Err(io::Error::new(io::Error::from(e).kind(), message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn refusal(path: &Path) -> (io::ErrorKind, String) {
        let error = UnixSocket::bind(path).unwrap_err();
        (
            error.kind(),
            format!("{error}; {}", advice(&error, "memprof")),
        )
    }

    #[test]
    fn only_its_user_may_connect_and_its_file_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = UnixSocket::bind(&path).unwrap();
        let about = fs::symlink_metadata(&path).unwrap();
        assert_eq!(about.permissions().mode() & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn an_abandoned_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let socket = UnixSocket::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        let (kind, message) = refusal(&path);
        assert_eq!(kind, io::ErrorKind::AddrInUse, "{message}");
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_abandoned_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "kept").unwrap();
        fs::create_dir(at("dir")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
        for name in ["file", "dir", "link"] {
            let (kind, message) = refusal(&at(name));
            assert_eq!(kind, io::ErrorKind::AlreadyExists, "{message}");
            assert!(message.contains("not a socket"), "{message}");
            assert!(fs::symlink_metadata(at(name)).is_ok());
        }
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");
        let _of_another_type = UnixDatagram::bind(at("datagram")).unwrap();
        assert_eq!(refusal(&at("datagram")).0, io::ErrorKind::AddrInUse);
        assert_eq!(refusal(&at("none/s")).0, io::ErrorKind::NotFound);
        assert!(UnixSocket::bind(&at(&"long".repeat(30))).is_err());
    }

    #[test]
    fn a_file_that_took_its_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..20 {
            let socket = UnixSocket::bind(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let other = UnixListener::bind(&path).unwrap();
            drop(socket);
            UnixStream::connect(&path).unwrap();
            drop(other);
            fs::remove_file(&path).unwrap();
        }
    }

    /// Several servers find the same abandoned socket: one serves, and all others get an error.
    #[test]
    fn one_of_many_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let bound: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| UnixSocket::bind(&path)))
                    .collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(bound.iter().filter(|b| b.is_ok()).count(), 1, "{bound:?}");
            UnixStream::connect(&path).unwrap();
        }
    }
}
