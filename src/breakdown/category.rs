//! What kind of memory a mapping is.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::residency::smaps::Region;
use crate::residency::{Backing, Perms};

/// What kind of memory a mapping is, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// `[heap]`, which grows by `brk`.
    Heap,
    /// The first thread's stack.
    MainStack,
    /// Another thread's stack: anonymous memory that contains a thread's stack pointer and has guard
    /// pages.
    ThreadStack,
    /// The pages without permissions directly below a thread's stack.
    StackGuard,
    /// Anonymous memory that the program named (`PR_SET_VMA_ANON_NAME`).
    NamedAnon,
    /// Other anonymous memory, by its permissions: readable, writable, executable.
    Anon {
        /// Executable: code generated at run time.
        exec: bool,
        /// Writable.
        write: bool,
        /// Readable.
        read: bool,
    },
    /// The process's executable.
    OwnBinary,
    /// Other files that are mapped as code or named like shared libraries.
    Library,
    /// All other files.
    OtherFile,
    /// Shared anonymous memory (`/dev/zero`).
    SharedAnon,
    /// Shared anonymous memory that the program named.
    NamedShared,
    /// memfd.
    Memfd,
    /// System V shared memory.
    SysV,
    /// Files on tmpfs, including POSIX shared memory.
    Tmpfs,
    /// Huge pages of hugetlbfs; not part of RSS.
    Hugetlb,
    /// Devices.
    Device,
    /// The kernel's own mappings: `[vdso]`, `[vvar]`, `[vsyscall]`, …
    Kernel,
}

impl Category {
    /// Whether its mappings are also listed by name.
    pub(super) fn has_names(self) -> bool {
        use Category::*;
        matches!(
            self,
            NamedAnon
                | OwnBinary
                | Library
                | OtherFile
                | NamedShared
                | Memfd
                | SysV
                | Tmpfs
                | Device
        )
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Category::Heap => "heap",
            Category::MainStack => "stack of the main thread",
            Category::ThreadStack => "stacks of other threads",
            Category::StackGuard => "guard pages of stacks",
            Category::NamedAnon => "anonymous, named",
            Category::Anon { read, write, exec } => {
                let bit = |set: &bool, c| if *set { c } else { '-' };
                let (r, w, x) = (bit(read, 'r'), bit(write, 'w'), bit(exec, 'x'));
                let what = match (read, write, exec) {
                    (false, false, false) => " (reserved)",
                    (_, _, true) => " (code made at run time)",
                    _ => "",
                };
                return write!(f, "anonymous {r}{w}{x}{what}");
            }
            Category::OwnBinary => "own binary",
            Category::Library => "shared libraries",
            Category::OtherFile => "other files",
            Category::SharedAnon => "shared anonymous (/dev/zero)",
            Category::NamedShared => "shared anonymous, named",
            Category::Memfd => "memfd",
            Category::SysV => "System V shared memory",
            Category::Tmpfs => "tmpfs and POSIX shared memory",
            Category::Hugetlb => "hugetlb (not in RSS)",
            Category::Device => "devices",
            Category::Kernel => "vdso, vvar, vsyscall",
        })
    }
}

impl Serialize for Category {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The preliminary category of a mapping: [`Category::OtherFile`] for every file but the executable,
/// [`Category::Anon`] for threads' stacks and their guard pages.
pub(super) fn of(region: &Region, executable: Option<&str>) -> Category {
    let vma = &region.vma;
    let name = vma.name.as_str();
    if executable == Some(name) {
        return Category::OwnBinary;
    }
    match vma.backing {
        Backing::Anon => anonymous(name, vma.perms),
        Backing::Shmem => shared(name, vma.deleted),
        Backing::File | Backing::Stacked => Category::OtherFile,
        Backing::Hugetlb => Category::Hugetlb,
        Backing::Device => Category::Device,
        Backing::Special => Category::Kernel,
    }
}

fn anonymous(name: &str, perms: Perms) -> Category {
    match name {
        "[heap]" => Category::Heap,
        "[stack]" => Category::MainStack,
        // Linux 3.4 to 4.4 named thread stacks.
        _ if name.starts_with("[stack:") => Category::ThreadStack,
        _ if name.starts_with("[anon:") => Category::NamedAnon,
        _ => Category::Anon {
            read: perms.read,
            write: perms.write,
            exec: perms.exec,
        },
    }
}

fn shared(name: &str, deleted: bool) -> Category {
    match name {
        "/dev/zero" if deleted => Category::SharedAnon,
        _ if name.starts_with("[anon_shmem:") => Category::NamedShared,
        _ if name.starts_with("/memfd:") && deleted => Category::Memfd,
        _ if name.starts_with("/SYSV") && deleted => Category::SysV,
        _ => Category::Tmpfs,
    }
}

/// Whether a mapping may be a stack if it contains a thread's stack pointer: plain memory that is not
/// a heap, with guard pages below or within it.
pub(super) fn may_be_stack(region: &Region, category: Category, guard_below: bool) -> bool {
    let plain = Category::Anon {
        read: true,
        write: true,
        exec: false,
    };
    let executable = Category::Anon {
        read: true,
        write: true,
        exec: true,
    };
    (category == plain || category == executable)
        && (guard_below || region.guarded || region.grows_down)
}

/// Whether a mapping can be the guard of the mapping above it.
pub(super) fn may_be_guard(category: Category) -> bool {
    category
        == Category::Anon {
            read: false,
            write: false,
            exec: false,
        }
}

/// Whether a file is named like a shared library: `libc.so.6`, `x.so`.
pub(super) fn named_as_library(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.ends_with(".so") || base.contains(".so.")
}
