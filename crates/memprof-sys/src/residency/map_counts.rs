//! How often pages are mapped (`/proc/kpagecount`), by all processes of the machine: with it, a page that several map
//! can be counted once, as in the kernel's proportional share (PSS).

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{Error, Result, denial};
use super::page::{PageKind, PageRun};
use super::pagemap::{self, Entry};
use crate::ids::Addr;

/// Entries of `/proc/PID/pagemap` read at a time: 16 KiB, for 8 MiB of memory in 4 KiB pages.
const ENTRIES: usize = 2048;
/// Entries read at a time at least.
const FEWEST: usize = 64;
/// Counts read at a time at most: pages that are neighbours in a file often are in memory, too.
const COUNTS: usize = 64;

const NO_FRAME: u64 = u64::MAX;
/// Frames whose counts are remembered: 1 MiB.
const REMEMBERED: usize = 1 << 16;

/// Reads how often page frames are mapped.
#[derive(Clone, Debug)]
pub struct MapCounts {
    file: Arc<File>,
    /// Frames and their counts, each in the only place where it may be; empty if nothing is remembered.
    remembered: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl MapCounts {
    /// Opens `/proc/kpagecount`.
    ///
    /// # Errors
    /// [`Error::Denied`] without CAP_SYS_ADMIN, which the frame numbers in `/proc/PID/pagemap` need, too;
    /// [`Error::Unsupported`] if the kernel has no such file (CONFIG_PROC_PAGE_MONITOR).
    pub fn open() -> Result<MapCounts> {
        const PATH: &str = "/proc/kpagecount";
        match File::open(PATH) {
            Ok(file) if pagemap::shows_frames() => Ok(MapCounts {
                file: Arc::new(file),
                remembered: Arc::default(),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::Unsupported {
                what: "/proc/kpagecount, which needs CONFIG_PROC_PAGE_MONITOR=y",
            }),
            Ok(_) => Err(denied(libc::EPERM)),
            Err(e) => Err(denied(e.raw_os_error().unwrap_or(libc::EPERM))),
        }
    }

    /// For one pass over several processes, which looks up the pages that they share once.
    pub fn for_one_pass(&self) -> MapCounts {
        MapCounts {
            file: Arc::clone(&self.file),
            remembered: Arc::new(Mutex::new(vec![(NO_FRAME, 0); REMEMBERED])),
        }
    }
}

fn denied(errno: i32) -> Error {
    Error::Denied {
        what: "how often pages are mapped (/proc/kpagecount)".to_owned(),
        reason: denial(errno),
        remedy: "run memprof as root or with CAP_SYS_ADMIN",
    }
}

/// Splits the runs of a process where the number of mappings of their pages changes.
///
/// The count of a page is read after its frame number: if the kernel moves the page in between, the count is another
/// page's.
pub(super) struct Splitter {
    counts: MapCounts,
    pagemap: Arc<File>,
    /// Bytes of a page.
    page: u64,
    /// Entries of neighbouring pages: `read` of them, from the page with this virtual number on.
    first: u64,
    read: u64,
    entries: Box<[u64]>,
    /// Counts of neighbouring frames: `known` of them, from this frame on.
    frame: u64,
    known: usize,
    neighbours: Box<[u64; COUNTS]>,
}

impl Splitter {
    /// For the process with this pagemap; `page` is the size of a page in bytes.
    pub(super) fn new(counts: MapCounts, pagemap: Arc<File>, page: u64) -> Splitter {
        Splitter {
            counts,
            pagemap,
            page,
            first: 0,
            read: 0,
            entries: vec![0; ENTRIES].into_boxed_slice(),
            frame: 0,
            known: 0,
            neighbours: Box::new([0; COUNTS]),
        }
    }

    /// Passes on the parts of a run, each with its number of mappings.
    ///
    /// # Errors
    /// If the pagemap cannot be read.
    pub(super) fn split(&mut self, run: PageRun, mut found: impl FnMut(PageRun)) -> io::Result<()> {
        // Neither counts in the kernel's proportional share.
        if matches!(run.kind, PageKind::Swap | PageKind::Hugetlb) {
            found(run);
            return Ok(());
        }
        let (mut page, last) = (run.start.0 / self.page, run.end.0 / self.page);
        while page < last {
            let entries = self.read_entries(page, last)?;
            // The process has ended: what the scan found of it stays as it is.
            if entries == 0 {
                found(self.part(run, page..last, NonZeroU32::MIN));
                return Ok(());
            }
            let end = last.min(page + entries);
            while page < end {
                let first = page;
                let maps = self.mapped(first);
                page += 1;
                while page < end && self.mapped(page) == maps {
                    page += 1;
                }
                found(self.part(run, first..page, maps));
            }
        }
        Ok(())
    }

    /// Has the entries of the pages from number `page` on read; returns how many there are. Runs are often short and close
    /// together: a few more than those up to `last` are read.
    fn read_entries(&mut self, page: u64, last: u64) -> io::Result<u64> {
        if (self.first..self.first + self.read).contains(&page) {
            return Ok(self.first + self.read - page);
        }
        let wanted = (last - page).clamp(FEWEST as u64, ENTRIES as u64) as usize;
        self.read = 0;
        let read = pagemap::read_entries(&self.pagemap, page, &mut self.entries[..wanted])?;
        (self.first, self.read) = (page, read as u64);
        Ok(self.read)
    }

    fn part(&self, run: PageRun, pages: Range<u64>, maps: NonZeroU32) -> PageRun {
        PageRun {
            start: Addr(pages.start * self.page),
            end: Addr(pages.end * self.page),
            maps: Some(maps),
            ..run
        }
    }

    /// How often a page is mapped whose entry was read, by its virtual number; at least once, also if it has gone meanwhile.
    fn mapped(&mut self, page: u64) -> NonZeroU32 {
        let entry = self.entries[(page - self.first) as usize];
        if pagemap::is_exclusive(entry, page) {
            return NonZeroU32::MIN;
        }
        match frame_of(entry) {
            Some(frame) => self.count(frame, page),
            None => NonZeroU32::MIN,
        }
    }

    /// The count of a frame, which is that of a page whose entry was read.
    fn count(&mut self, frame: u64, page: u64) -> NonZeroU32 {
        let known = (self.frame..self.frame + self.known as u64).contains(&frame);
        let count = match known {
            true => self.neighbours[(frame - self.frame) as usize],
            false => self.look_up(frame, page),
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
    }

    fn look_up(&mut self, frame: u64, page: u64) -> u64 {
        let mut remembered = self
            .counts
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let place = frame as usize % REMEMBERED;
        if let Some((_, count)) = remembered.get(place).filter(|(known, _)| *known == frame) {
            return *count;
        }
        let entries = &self.entries[(page - self.first) as usize..self.read as usize];
        // Each count takes the kernel as long as a short system call: none is read that is not needed.
        let wanted = entries.iter().take(COUNTS).zip(frame..);
        let wanted = wanted.take_while(|(entry, frame)| frame_of(**entry) == Some(*frame));
        let counts = &mut self.neighbours[..wanted.count()];
        let read = self
            .counts
            .file
            .read_at(pagemap::as_bytes(counts), frame * 8);
        (self.frame, self.known) = (frame, read.unwrap_or(0) / 8);
        for (frame, count) in (frame..).zip(&self.neighbours[..self.known]) {
            if let Some(place) = remembered.get_mut(frame as usize % REMEMBERED) {
                *place = (frame, *count);
            }
        }
        self.neighbours[..self.known].first().copied().unwrap_or(0)
    }
}

/// The frame of a page in memory.
fn frame_of(entry: u64) -> Option<u64> {
    match Entry::decode(entry) {
        Entry::File(frame) | Entry::NotFile(frame) => Some(frame),
        Entry::Nothing | Entry::Swapped | Entry::Migrating(_) => None,
    }
}
