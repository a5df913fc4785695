//! A mapping (virtual memory area, VMA) of a process: its address range, permissions and backing.

use crate::ids::Addr;

/// The permissions of a mapping: the second column of `/proc/PID/maps`.
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

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Nothing: zero-filled memory (`malloc`, stacks, the heap, private `/dev/zero`).
    Anon,
    /// A file of tmpfs, which includes memfd, System V shared memory and shared anonymous memory.
    Shmem,
    /// A file of any other file system.
    File,
    /// A file of a file system that maps pages of another one (overlay, FUSE). Only the page flags show
    /// whether its pages are shmem.
    Stacked,
    /// A file of hugetlbfs.
    Hugetlb,
    /// A character device, a pseudo file, or a DAX file. Its pages may have no `struct page`, and the page
    /// table alone does not distinguish them from anonymous pages.
    Device,
    /// A mapping that the kernel created: `[vdso]`, `[vvar]`, `[uprobes]`, …
    Special,
}

/// How a mapping's pages are accounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VmaKind {
    /// Private: anonymous memory, or a private mapping of a file (including tmpfs).
    Private,
    /// A shared mapping of shmem.
    Shmem,
    /// A shared mapping of a file.
    File,
    /// Huge pages of hugetlbfs, private or shared; the kernel does not count them as RSS.
    Hugetlb,
    /// A device.
    Device,
    /// A mapping that the kernel created.
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
    /// Device number (major, minor) of the file system; (0, 0) without a file.
    pub dev: (u32, u32),
    /// Inode number; 0 without a file.
    pub ino: u64,
    /// The path (newlines decoded, without ` (deleted)`), `[heap]`, `[stack]`, `[anon:…]`, or empty.
    pub name: String,
    /// Whether the kernel marked the path ` (deleted)`; always true for memfd and shared anonymous memory.
    pub deleted: bool,
    /// What backs the mapping.
    pub backing: Backing,
}

impl Vma {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the mapping covers no address. The kernel never lists such a mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the mapping contains `addr`.
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

    /// Whether the mapping has a file, so that `/proc/PID/map_files` may have an entry for it.
    pub(super) fn has_file(&self) -> bool {
        self.dev != (0, 0) || self.ino != 0 || self.name.starts_with('/')
    }

    /// Whether this is the `[vsyscall]` page, which lies in the kernel's half of the address space and has
    /// no entry in the process's page table.
    pub(super) fn is_vsyscall(&self) -> bool {
        self.name == "[vsyscall]"
    }
}
