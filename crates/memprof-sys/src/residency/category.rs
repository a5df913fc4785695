//! Categories of mappings, such as heap, stack, library or memfd.

mod find;

use std::fmt;

use serde::{Serialize, Serializer};

pub use find::{Categories, executable, of_all, of_core, settled};

/// The category of a mapping, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// `[heap]`, which grows with `brk`.
    Heap,
    /// A heap of a glibc arena other than the main arena, including the part reserved for growth.
    Arena,
    /// The first thread's stack.
    MainStack,
    /// Another thread's stack: anonymous memory that contains a thread's stack pointer and has guard pages.
    ThreadStack,
    /// The pages without permissions directly below a thread's stack.
    StackGuard,
    /// Anonymous memory that the program named (`PR_SET_VMA_ANON_NAME`).
    NamedAnon,
    /// Other anonymous memory, by its permissions.
    Anon {
        /// Executable: JIT code.
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
    /// The category's name in the HTTP API and in saved profiles.
    pub fn name(self) -> &'static str {
        match self {
            Category::Heap => "heap",
            Category::Arena => "arena",
            Category::MainStack => "main_stack",
            Category::ThreadStack => "thread_stack",
            Category::StackGuard => "stack_guard",
            Category::NamedAnon => "named_anon",
            Category::Anon { exec: true, .. } => "code",
            Category::Anon {
                read: false,
                write: false,
                ..
            } => "reserved",
            Category::Anon { .. } => "anon",
            Category::OwnBinary => "executable",
            Category::Library => "library",
            Category::OtherFile => "file",
            Category::SharedAnon => "shared_anon",
            Category::NamedShared => "named_shared",
            Category::Memfd => "memfd",
            Category::SysV => "sysv",
            Category::Tmpfs => "tmpfs",
            Category::Hugetlb => "hugetlb",
            Category::Device => "device",
            Category::Kernel => "kernel",
        }
    }

    /// The category with this name, for a mapping with these permissions (as in `/proc/PID/maps`).
    pub fn by_name(name: &str, permissions: &str) -> Option<Category> {
        match name {
            "anon" | "reserved" | "code" => Some(Category::anon(permissions)),
            _ => Category::OTHERS.into_iter().find(|c| c.name() == name),
        }
    }

    /// The category of a mapping of which only the name and the permissions are known: a file may belong to another category.
    pub fn guess(name: &str, permissions: &str) -> Category {
        match name {
            "" | "[anon]" => Category::anon(permissions),
            "[heap]" => Category::Heap,
            "[stack]" => Category::MainStack,
            _ if name.starts_with("[anon:") => Category::NamedAnon,
            _ if name.starts_with("[anon_shmem:") => Category::NamedShared,
            _ if name.starts_with('[') => Category::Kernel,
            _ if named_as_library(name) => Category::Library,
            _ => Category::OtherFile,
        }
    }

    fn anon(permissions: &str) -> Category {
        let [read, write, exec] = ['r', 'w', 'x'].map(|bit| permissions.contains(bit));
        Category::Anon { exec, write, read }
    }

    /// All categories except anonymous memory by permissions.
    const OTHERS: [Category; 17] = [
        Category::Heap,
        Category::Arena,
        Category::MainStack,
        Category::ThreadStack,
        Category::StackGuard,
        Category::NamedAnon,
        Category::OwnBinary,
        Category::Library,
        Category::OtherFile,
        Category::SharedAnon,
        Category::NamedShared,
        Category::Memfd,
        Category::SysV,
        Category::Tmpfs,
        Category::Hugetlb,
        Category::Device,
        Category::Kernel,
    ];

    /// Whether mappings of this category are named after files or by the program, so that they are also listed by name.
    pub(crate) fn has_names(self) -> bool {
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
            Category::Arena => "heaps of threads (glibc arenas)",
            Category::MainStack => "stack of the main thread",
            Category::ThreadStack => "stacks of other threads",
            Category::StackGuard => "guard pages of stacks",
            Category::NamedAnon => "anonymous, named",
            Category::Anon { read, write, exec } => {
                let bit = |set: &bool, c| if *set { c } else { '-' };
                let (r, w, x) = (bit(read, 'r'), bit(write, 'w'), bit(exec, 'x'));
                let what = match (read, write, exec) {
                    (false, false, false) => " (reserved)",
                    (_, _, true) => " (JIT code)",
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

/// Whether a file is named like a shared library: `libc.so.6`, `x.so`.
pub(crate) fn named_as_library(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.ends_with(".so") || base.contains(".so.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_category() {
        for category in Category::OTHERS {
            assert_eq!(Category::by_name(category.name(), "rw-p"), Some(category));
        }
        for bits in ["rw-p", "r--p", "---p", "rwxp", "r-xp", "--xp"] {
            let anon = Category::anon(bits);
            assert_eq!(Category::by_name(anon.name(), bits), Some(anon));
            assert_eq!(Category::guess("[anon]", bits), anon);
        }
        assert_eq!(Category::by_name("nonsense", "rw-p"), None);
        assert_eq!(Category::guess("/lib/libc.so.6", "r--p"), Category::Library);
    }
}
