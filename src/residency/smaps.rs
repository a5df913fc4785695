//! `/proc/PID/smaps`: the kernel's figures for each mapping, one mapping at a time, so that the memory
//! this takes does not grow with their number.
//!
//! Newlines in names are escaped by the kernel, so a line cannot be forged. What is not known (fields
//! of later kernels) is passed over; a known field of another form is an error.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::AddAssign;

use serde::Serialize;

use super::classify::Classifier;
use super::error::{Error, Result};
use super::proc_maps;
use super::throttle::ThrottledFile;
use super::vma::Vma;
use crate::event::Pid;

/// Longest line that is looked at, in bytes; a path has at most 4 KiB, escaped at most 16. What is
/// beyond is passed over.
const LONGEST: u64 = 64 << 10;
/// Mappings that are classified together.
const BATCH: usize = 512;
/// How much is read from the kernel at a time, in bytes.
const READ: usize = 64 << 10;

/// The kernel's figures for one mapping, or in `smaps_rollup` for all of them, in bytes.
///
/// `Pss` and `SwapPss` are rounded down to KiB for each mapping, so that their sum is up to 1 KiB a
/// mapping below that of `smaps_rollup`; all others are whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// `Rss`: resident pages, without hugetlb.
    pub rss: u64,
    /// `Pss`: the same, each page divided by the number of its users.
    pub pss: u64,
    /// `Private_Clean`: mapped by this process alone, as it is in the file.
    pub private_clean: u64,
    /// `Private_Dirty`: mapped by this process alone, and changed.
    pub private_dirty: u64,
    /// `Shared_Clean`: mapped by several, as it is in the file.
    pub shared_clean: u64,
    /// `Shared_Dirty`: mapped by several, and changed.
    pub shared_dirty: u64,
    /// `Anonymous`: the part of `Rss` that belongs to no file.
    pub anonymous: u64,
    /// `AnonHugePages`: the part of `Anonymous` that is mapped by huge page table entries.
    pub anon_huge: u64,
    /// `Swap`: anonymous memory swapped out, and from Linux 4.9 on shmem swapped out within the
    /// mapping.
    pub swap: u64,
    /// `SwapPss`: the same, each page divided by the number of its users.
    pub swap_pss: u64,
    /// `Private_Hugetlb + Shared_Hugetlb`; no part of `Rss`.
    pub hugetlb: u64,
}

impl Figures {
    fn slot(&mut self, key: &[u8]) -> Option<&mut u64> {
        Some(match key {
            b"Rss" => &mut self.rss,
            b"Pss" => &mut self.pss,
            b"Private_Clean" => &mut self.private_clean,
            b"Private_Dirty" => &mut self.private_dirty,
            b"Shared_Clean" => &mut self.shared_clean,
            b"Shared_Dirty" => &mut self.shared_dirty,
            b"Anonymous" => &mut self.anonymous,
            b"AnonHugePages" => &mut self.anon_huge,
            b"Swap" => &mut self.swap,
            b"SwapPss" => &mut self.swap_pss,
            b"Private_Hugetlb" | b"Shared_Hugetlb" => &mut self.hugetlb,
            _ => return None,
        })
    }

    /// Adds the line `KEY: N kB` to its figure. A line of a key that is not known is passed over.
    /// `Err` with the line where a known key's value is of another form.
    pub(super) fn take<'a>(&mut self, line: &'a [u8]) -> std::result::Result<(), &'a [u8]> {
        let Some((key, value)) = key_value(line) else {
            return Ok(());
        };
        let Some(slot) = self.slot(key) else {
            return Ok(());
        };
        let value = std::str::from_utf8(value).ok().and_then(kib);
        *slot = slot.saturating_add(value.ok_or(line)?);
        Ok(())
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, o: Figures) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.rss, o.rss);
        add(&mut self.pss, o.pss);
        add(&mut self.private_clean, o.private_clean);
        add(&mut self.private_dirty, o.private_dirty);
        add(&mut self.shared_clean, o.shared_clean);
        add(&mut self.shared_dirty, o.shared_dirty);
        add(&mut self.anonymous, o.anonymous);
        add(&mut self.anon_huge, o.anon_huge);
        add(&mut self.swap, o.swap);
        add(&mut self.swap_pss, o.swap_pss);
        add(&mut self.hugetlb, o.hugetlb);
    }
}

/// `N kB` in bytes.
pub(super) fn kib(text: &str) -> Option<u64> {
    let number = text.trim().strip_suffix("kB")?.trim_end();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// A field's key and the rest of its line; `None` for a mapping's first line, whose first word has no
/// colon at its end.
fn key_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let word = line.split(|b| *b == b' ').next()?;
    let key = word.strip_suffix(b":")?;
    Some((key, &line[word.len()..]))
}

/// One mapping with its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The mapping.
    pub vma: Vma,
    /// The kernel's figures for it.
    pub figures: Figures,
    /// Whether it grows downwards on access (`gd` of `VmFlags`), as stacks do.
    pub grows_down: bool,
    /// Whether it has guard pages within (`gu` of `VmFlags`, Linux 6.14).
    pub guarded: bool,
}

/// Calls `each` for every mapping of a process, in address order, each with its backing found out.
///
/// # Errors
/// [`Error::Gone`] for a process that has ended, a zombie or a kernel thread; [`Error::Denied`]
/// without the right to trace it; [`Error::Malformed`] for text that is not of the documented form. A
/// process that ends while it is read leaves the rest out, without an error.
pub fn read(pid: Pid, classifier: &mut Classifier, each: &mut dyn FnMut(Region)) -> Result<()> {
    let path = format!("/proc/{pid}/smaps");
    let file = ThrottledFile::open(&path).map_err(|e| Error::from_io(pid, &path, e))?;
    parse_all(pid, BufReader::with_capacity(READ, file), classifier, each)
}

/// The same of the file's text.
pub(super) fn parse_all(
    pid: Pid,
    text: impl BufRead,
    classifier: &mut Classifier,
    each: &mut dyn FnMut(Region),
) -> Result<()> {
    let path = format!("/proc/{pid}/smaps");
    let mut batch: Vec<Region> = Vec::with_capacity(BATCH);
    let mut some = false;
    let mut pass_on = |batch: &mut Vec<Region>| {
        classifier.classify(pid, batch.iter_mut().map(|r| &mut r.vma));
        batch.drain(..).for_each(&mut *each);
    };
    let parsed = parse(text, &mut |region| {
        some = true;
        batch.push(region);
        if batch.len() == BATCH {
            pass_on(&mut batch);
        }
    });
    match parsed {
        Ok(()) if !some => return Err(Error::Gone(pid)),
        Ok(()) => {}
        Err(Failure::Io(e)) => return Err(Error::from_io(pid, path, e)),
        Err(Failure::Line(line)) => return Err(Error::malformed(path, &line)),
    }
    pass_on(&mut batch);
    Ok(())
}

/// Why a text could not be parsed.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Line(Vec<u8>),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Io(e)
    }
}

/// Calls `each` for every mapping of a text.
fn parse(mut from: impl BufRead, each: &mut dyn FnMut(Region)) -> std::result::Result<(), Failure> {
    let mut line = Vec::new();
    let mut open: Option<Region> = None;
    while next_line(&mut from, &mut line)? {
        if line.is_empty() {
            continue;
        }
        if key_value(&line).is_none() {
            let vma = proc_maps::parse_line(&line).ok_or_else(|| Failure::Line(line.clone()))?;
            let fresh = Region {
                vma,
                figures: Figures::default(),
                grows_down: false,
                guarded: false,
            };
            open.replace(fresh).into_iter().for_each(&mut *each);
        } else if let Some(region) = &mut open {
            let taken = region.figures.take(&line);
            taken.map_err(|line| Failure::Line(line.to_owned()))?;
            take_flags(&line, region);
        } else {
            return Err(Failure::Line(line));
        }
    }
    open.into_iter().for_each(each);
    Ok(())
}

fn take_flags(line: &[u8], region: &mut Region) {
    let Some(flags) = line.strip_prefix(b"VmFlags:") else {
        return;
    };
    for flag in flags.split(|b| *b == b' ') {
        match flag {
            b"gd" => region.grows_down = true,
            b"gu" => region.guarded = true,
            _ => {}
        }
    }
}

/// Reads the next line without its newline, cut to [`LONGEST`]; false at the end.
fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let n = from.by_ref().take(LONGEST).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if n as u64 == LONGEST {
        from.skip_until(b'\n')?;
    }
    Ok(n > 0)
}

#[cfg(test)]
mod tests;
