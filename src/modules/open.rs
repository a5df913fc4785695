//! Opens the files behind mappings. They come from the target, so they are not trusted.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::code_mappings::Mapping;
use super::path_of;
use crate::event::Pid;
use crate::residency::Vma;

const DELETED: &[u8] = b" (deleted)";
/// Real images have two or three pages.
const MAX_VDSO: u64 = 1 << 20;

/// A handle to what a path names in a file tree, which can only be looked at (`O_PATH`). Links lead neither out of the tree
/// nor through `/proc/PID/fd`. (openat2: 5.6)
///
/// # Errors
/// There is no such path.
pub(crate) fn look_in_root(root: impl AsFd, path: &Path, more: OFlag) -> nix::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | more)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how).map(File::from)
}

/// Opens a regular file for reading. Rejects anything else before opening it, because opening a device can have
/// effects and opening a FIFO can block.
///
/// # Errors
/// If it cannot be opened or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let refuse = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    if !fs::metadata(path)?.is_file() {
        return Err(refuse());
    }
    // The file may have been replaced since: open without blocking, and check again. The standard library adds
    // O_CLOEXEC.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(refuse())
    }
}

/// Opens the file behind a mapping; `None` if that is impossible.
///
/// `map_files` leads to the file itself, even if it is deleted or in another mount namespace, but needs privileges;
/// the fallback is the path inside the process's root.
pub fn mapped_file(pid: Pid, m: &Mapping) -> Option<File> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end);
    let link = Path::new(&link);
    if let Ok(file) = open_regular(link)
        // The process may have mapped another file there since maps was read. If `stat` shows another device than
        // maps (overlayfs, btrfs), compare the paths.
        && (is_same(&file, m) || fs::read_link(link).is_ok_and(|p| p == path_of(&m.path)))
    {
        return Some(file);
    }
    let path = in_root(pid, &m.path)?;
    open_regular(&path).ok().filter(|file| is_same(file, m))
}

/// Like [`mapped_file`], for a mapping as the residency books have it.
pub(crate) fn file_of(pid: Pid, vma: &Vma) -> Option<File> {
    let mapping = Mapping {
        start: vma.start.0,
        end: vma.end.0,
        offset: vma.file_offset,
        dev: libc::makedev(vma.dev.0, vma.dev.1),
        inode: vma.ino,
        path: vma.name.clone().into_bytes(),
    };
    mapped_file(pid, &mapping)
}

fn is_same(file: &File, m: &Mapping) -> bool {
    file.metadata()
        .is_ok_and(|meta| (meta.dev(), meta.ino()) == (m.dev, m.inode))
}

fn in_root(pid: Pid, path: &[u8]) -> Option<PathBuf> {
    let inside = path.strip_prefix(b"/")?;
    Some(Path::new(&format!("/proc/{pid}/root")).join(path_of(inside)))
}

/// The mapping's path, without the ` (deleted)` that the kernel appends for an unlinked file; a file whose real name
/// ends so keeps it.
pub fn undeleted_path(pid: Pid, m: &Mapping, file: Option<&File>) -> PathBuf {
    let Some(bare) = m.path.strip_suffix(DELETED) else {
        return path_of(&m.path).into();
    };
    let meta = file.and_then(|f| f.metadata().ok());
    let unlinked = meta.as_ref().is_some_and(|m| m.nlink() == 0);
    // A file with another hard link is not unlinked, but the mapped name may still be gone.
    let named_so = !unlinked
        && in_root(pid, &m.path)
            .and_then(|p| fs::metadata(p).ok())
            .is_some_and(|there| {
                meta.is_none_or(|m| (m.dev(), m.ino()) == (there.dev(), there.ino()))
            });
    path_of(if named_so { &m.path } else { bare }).into()
}

/// Copies the vDSO out of a process's memory.
///
/// # Errors
/// If the process has ended or its memory may not be read.
pub fn read_vdso(pid: Pid, m: &Mapping) -> io::Result<Vec<u8>> {
    let size = m.end - m.start;
    if size > MAX_VDSO {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the vDSO is too large",
        ));
    }
    let mut image = vec![0; size as usize];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut image, m.start)?;
    Ok(image)
}

/// Creates an unnamed file in memory with these contents.
///
/// # Errors
/// If the system refuses it.
pub fn in_memory(name: &str, contents: &[u8]) -> io::Result<File> {
    let name = CString::new(Path::new(name).as_os_str().as_bytes())?;
    let mut file = File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?);
    file.write_all(contents)?;
    Ok(file)
}
