//! The mappings of a process, parsed from `/proc/PID/maps`.
//!
//! The text does not contain the kind of file that backs a mapping; `classify` determines it.

use std::io::Read;

use super::classify::Classifier;
use super::error::{Error, Result};
use super::throttle::ThrottledFile;
use super::vma::{Backing, Perms, Vma};
use crate::ids::{Addr, Pid};
use crate::proc_dir;

/// Reads the mappings of `pid`, in address order, each with its [`Backing`] determined.
///
/// # Errors
/// [`Error::Gone`] for a process that has ended, a zombie or a kernel thread; [`Error::Denied`] without the right to trace the
/// process; [`Error::Malformed`] for text that does not match the documented format.
pub fn read(pid: Pid, classifier: &mut Classifier) -> Result<Vec<Vma>> {
    Ok(MapsSnapshot::read(pid, classifier)?.vmas)
}

/// The first addresses of the mappings of a stopped process.
///
/// # Errors
/// As for [`read`].
pub fn starts(pid: Pid) -> Result<Vec<u64>> {
    let vmas = parse(&text(pid, proc_dir::open)?)?;
    Ok(vmas.iter().map(|vma| vma.start.0).collect())
}

/// The mappings of a process, read before it is stopped to shorten the stop.
#[derive(Debug)]
pub struct MapsSnapshot {
    pid: Pid,
    text: Vec<u8>,
    vmas: Vec<Vma>,
}

impl MapsSnapshot {
    /// Reads the mappings.
    ///
    /// # Errors
    /// As for [`read`].
    pub fn read(pid: Pid, classifier: &mut Classifier) -> Result<MapsSnapshot> {
        let text = text(pid, ThrottledFile::open)?;
        let mut vmas = parse(&text)?;
        classifier.classify(pid, &mut vmas);
        Ok(MapsSnapshot { pid, text, vmas })
    }

    /// The mappings, for a process that is stopped, so that they no longer change.
    pub fn into_vmas(self) -> Vec<Vma> {
        self.vmas
    }

    /// The mappings at the time of reading.
    pub fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// Reads the mappings again without pauses. Unchanged text is not parsed again.
    ///
    /// # Errors
    /// As for [`read`].
    pub fn read_again(self, classifier: &mut Classifier) -> Result<Vec<Vma>> {
        let now = text(self.pid, proc_dir::open)?;
        if now == self.text {
            return Ok(self.vmas);
        }
        let mut vmas = parse(&now)?;
        classifier.classify(self.pid, &mut vmas);
        Ok(vmas)
    }
}

fn text<F: Read>(pid: Pid, open: fn(Pid, &str) -> std::io::Result<F>) -> Result<Vec<u8>> {
    let path = proc_dir::shown(pid, "maps");
    let mut text = Vec::new();
    open(pid, "maps")
        .and_then(|mut file| file.read_to_end(&mut text))
        .map_err(|e| Error::from_io(pid, path, e))?;
    if text.is_empty() {
        return Err(Error::Gone(pid));
    }
    Ok(text)
}

/// Parses the text of `/proc/PID/maps`. All mappings with a file get [`Backing::File`].
///
/// A path that itself ends in ` (deleted)` or contains a backslash followed by `012` looks like the kernel's notation for a deleted
/// file or a newline, and is parsed as such.
///
/// # Errors
/// [`Error::Malformed`] with the line.
///
/// # Examples
///
/// ```
/// use memprof_sys::residency::proc_maps;
///
/// let text = b"55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]\n";
/// let heap = &proc_maps::parse(text)?[0];
/// assert_eq!((heap.len(), heap.label()), (0x21000, "[heap]"));
/// assert_eq!(heap.perms.to_string(), "rw-p");
/// assert!(proc_maps::parse(b"not a mapping\n").is_err());
/// # Ok::<(), memprof_sys::residency::Error>(())
/// ```
pub fn parse(text: &[u8]) -> Result<Vec<Vma>> {
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_line(line).ok_or_else(|| Error::malformed("/proc/PID/maps", line)))
        .collect()
}

/// Parses one line, without its newline.
pub(super) fn parse_line(line: &[u8]) -> Option<Vma> {
    let line = fields(line)?;
    let (name, deleted) = decode_name(line.name);
    let mut vma = Vma {
        start: Addr(line.start),
        end: Addr(line.end),
        perms: line.perms,
        file_offset: line.offset,
        dev: line.dev,
        ino: line.ino,
        name,
        deleted,
        backing: Backing::Anon,
    };
    vma.backing = textual_backing(&vma);
    Some(vma)
}

/// The fields of one line.
pub struct Fields<'a> {
    /// First address.
    pub start: u64,
    /// First address after the mapping; larger than `start`.
    pub end: u64,
    /// Permissions.
    pub perms: Perms,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device number (major, minor).
    pub dev: (u32, u32),
    /// Inode number.
    pub ino: u64,
    /// The name in the kernel's notation: see [`unescape`].
    pub name: &'a [u8],
}

/// Splits one line, without its newline, into its fields.
pub fn fields(line: &[u8]) -> Option<Fields<'_>> {
    let (range, rest) = field(line)?;
    let (perms, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (dev, rest) = field(rest)?;
    let (ino, rest) = field(rest).unwrap_or((rest, b""));
    let (start, end) = pair(range, '-')?;
    let (major, minor) = pair(dev, ':')?;
    let fields = Fields {
        start,
        end,
        perms: parse_perms(perms)?,
        offset: hex(offset)?,
        dev: (major.try_into().ok()?, minor.try_into().ok()?),
        ino: std::str::from_utf8(ino).ok()?.parse().ok()?,
        name: rest.trim_ascii_start(),
    };
    (start < end).then_some(fields)
}

/// Splits off the first space-separated field; returns it and the text after the space.
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

/// Decodes newlines in a name: the kernel writes them as `\012` and escapes nothing else.
pub fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(tail) => {
                out.push(b'\n');
                rest = tail;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The suffix of unlinked paths in the kernel's notation.
pub(super) const DELETED: &str = " (deleted)";

/// Decodes a name; also returns whether the kernel marked it as deleted.
fn decode_name(raw: &[u8]) -> (String, bool) {
    let name = String::from_utf8_lossy(&unescape(raw)).into_owned();
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
