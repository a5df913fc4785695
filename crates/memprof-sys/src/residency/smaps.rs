//! The kernel's figures for each mapping (`/proc/PID/smaps`), reported one mapping at a time, so that memory use does not grow with
//! the number of mappings.
//!
//! The kernel escapes newlines in names, so a name cannot forge a line. Unknown fields (of later
//! kernels) are skipped; a known field of unexpected form is an error.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::AddAssign;

use serde::Serialize;

use super::classify::Classifier;
use super::error::{Error, Result, readable};
use super::proc_maps;
use super::throttle::ThrottledFile;
use super::vma::Vma;
use crate::ids::Pid;
use crate::proc_dir;
use crate::procfs::kib;

/// Maximum length of a parsed line, in bytes; the rest of a longer line is skipped. A path has at most 4 KiB, or 16 KiB escaped.
const LONGEST: u64 = 64 << 10;
/// Number of mappings to classify together.
const BATCH: usize = 512;
/// Size of one read from the kernel, in bytes.
const READ: usize = 64 << 10;

/// The kernel's figures for one mapping, or in `smaps_rollup` for all of them, in bytes.
///
/// The kernel rounds `Pss` and `SwapPss` down to KiB for each mapping, so their sums are up to 1 KiB per mapping below those of
/// `smaps_rollup`. All other figures are whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SmapsFigures {
    /// `Rss`: resident pages, without hugetlb.
    pub rss: u64,
    /// `Pss`: like `rss`, with each page divided by the number of its mappings.
    pub pss: u64,
    /// `Private_Clean`: mapped by this process alone, unmodified.
    pub private_clean: u64,
    /// `Private_Dirty`: mapped by this process alone, modified.
    pub private_dirty: u64,
    /// `Shared_Clean`: mapped by several processes, unmodified.
    pub shared_clean: u64,
    /// `Shared_Dirty`: mapped by several processes, modified.
    pub shared_dirty: u64,
    /// `Anonymous`: the part of `Rss` that belongs to no file.
    pub anonymous: u64,
    /// `AnonHugePages`: the part of `Anonymous` that is mapped by huge page table entries.
    pub anon_huge: u64,
    /// `Swap`: swapped-out anonymous memory and, from Linux 4.9 on, swapped-out shmem of the mapping.
    pub swap: u64,
    /// `SwapPss`: like `swap`, with each page divided by the number of its users.
    pub swap_pss: u64,
    /// `Private_Hugetlb + Shared_Hugetlb`; not part of `Rss`.
    pub hugetlb: u64,
}

impl SmapsFigures {
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

    /// Adds the value of a line `KEY: N kB` to the figure; skips a line with an unknown key. `Err` with the line if the value of a
    /// known key has another form.
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

impl AddAssign for SmapsFigures {
    fn add_assign(&mut self, o: SmapsFigures) {
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

/// A field's key and the rest of its line; `None` for the first line of a mapping, whose first word does
/// not end in a colon.
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
    pub figures: SmapsFigures,
    /// Whether the mapping grows downwards on access, like a stack (`gd` of `VmFlags`).
    pub grows_down: bool,
    /// Whether the mapping contains guard pages (`gu` of `VmFlags`, Linux 6.14).
    pub guarded: bool,
    /// Treatment of the mapping's private pages in a forked child.
    pub at_fork: AtFork,
}

/// Treatment of a mapping's private pages in a forked child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtFork {
    /// The child has all pages, copy-on-write.
    #[default]
    Shared,
    /// The child does not have the mapping: `MADV_DONTFORK` (`dc` of `VmFlags`).
    LeftOut,
    /// The child's pages are zero: `MADV_WIPEONFORK` (`wf` of `VmFlags`, Linux 4.14).
    Wiped,
}

/// Calls `each` for every mapping of a process, in address order, with its backing determined.
///
/// # Errors
/// [`Error::Held`]; [`Error::Gone`] for a process that has ended, a zombie or a kernel thread; [`Error::Denied`] without the right
/// to trace the process; [`Error::Malformed`] for text that does not match the documented format.
/// If the process ends during the read, the remaining mappings are missing, without an error.
pub fn read(pid: Pid, classifier: &mut Classifier, each: &mut dyn FnMut(Region)) -> Result<()> {
    readable(pid)?;
    let file = ThrottledFile::open(pid, "smaps");
    let file = file.map_err(|e| Error::from_io(pid, proc_dir::shown(pid, "smaps"), e))?;
    parse_all(pid, BufReader::with_capacity(READ, file), classifier, each)
}

/// Like [`read`], for the file's text.
pub(super) fn parse_all(
    pid: Pid,
    text: impl BufRead,
    classifier: &mut Classifier,
    each: &mut dyn FnMut(Region),
) -> Result<()> {
    let path = proc_dir::shown(pid, "smaps");
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

/// The reason why a text could not be parsed.
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
                figures: SmapsFigures::default(),
                grows_down: false,
                guarded: false,
                at_fork: AtFork::Shared,
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
            b"dc" => region.at_fork = AtFork::LeftOut,
            b"wf" if region.at_fork == AtFork::Shared => region.at_fork = AtFork::Wiped,
            _ => {}
        }
    }
}

/// Reads the next line without its newline, truncated to [`LONGEST`]; false at the end of the file.
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
