//! A copy of a process's private memory at one moment.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Result;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::{Error, page_size};

/// Maximum number of bytes per read call. If the process is killed during a call, the kernel frees its memory only
/// afterwards.
const BYTES: u64 = 256 << 10;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// End of the run.
    pub end: u64,
    /// Whether the pages are resident, rather than swapped out.
    pub resident: bool,
}

impl Run {
    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// The copied memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The copied runs, in address order.
    runs: Vec<Run>,
    /// Offset of each run's bytes in `bytes`.
    at: Vec<usize>,
    /// The copied bytes, followed by reserved space.
    bytes: Vec<u8>,
    /// Number of copied bytes.
    used: usize,
    /// Index of the run that the previous lookup found.
    last: Cell<usize>,
    /// Number of bytes that could not be copied.
    unread: u64,
}

impl Memory {
    /// An empty copy with `bytes` bytes reserved. The reserved space is resident, so that copying takes no page faults.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn with_room(bytes: u64) -> io::Result<Memory> {
        let mut memory = Memory::default();
        memory.make_room(bytes)?;
        Ok(memory)
    }

    /// Copies these pages. Leaves out pages that are gone. If the pages do not follow everything copied before, call
    /// [`Memory::sort`] afterwards.
    ///
    /// Does not use `process_vm_readv`, because that pins pages. Before pinning, the kernel replaces pages that a
    /// forked process shares by private copies, in the process that is read (since Linux 5.19, commit a7f226604170).
    /// A child would take as much memory as its parent, and processes forked from a common parent would no longer
    /// share memory.
    ///
    /// # Errors
    /// [`Error::TimeUp`] at `end`; the process has ended or may not be read, or there is not enough memory for the copy.
    pub(crate) fn copy(&mut self, pid: Pid, pages: &[Run], end: Option<Instant>) -> Result<()> {
        let memory = proc_dir::open(pid, "mem")?;
        for piece in pages.iter().flat_map(pieces) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(Error::TimeUp(pid).into());
            }
            self.copy_piece(&memory, piece)?;
        }
        Ok(())
    }

    fn copy_piece(&mut self, memory: &File, mut piece: Run) -> io::Result<()> {
        while piece.len() > 0 {
            let end = piece.start + self.read(memory, &piece)?;
            self.append(Run { end, ..piece });
            piece.start = end;
            if piece.len() > 0 {
                // The next page cannot be read.
                let gone = piece.len().min(page_size());
                self.unread += gone;
                piece.start += gone;
            }
        }
        Ok(())
    }

    /// Reserves `bytes` more bytes.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.grow(self.used + as_len(bytes)?)
    }

    /// Sorts the runs by address. Of runs that overlap, only one is retained.
    pub(crate) fn sort(&mut self) {
        let mut runs: Vec<(Run, usize)> = self.runs.drain(..).zip(self.at.drain(..)).collect();
        runs.sort_by_key(|(run, _)| run.start);
        runs.dedup_by(|(run, _), (before, _)| run.start < before.end);
        (self.runs, self.at) = runs.into_iter().unzip();
        self.last.set(0);
    }

    /// Grows the buffer to `len` bytes, and writes to it so that it is resident.
    fn grow(&mut self, len: usize) -> io::Result<()> {
        static SOME: [u8; 1 << 16] = [1; 1 << 16];
        let more = len.saturating_sub(self.bytes.len());
        self.bytes.try_reserve(more)?;
        in_huge_pages(self.bytes.spare_capacity_mut());
        while self.bytes.len() < len {
            let more = (len - self.bytes.len()).min(SOME.len());
            self.bytes.extend_from_slice(&SOME[..more]);
        }
        Ok(())
    }

    /// Copies a piece to the end of the copied bytes. Returns the number of bytes read.
    fn read(&mut self, memory: &File, piece: &Run) -> io::Result<u64> {
        let (at, end) = (self.used, self.used + as_len(piece.len())?);
        self.grow(end)?;
        let read = match memory.read_at(&mut self.bytes[at..end], piece.start) {
            // The process has released its memory.
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Err(e) if e.raw_os_error() == Some(libc::EIO) => 0,
            read => read?,
        };
        self.used += read;
        Ok(read as u64)
    }

    /// Records a run whose bytes follow those of the previous run.
    fn append(&mut self, run: Run) {
        match self.runs.last_mut() {
            _ if run.len() == 0 => {}
            Some(last) if last.end == run.start && last.resident == run.resident => {
                last.end = run.end;
            }
            last => {
                let before = last.map_or(0, |run| run.len() as usize);
                let at = self.at.last().map_or(0, |at| at + before);
                self.runs.push(run);
                self.at.push(at);
            }
        }
    }

    /// Adds the bytes at an address that is not below the end of what was added before.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn push(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let end = start.checked_add(bytes.len() as u64);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        self.bytes.truncate(self.used);
        self.bytes.try_reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        self.used += bytes.len();
        self.append(Run {
            start,
            end,
            resident: true,
        });
        Ok(())
    }

    /// A synthetic copy from parts, each a first address and its bytes.
    pub(crate) fn synthetic(parts: &[(u64, &[u8])]) -> Memory {
        let mut memory = Memory::default();
        for (start, bytes) in parts {
            let run = Run {
                start: *start,
                end: start + bytes.len() as u64,
                resident: true,
            };
            memory.bytes.extend_from_slice(bytes);
            memory.used += bytes.len();
            memory.append(run);
        }
        memory
    }

    /// The runs that overlap a range, clipped to it.
    pub(crate) fn runs_in(&self, start: u64, end: u64) -> impl Iterator<Item = Run> {
        overlapping(&self.runs, start, end)
    }

    /// The copied 64-bit words of a range, with their addresses.
    pub(crate) fn words_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.runs_in(start, end).flat_map(|run| {
            let bytes = self.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            let words = bytes.as_chunks::<8>().0.iter().enumerate();
            words
                .map(move |(index, word)| (run.start + 8 * index as u64, u64::from_le_bytes(*word)))
        })
    }

    /// Size of the copy, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.used as u64
    }

    /// Number of bytes that could not be copied.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }

    /// The copied bytes from an address to the end of its run.
    pub(crate) fn from(&self, addr: u64) -> Option<&[u8]> {
        let contains = |run: &&Run| run.start <= addr && addr < run.end;
        let mut index = self.last.get();
        if self.runs.get(index).filter(contains).is_none() {
            index = self.runs.partition_point(|run| run.end <= addr);
            self.runs.get(index).filter(contains)?;
            self.last.set(index);
        }
        let run = self.runs[index];
        let (skip, at) = ((addr - run.start) as usize, self.at[index]);
        self.bytes.get(at + skip..at + run.len() as usize)
    }

    /// Prefetches the byte at an address into the CPU cache, ahead of a read.
    pub(crate) fn prefetch(&self, addr: u64) {
        if let Some(byte) = self.from(addr).and_then(<[u8]>::first) {
            prefetch(byte);
        }
    }

    /// The 64-bit word at an address; `None` if it was not copied.
    pub(crate) fn word(&self, addr: u64) -> Option<u64> {
        let bytes = self.from(addr)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// The 32-bit word at an address; `None` if it was not copied.
    pub(crate) fn half(&self, addr: u64) -> Option<u32> {
        let bytes = self.from(addr)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }
}

/// Prefetches a byte into the CPU cache: a search spends most of its time waiting for memory.
pub(super) fn prefetch(byte: &u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, which has no effect visible to a program.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
    }
    let _ = byte;
}

/// The runs that overlap a range, clipped to it. `runs` are in address order.
pub(crate) fn overlapping(runs: &[Run], start: u64, end: u64) -> impl Iterator<Item = Run> {
    let first = runs.partition_point(|run| run.end <= start);
    let from = runs[first..].iter().copied();
    from.take_while(move |run| run.start < end)
        .map(move |run| Run {
            start: run.start.max(start),
            end: run.end.min(end),
            ..run
        })
}

/// Requests huge pages for this memory, which halves the time to fill and search it.
fn in_huge_pages(room: &mut [MaybeUninit<u8>]) {
    let page = page_size() as usize;
    let skip = room.as_ptr().align_offset(page);
    if let Some(room) = room.get_mut(skip..).filter(|room| room.len() >= page) {
        // SAFETY: the range lies in memory that this copy owns, and the advice does not change its contents. Without
        // huge pages, it has no effect.
        unsafe { libc::madvise(room.as_mut_ptr().cast(), room.len(), libc::MADV_HUGEPAGE) };
    }
}

fn as_len(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

/// The run in pieces of at most [`BYTES`].
fn pieces(run: &Run) -> impl Iterator<Item = Run> {
    let run = *run;
    let starts = (run.start..run.end).step_by(BYTES as usize);
    starts.map(move |start| Run {
        start,
        end: run.end.min(start + BYTES),
        ..run
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_within_runs() {
        let first: Vec<u8> = (0..16).collect();
        let memory = Memory::synthetic(&[(0x1000, &first), (0x1010, &[9; 8]), (0x3000, &[7; 8])]);
        assert_eq!(memory.runs.len(), 2);
        assert_eq!(memory.word(0x1008), Some(0x0f0e_0d0c_0b0a_0908));
        assert_eq!(memory.word(0x1010), Some(0x0909_0909_0909_0909));
        assert_eq!(memory.word(0x1012), None);
        assert_eq!(memory.word(0x2000), None);
        assert_eq!(memory.half(0x3004), Some(0x0707_0707));
        let cut: Vec<_> = memory
            .runs_in(0x1004, 0x3004)
            .map(|r| (r.start, r.end))
            .collect();
        assert_eq!(cut, [(0x1004, 0x1018), (0x3000, 0x3004)]);
    }

    /// As when one part is copied from a child, and the other from its parent.
    #[test]
    fn what_was_copied_later_may_lie_before() {
        let parts: [(u64, &[u8]); 4] = [
            (0x3000, &[3; 16]),
            (0x1000, &[1; 8]),
            (0x1008, &[2; 8]),
            (0x3000, &[9; 8]),
        ];
        let mut memory = Memory::synthetic(&parts);
        memory.sort();
        let runs: Vec<_> = memory.runs.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(runs, [(0x1000, 0x1010), (0x3000, 0x3010)]);
        assert_eq!(memory.word(0x1008), Some(0x0202_0202_0202_0202));
        assert_eq!(memory.word(0x3008), Some(0x0303_0303_0303_0303));
    }

    /// Reads this process's own memory, with a page in the middle that cannot be read.
    #[test]
    fn pages_that_are_gone_are_left_out() {
        let page = page_size();
        let memory =
            nix::sys::mman::MapFlags::MAP_PRIVATE | nix::sys::mman::MapFlags::MAP_ANONYMOUS;
        let protection =
            nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        let len = std::num::NonZeroUsize::new(3 * page as usize).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other one.
        let at = unsafe { nix::sys::mman::mmap_anonymous(None, len, protection, memory) }.unwrap();
        // SAFETY: the mapping is three pages long, and nothing else uses it.
        unsafe {
            at.cast::<u8>().as_ptr().write_bytes(5, len.get());
            nix::sys::mman::munmap(at.cast::<u8>().add(page as usize).cast(), page as usize)
                .unwrap();
        }
        let start = at.as_ptr() as u64;
        let run = Run {
            start,
            end: start + 3 * page,
            resident: true,
        };
        let mut copy = Memory::with_room(1).unwrap();
        let own = Pid(std::process::id());
        // A copy that lacks pages because the time was up is not taken for a whole one.
        let late = copy.copy(own, &[run], Some(Instant::now())).unwrap_err();
        assert!(Error::is_time_up(&late), "{late}");
        copy.copy(own, &[run], None).unwrap();
        assert_eq!((copy.len(), copy.unread()), (2 * page, page));
        assert_eq!(copy.from(start).unwrap().len() as u64, page);
        assert_eq!(copy.word(start + 2 * page), Some(0x0505_0505_0505_0505));
        assert_eq!(copy.word(start + page), None);
    }
}
