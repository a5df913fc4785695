//! The mappings of a process: `/proc/PID/maps`, parsed.
//!
//! Parsing is text only. What kind of file lies behind a mapping the text does not say; that is
//! found out by [`classify`](super::classify).

use std::io::Read;

use super::classify::Classifier;
use super::courtesy::CourteousFile;
use super::error::{Error, Result};
use crate::event::{Addr, Pid};

/// What a mapping may be used for: the second column of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perms {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// Shared (`MAP_SHARED`) rather than copy-on-write.
    pub shared: bool,
}

impl std::fmt::Display for Perms {
    /// As `/proc/PID/maps` shows it: `rw-p`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Perms {
            read,
            write,
            exec,
            shared,
        } = *self;
        let parts = [(read, "r"), (write, "w"), (exec, "x")];
        for (set, letter) in parts {
            f.write_str(if set { letter } else { "-" })?;
        }
        f.write_str(if shared { "s" } else { "p" })
    }
}

/// What lies behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Nothing: zero-filled memory (`malloc`, stacks, the heap, private `/dev/zero`).
    Anon,
    /// A file of tmpfs, which includes memfd, System V shared memory and shared anonymous memory.
    Shmem,
    /// A file of some other file system.
    File,
    /// A file of a file system that passes pages of another one through (overlay, FUSE): whether its
    /// pages are shmem shows in the page flags only.
    Stacked,
    /// A file of hugetlbfs.
    Hugetlb,
    /// A character device, a pseudo file, or a DAX file: pages may belong to no `struct page`, and the
    /// page table alone does not tell them from anonymous ones.
    Device,
    /// A mapping the kernel made: `[vdso]`, `[vvar]`, `[uprobes]`, …
    Special,
}

/// How a mapping's pages are accounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VmaKind {
    /// Private: anonymous memory, or a private mapping of a file (of tmpfs as well).
    Private,
    /// A shared mapping of shmem.
    Shmem,
    /// A shared mapping of a file.
    File,
    /// Huge pages of hugetlbfs, private or shared; the kernel keeps them apart from RSS.
    Hugetlb,
    /// A device.
    Device,
    /// A mapping the kernel made.
    Special,
}

/// One mapping (virtual memory area) of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: Addr,
    /// First address after it.
    pub end: Addr,
    /// Permissions.
    pub perms: Perms,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Device number (major, minor) of the file system; (0, 0) where there is no file.
    pub dev: (u32, u32),
    /// Inode number; 0 where there is no file.
    pub ino: u64,
    /// The path (newlines decoded, without ` (deleted)`), `[heap]`, `[stack]`, `[anon:…]`, or empty.
    pub name: String,
    /// Whether the kernel marked the path ` (deleted)`; always so for memfd and shared anonymous memory.
    pub deleted: bool,
    /// What lies behind it.
    pub backing: Backing,
}

impl Vma {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether it covers no address; the kernel lists no such mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `addr` lies in it.
    pub fn contains(&self, addr: Addr) -> bool {
        self.start <= addr && addr < self.end
    }

    /// How its pages are accounted.
    pub fn kind(&self) -> VmaKind {
        match self.backing {
            Backing::Hugetlb => VmaKind::Hugetlb,
            Backing::Device => VmaKind::Device,
            Backing::Special => VmaKind::Special,
            Backing::Anon => VmaKind::Private,
            _ if !self.perms.shared => VmaKind::Private,
            Backing::Shmem => VmaKind::Shmem,
            Backing::File | Backing::Stacked => VmaKind::File,
        }
    }

    /// A short name for reports: the base name of the path, `[heap]`, `[anon]`, …
    pub fn label(&self) -> &str {
        if self.name.is_empty() {
            return "[anon]";
        }
        if self.name.starts_with('[') {
            return &self.name;
        }
        match self.name.rsplit('/').next() {
            Some(base) if !base.is_empty() => base,
            _ => &self.name,
        }
    }

    /// Whether it has a file, so that `/proc/PID/map_files` may have an entry for it.
    pub(super) fn has_file(&self) -> bool {
        self.dev != (0, 0) || self.ino != 0 || self.name.starts_with('/')
    }

    /// The `[vsyscall]` page lies in the kernel's half of the address space and has no page table entry
    /// of the process.
    pub(super) fn is_vsyscall(&self) -> bool {
        self.name == "[vsyscall]"
    }
}

/// Reads the mappings of `pid`, in address order, each with its [`Backing`] found out.
///
/// # Errors
/// [`Error::Gone`] for a process that has ended, a zombie or a kernel thread; [`Error::Denied`]
/// without the right to trace it; [`Error::Malformed`] for text that is not of the documented form.
pub fn read(pid: Pid, classifier: &mut Classifier) -> Result<Vec<Vma>> {
    Ok(Foreseen::read(pid, classifier)?.vmas)
}

/// The mappings of a process, read before it stands still, so that little is left to do then.
#[derive(Debug)]
pub struct Foreseen {
    pid: Pid,
    text: Vec<u8>,
    vmas: Vec<Vma>,
}

impl Foreseen {
    /// Reads them.
    ///
    /// # Errors
    /// As for [`read`].
    pub fn read(pid: Pid, classifier: &mut Classifier) -> Result<Foreseen> {
        let text = text(pid, |path| CourteousFile::open(path))?;
        let mut vmas = parse(&text)?;
        classifier.classify(pid, &mut vmas);
        Ok(Foreseen { pid, text, vmas })
    }

    /// Reads them again, at once; what has not changed is not parsed anew.
    ///
    /// # Errors
    /// As for [`read`].
    pub fn read_again(self, classifier: &mut Classifier) -> Result<Vec<Vma>> {
        let now = text(self.pid, |path| std::fs::File::open(path))?;
        if now == self.text {
            return Ok(self.vmas);
        }
        let mut vmas = parse(&now)?;
        classifier.classify(self.pid, &mut vmas);
        Ok(vmas)
    }
}

fn text<F: Read>(pid: Pid, open: impl FnOnce(&str) -> std::io::Result<F>) -> Result<Vec<u8>> {
    let path = format!("/proc/{pid}/maps");
    let mut text = Vec::new();
    open(&path)
        .and_then(|mut file| file.read_to_end(&mut text))
        .map_err(|e| Error::from_io(pid, path, e))?;
    if text.is_empty() {
        return Err(Error::Gone(pid));
    }
    Ok(text)
}

/// Parses the text of `/proc/PID/maps`. Mappings of files come out as [`Backing::File`].
///
/// A path that itself ends in ` (deleted)` or contains a backslash followed by `012` cannot be told
/// from what the kernel writes for a deleted file or a newline; it is read as the latter.
///
/// # Errors
/// [`Error::Malformed`] with the line.
pub fn parse(text: &[u8]) -> Result<Vec<Vma>> {
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_line(line).ok_or_else(|| Error::malformed("/proc/PID/maps", line)))
        .collect()
}

/// Parses one line, without its newline.
pub(super) fn parse_line(line: &[u8]) -> Option<Vma> {
    let (range, rest) = field(line)?;
    let (perms, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (dev, rest) = field(rest)?;
    let (ino, rest) = field(rest).unwrap_or((rest, b""));
    let (start, end) = pair(range, '-')?;
    let (major, minor) = pair(dev, ':')?;
    let (name, deleted) = decode_name(rest.trim_ascii_start());
    let mut vma = Vma {
        start: Addr(start),
        end: Addr(end),
        perms: parse_perms(perms)?,
        file_offset: hex(offset)?,
        dev: (major.try_into().ok()?, minor.try_into().ok()?),
        ino: std::str::from_utf8(ino).ok()?.parse().ok()?,
        name,
        deleted,
        backing: Backing::Anon,
    };
    vma.backing = textual_backing(&vma);
    (start < end).then_some(vma)
}

/// The first space-separated field and what follows the space.
fn field(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&b| b == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

fn hex(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with('+') {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

fn pair(text: &[u8], separator: char) -> Option<(u64, u64)> {
    let at = text.iter().position(|&b| b == separator as u8)?;
    Some((hex(&text[..at])?, hex(&text[at + 1..])?))
}

fn parse_perms(text: &[u8]) -> Option<Perms> {
    let [read, write, exec, shared, ..] = *text else {
        return None;
    };
    if !matches!(shared, b's' | b'p') {
        return None;
    }
    Some(Perms {
        read: read == b'r',
        write: write == b'w',
        exec: exec == b'x',
        shared: shared == b's',
    })
}

/// The kernel escapes newlines only, as `\012`, and appends ` (deleted)` to unlinked paths.
fn decode_name(raw: &[u8]) -> (String, bool) {
    const DELETED: &str = " (deleted)";
    let name = String::from_utf8_lossy(raw).replace("\\012", "\n");
    match name.strip_suffix(DELETED) {
        Some(path) if name.starts_with('/') => (path.to_owned(), true),
        _ => (name, false),
    }
}

fn textual_backing(vma: &Vma) -> Backing {
    if vma.has_file() {
        return Backing::File;
    }
    let anonymous = ["[heap]", "[anon:", "[stack"];
    if vma.name.is_empty() || anonymous.iter().any(|p| vma.name.starts_with(p)) {
        Backing::Anon
    } else {
        Backing::Special
    }
}

#[cfg(test)]
mod tests;
