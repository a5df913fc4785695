//! Entries of `/proc/PID/pagemap` and flags of `/proc/kpageflags`, one page at a time.
//!
//! Slower than [`ioctl`](super::ioctl), but resolves what the ioctl leaves open: whether a "swapped" entry is really swapped out,
//! and whether an entry without a file is an anonymous page or no page of memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::own_memory;
use super::page::page_size;

/// The page is not anonymous.
const FILE: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;
/// A guard page (Linux 6.15; Linux 6.13 and 6.14 report it only as a marker).
const GUARD: u64 = 1 << 58;
/// Mapped by this process alone, and only once (Linux 4.2). From 6.15 on, the bit may be missing although that is true. If one page
/// table entry maps a huge page, all of its pages have the bit of the first one.
const EXCLUSIVE: u64 = 1 << 56;
/// Page frame number, or swap type (low 5 bits) and offset; zero without CAP_SYS_ADMIN.
const FRAME: u64 = (1 << 55) - 1;

/// The highest of the 32 swap types is a marker, not a page (Linux 5.19): userfaultfd write protection, poison, guard pages. Its
/// offset contains a few flag bits. Older kernels use the number for migration entries, whose offset is a page frame number and
/// never that small.
const MARKER_TYPE: u64 = 31;
const MARKER_BITS: u64 = 0xff;
/// Swap types from this one on are kernel-internal: pages under migration, on a device, or poisoned. The
/// kernel allows at least 23 swap devices.
const FIRST_INTERNAL_TYPE: u64 = 23;

/// The meaning of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing is mapped, or the entry is a marker.
    Nothing,
    /// A page of a file or of shmem with this frame number; 0 if unknown.
    File(u64),
    /// Not a file page: anonymous, a zero page, or no page of memory. A huge zero page may also appear as [`Entry::File`].
    NotFile(u64),
    /// Swapped out.
    Swapped,
    /// Resident and under migration; `true` for a file page.
    Migrating(bool),
}

impl Entry {
    /// Decodes an entry of `/proc/PID/pagemap`.
    pub(super) fn decode(entry: u64) -> Entry {
        let file = entry & FILE != 0;
        let frame = entry & FRAME;
        if entry & PRESENT != 0 {
            return if file {
                Entry::File(frame)
            } else {
                Entry::NotFile(frame)
            };
        }
        if entry & SWAPPED == 0 || entry & GUARD != 0 {
            return Entry::Nothing;
        }
        let (kind, offset) = (frame & 31, frame >> 5);
        if kind == MARKER_TYPE && offset <= MARKER_BITS {
            Entry::Nothing
        } else if kind >= FIRST_INTERNAL_TYPE {
            Entry::Migrating(file)
        } else {
            Entry::Swapped
        }
    }
}

/// Whether no other mapping contains the page with this virtual page number and this entry; `false` where the entry may be wrong.
pub(super) fn is_exclusive(entry: u64, page: u64) -> bool {
    let huge = page_size() / size_of::<u64>() as u64;
    let may_be_huge = (entry & FRAME) % huge == page % huge;
    entry & PRESENT != 0 && entry & EXCLUSIVE != 0 && !may_be_huge
}

/// Whether entries contain frame numbers, which requires CAP_SYS_ADMIN.
pub(super) fn shows_frames() -> bool {
    own_memory::zero_frame(page_size()).is_some()
}

/// Reads entries for the pages from number `first` on; returns the number of entries read, 0 if the
/// address space is gone.
pub(super) fn read_entries(pagemap: &File, first: u64, entries: &mut [u64]) -> io::Result<usize> {
    let bytes = as_bytes(entries);
    let read = loop {
        match pagemap.read_at(bytes, first * 8) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    Ok(read / 8)
}

pub(super) fn as_bytes(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the result covers the same memory for the same lifetime; `u8` needs no alignment and both
    // types accept every bit pattern.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Reads `/proc/kpageflags`.
#[derive(Debug)]
pub(super) struct PageFlags {
    file: File,
    huge_pages: u64,
    /// The huge page looked up last: first frame number, and whether it is the huge zero page.
    last_huge: Option<(u64, bool)>,
    /// Frame number of the zero page.
    zero: Option<u64>,
}

const KPF_ANON: u64 = 1 << 12;
const KPF_SWAPBACKED: u64 = 1 << 14;
const KPF_ZERO_PAGE: u64 = 1 << 24;

impl PageFlags {
    /// Opens the file; needs CAP_SYS_ADMIN. `page` is the page size in bytes.
    pub(super) fn open(page: u64) -> io::Result<PageFlags> {
        let file = File::open("/proc/kpageflags")?;
        let mut flags = PageFlags {
            file,
            huge_pages: huge_page_bytes() / page,
            last_huge: None,
            zero: None,
        };
        flags.zero =
            own_memory::zero_frame(page).filter(|&frame| flags.flags(frame) & KPF_ZERO_PAGE != 0);
        Ok(flags)
    }

    /// Whether frame numbers are readable and the zero page is known. Page flags are useless otherwise.
    pub(super) fn is_usable(&self) -> bool {
        self.zero.is_some()
    }

    /// Flags of a page frame; 0 if there is no such frame.
    fn flags(&self, frame: u64) -> u64 {
        let mut word = [0; 8];
        match self.file.read_exact_at(&mut word, frame * 8) {
            Ok(()) => u64::from_ne_bytes(word),
            Err(_) => 0,
        }
    }

    /// Whether the frame is an anonymous page.
    pub(super) fn is_anon(&self, frame: u64) -> bool {
        frame != 0 && self.flags(frame) & KPF_ANON != 0
    }

    /// Whether the frame, which is not anonymous, is a shmem page. The kernel uses the same flag to count
    /// a page as `RssShmem` or as `RssFile`.
    pub(super) fn is_shmem(&self, frame: u64) -> bool {
        frame != 0 && self.flags(frame) & KPF_SWAPBACKED != 0
    }

    /// Whether the frame mapped at virtual page number `page` is the zero page or part of the huge zero page. Callers must also
    /// check file pages: Linux 6.18 reports the huge zero page as a file page.
    pub(super) fn is_zero(&mut self, frame: u64, page: u64) -> bool {
        if Some(frame) == self.zero {
            return true;
        }
        // A huge page is mapped at its natural alignment, in memory and in the address space.
        if frame == 0 || self.huge_pages == 0 || frame % self.huge_pages != page % self.huge_pages {
            return false;
        }
        let head = frame - frame % self.huge_pages;
        match self.last_huge {
            Some((known, zero)) if known == head => zero,
            _ => {
                let zero = self.flags(head) & KPF_ZERO_PAGE != 0;
                self.last_huge = Some((head, zero));
                zero
            }
        }
    }
}

/// Size of a transparent huge page in bytes; 0 if the kernel has none.
fn huge_page_bytes() -> u64 {
    let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        let swap = |kind: u64, offset: u64| SWAPPED | kind | (offset << 5);
        for (entry, meaning) in [
            (0, Entry::Nothing),
            (PRESENT | 7, Entry::NotFile(7)),
            (PRESENT | FILE | 7, Entry::File(7)),
            (
                PRESENT | (1 << 55) | (1 << 56) | (1 << 57),
                Entry::NotFile(0),
            ),
            (SWAPPED, Entry::Swapped),
            (swap(0, 1), Entry::Swapped),
            (swap(22, 1 << 40), Entry::Swapped),
            (swap(31, 1), Entry::Nothing),
            (swap(31, 4) | GUARD, Entry::Nothing),
            (SWAPPED | GUARD, Entry::Nothing),
            (swap(31, 0x1234), Entry::Migrating(false)),
            (swap(25, 0x1234), Entry::Migrating(false)),
            (swap(25, 0x1234) | FILE, Entry::Migrating(true)),
        ] {
            assert_eq!(Entry::decode(entry), meaning, "{entry:#x}");
        }
    }
}
