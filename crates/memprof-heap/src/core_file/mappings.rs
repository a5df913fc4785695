//! The mappings of a process, from the segments of its core and the list of mapped files.

use std::collections::HashMap;

use super::headers::Segment;
use super::notes::{FileRange, Notes, auxv};
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Backing, Perms, Vma, page_size};

/// First address of the page for old system calls of x86-64, which no process can change.
const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
/// Maximum distance from the end of a program to its `brk` memory, in bytes: the kernel shifts it by at most 1 GiB.
const BRK_SHIFT: u64 = 1 << 30;

/// A mapping, and what the core has of it.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The mapping. The inode number is that of its path among all paths, from 1; the device number says nothing.
    pub vma: Vma,
    /// Offset of its first byte in the core, and number of bytes that the core has; `None` without a segment.
    pub bytes: Option<(u64, u64)>,
}

/// Builds the list of mappings.
pub(super) fn build(segments: &[Segment], notes: &Notes) -> Vec<Mapping> {
    let mut builder = Builder {
        notes,
        inodes: HashMap::new(),
        all: Vec::with_capacity(segments.len()),
    };
    let mut files = notes.files.as_slice();
    for segment in segments {
        let mut at = segment.start;
        while at < segment.end {
            // Mapped files that no segment contains.
            while let Some((file, rest)) = files.split_first()
                && file.end <= at
            {
                files = rest;
            }
            let next = files.first().filter(|file| file.start < segment.end);
            let end = match next {
                Some(file) if file.start <= at => file.end.min(segment.end),
                Some(file) => file.start,
                None => segment.end,
            };
            let file = next.filter(|file| file.start <= at);
            builder.add(at, end, file, Some(segment));
            at = end;
        }
    }
    // Some writers leave out the segments of mapped files whose pages are not in the core.
    let mut covered = segments;
    for file in &notes.files {
        let mut at = file.start;
        while at < file.end {
            while let Some((segment, rest)) = covered.split_first()
                && segment.end <= at
            {
                covered = rest;
            }
            let next = covered.first().filter(|segment| segment.start < file.end);
            let end = next.map_or(file.end, |segment| segment.start.max(at));
            if at < end {
                builder.add(at, end, Some(file), None);
            }
            at = next.map_or(file.end, |segment| segment.end.min(file.end));
        }
    }
    let mut all = builder.all;
    all.sort_by_key(|mapping| mapping.vma.start);
    name_brk(&mut all, notes);
    all
}

struct Builder<'a> {
    notes: &'a Notes,
    inodes: HashMap<&'a str, u64>,
    all: Vec<Mapping>,
}

impl<'a> Builder<'a> {
    /// Adds a mapping: a part of a segment, of a file, or of both.
    fn add(
        &mut self,
        start: u64,
        end: u64,
        file: Option<&'a FileRange>,
        segment: Option<&Segment>,
    ) {
        let mut vma = Vma {
            start: Addr(start),
            end: Addr(end),
            perms: segment.map_or(
                Perms {
                    read: true,
                    ..Perms::default()
                },
                |segment| segment.perms,
            ),
            file_offset: 0,
            dev: (0, 0),
            ino: 0,
            name: String::new(),
            deleted: false,
            backing: Backing::Anon,
        };
        match file {
            Some(file) => {
                let next = self.inodes.len() as u64 + 1;
                vma.ino = *self.inodes.entry(&file.path).or_insert(next);
                vma.dev = (0, 1);
                vma.file_offset = file.offset.saturating_add(start - file.start);
                vma.name.clone_from(&file.path);
                vma.deleted = file.deleted;
                describe_file(&mut vma);
            }
            None => self.describe_anonymous(&mut vma),
        }
        let bytes = segment.map(|segment| {
            let skip = start - segment.start;
            let size = segment.size.saturating_sub(skip).min(end - start);
            (segment.offset.saturating_add(skip), size)
        });
        self.all.push(Mapping { vma, bytes });
    }

    fn describe_anonymous(&self, vma: &mut Vma) {
        let has = |key| {
            let addr = self.notes.auxiliary(key);
            addr.is_some_and(|addr| vma.contains(Addr(addr)))
        };
        let (name, backing) = match () {
            () if has(auxv::VDSO) => ("[vdso]", Backing::Special),
            () if vma.start.0 == VSYSCALL => ("[vsyscall]", Backing::Special),
            () if has(auxv::RANDOM) || has(auxv::EXECFN) => ("[stack]", Backing::Anon),
            () => return,
        };
        vma.name = name.to_owned();
        vma.backing = backing;
    }
}

/// Memory that looks like a file, and is shared between processes or made of huge pages.
fn describe_file(vma: &mut Vma) {
    let starts = |with: &[&str]| with.iter().any(|start| vma.name.starts_with(start));
    if starts(&["/anon_hugepage"]) {
        vma.backing = Backing::Hugetlb;
    } else if vma.deleted && starts(&["/dev/zero", "/memfd:", "/SYSV"]) || starts(&["/dev/shm/"]) {
        vma.backing = Backing::Shmem;
        vma.perms.shared = true;
    } else if starts(&["/dev/", "anon_inode:", "socket:"]) {
        vma.backing = Backing::Device;
    } else {
        vma.backing = Backing::File;
    }
}

/// Names the memory of `brk`, about which a core says nothing: the first anonymous memory behind the program, not adjacent to it.
fn name_brk(all: &mut [Mapping], notes: &Notes) {
    let Some(program) = notes.executable() else {
        return;
    };
    let Some(last) = all.iter().rposition(|m| m.vma.name == program) else {
        return;
    };
    let mut end = all[last].vma.end;
    for Mapping { vma, .. } in &mut all[last + 1..] {
        if vma.ino != 0 || vma.start.0.saturating_sub(end.0) > BRK_SHIFT {
            return;
        }
        if vma.start == end {
            // Zeroed data of the program.
            end = vma.end;
        } else if vma.perms.write && vma.name.is_empty() {
            vma.name = "[heap]".to_owned();
            return;
        }
    }
}

/// Whether a mapping may contain private memory of the process.
pub(super) fn is_private(vma: &Vma) -> bool {
    let backed = matches!(
        vma.backing,
        Backing::Anon | Backing::File | Backing::Hugetlb | Backing::Stacked
    );
    backed && !vma.perms.shared
}

/// Rounds down to a page.
pub(super) fn page_of(at: u64) -> u64 {
    at / page_size() * page_size()
}
