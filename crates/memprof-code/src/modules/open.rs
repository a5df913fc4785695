//! Opens the files behind mappings. The target chooses these files, so they are not trusted.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::code_mappings::{Mapping, for_each_mapping};
use super::path_of;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::{ThrottledFile, Vma};
use memprof_sys::target_file::{TargetFile, about, find, find_in, root_of};

const DELETED: &[u8] = b" (deleted)";
/// Maximum size of a vDSO image, in bytes; real images have two or three pages.
const MAX_VDSO: u64 = 1 << 20;

/// Opens a regular file for reading. Anything else is rejected before it is opened, because opening a device can have
/// side effects and opening a FIFO can block.
///
/// # Errors
/// The file cannot be opened or is not a regular file, or its file system does not respond.
pub fn open_regular(path: &Path) -> io::Result<TargetFile> {
    // `find` may delegate to reader processes, which may not inspect other processes. This link leads directly to the
    // file, without looking up directories.
    let is_executable = path.starts_with("/proc") && path.ends_with("exe");
    match is_executable {
        true => TargetFile::at_link(path),
        false => TargetFile::of_handle(find(path)?),
    }
}

/// Opens the file behind a mapping; `None` if that is impossible.
///
/// `map_files` leads to the file itself, even if it is deleted or in another mount namespace, but requires privileges.
/// The fallback is the path inside the process's root.
pub fn mapped_file(pid: Pid, m: &Mapping) -> Option<TargetFile> {
    let name = format!("map_files/{:x}-{:x}", m.start, m.end);
    let at_link = |dir: &str| TargetFile::at_link(&Path::new(dir).join(&name));
    if let Ok(file) = proc_dir::with(pid, at_link)
        // The process may have mapped another file there since maps was read. If `stat` reports another device than
        // maps (overlayfs, btrfs), the paths are compared.
        && (is_same(&file, m) || proc_dir::link(pid, &name).is_ok_and(|p| p == path_of(&m.path)))
    {
        return Some(file);
    }
    let handle = find_in(&root_of(pid).ok()?, path_of(&m.path), 0).ok()?;
    let file = TargetFile::of_handle(handle).ok();
    file.filter(|file| is_same(file, m))
}

/// Like [`mapped_file`], for a mapping in the form of `memprof_sys::residency`.
pub fn file_of(pid: Pid, vma: &Vma) -> Option<TargetFile> {
    mapped_file(pid, &vma.into())
}

/// Device and inode number of an executable that `stat` cannot reach, as the process's maps show them.
pub(super) fn mapped_executable(pid: Pid, exe: &Path) -> Option<(u64, u64)> {
    let path = fs::read_link(exe).ok()?;
    let maps = ThrottledFile::open(pid, "maps").ok()?;
    let mut found = None;
    for_each_mapping(BufReader::new(maps), |m| {
        if path_of(&m.path) == path {
            found = Some((m.dev, m.inode));
        }
    })
    .ok()?;
    found
}

fn is_same(file: &TargetFile, m: &Mapping) -> bool {
    file.identity() == (m.dev, m.inode)
}

/// The mapping's path, without the ` (deleted)` that the kernel appends for an unlinked file. A file whose real name
/// has this suffix keeps it.
pub fn undeleted_path(pid: Pid, m: &Mapping, file: Option<&TargetFile>) -> PathBuf {
    let Some(bare) = m.path.strip_suffix(DELETED) else {
        return path_of(&m.path).into();
    };
    let unlinked = file.is_some_and(|file| file.about().is_unlinked());
    // A file with another hard link is not unlinked, but the mapped name may no longer exist.
    let there = || about(&find_in(&root_of(pid).ok()?, path_of(&m.path), 0).ok()?).ok();
    let named_so = !unlinked
        && there().is_some_and(|there| file.is_none_or(|file| file.identity() == there.identity()));
    path_of(if named_so { &m.path } else { bare }).into()
}

/// Copies the vDSO from a process's memory.
///
/// # Errors
/// The process has ended, its memory may not be read, or the image is too large.
pub fn read_vdso(pid: Pid, m: &Mapping) -> io::Result<Vec<u8>> {
    let size = m.end - m.start;
    if size > MAX_VDSO {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the vDSO is too large",
        ));
    }
    let mut image = vec![0; size as usize];
    proc_dir::open(pid, "mem")?.read_exact_at(&mut image, m.start)?;
    Ok(image)
}

/// Creates an unnamed file in memory (memfd) with these contents.
///
/// # Errors
/// The kernel cannot create or write the file.
pub fn in_memory(name: &str, contents: &[u8]) -> io::Result<File> {
    let name = CString::new(Path::new(name).as_os_str().as_bytes())?;
    let mut file = File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?);
    file.write_all(contents)?;
    Ok(file)
}
