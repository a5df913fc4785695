//! Finds the category of each mapping of a process.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::{Category, named_as_library};
use crate::ids::Pid;
use crate::proc_dir;
use crate::residency::classify::named_deleted;
use crate::residency::page::page_size;
use crate::residency::proc_maps::DELETED;
use crate::residency::threads::{self, Threads};
use crate::residency::vma::{Backing, Perms, Vma};

/// The category of a mapping, and the category that it implies for the mapping below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CategoryMatch {
    /// The category. Libraries are [`Category::OtherFile`] until [`settled`].
    pub category: Category,
    /// Whether the mapping below is the guard of this stack.
    pub guard_below: bool,
    /// Number of threads whose stack is in this mapping.
    pub threads: usize,
}

/// Reads a process's memory at an address; returns whether the buffer was filled.
type ReadMemory<'a> = Box<dyn Fn(&mut [u8], u64) -> bool + 'a>;

/// Data about a process, besides its mappings, that the categories depend on.
pub struct Categories<'a> {
    threads: &'a Threads,
    executable: Option<String>,
    memory: ReadMemory<'a>,
}

impl fmt::Debug for Categories<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Categories");
        shown.field("threads", self.threads);
        shown.field("executable", &self.executable);
        shown.finish_non_exhaustive()
    }
}

impl<'a> Categories<'a> {
    /// For a process whose executable has this path.
    pub(crate) fn new(pid: Pid, threads: &'a Threads, executable: Option<String>) -> Self {
        let memory = proc_dir::open(pid, "mem").ok();
        let read = move |bytes: &mut [u8], at| {
            let memory = memory.as_ref();
            memory.is_some_and(|memory| memory.read_exact_at(bytes, at).is_ok())
        };
        Categories {
            threads,
            executable,
            memory: Box::new(read),
        }
    }

    /// The category of a mapping. `below` is the previous mapping with its category; `guarded` returns whether the mapping contains
    /// guard pages.
    pub(crate) fn find(
        &self,
        below: Option<(&Vma, Category)>,
        vma: &Vma,
        guarded: impl FnOnce() -> bool,
    ) -> CategoryMatch {
        let mut found = CategoryMatch {
            category: preliminary(vma, self.executable.as_deref()),
            guard_below: false,
            threads: 0,
        };
        let below = below.filter(|(below, _)| below.end == vma.start);
        match found.category {
            Category::Anon { exec: false, .. } if self.is_arena(below, vma) => {
                found.category = Category::Arena;
            }
            Category::Anon {
                read: true,
                write: true,
                ..
            } => {
                let guard_below = below.is_some_and(|(_, category)| category == RESERVED);
                let threads = self.threads.within(vma.start.0, vma.end.0);
                if threads > 0 && (guard_below || guarded()) {
                    found = CategoryMatch {
                        category: Category::ThreadStack,
                        guard_below,
                        threads,
                    };
                }
            }
            _ => {}
        }
        found
    }

    /// Whether an anonymous mapping is part of an arena's heap.
    ///
    /// A heap starts, at a multiple of its maximum size, with a header; the rest of it is reserved. Other runtimes lay out their
    /// memory in the same way, so the header decides. The header comes from the process, so it can at worst mislabel the mapping.
    fn is_arena(&self, below: Option<(&Vma, Category)>, vma: &Vma) -> bool {
        if !vma.start.0.is_multiple_of(MAX_HEAP) {
            let same = |below: &Vma| below.start.0 / MAX_HEAP == (vma.end.0 - 1) / MAX_HEAP;
            return below.is_some_and(|(below, c)| c == Category::Arena && same(below));
        }
        if vma.len() > MAX_HEAP || !(vma.perms.read && vma.perms.write) {
            return false;
        }
        // `struct heap_info` of glibc's malloc/arena.c, with 64-bit words: the arena, the previous heap, the size, and the part of
        // the heap that was ever made accessible.
        let mut bytes = [0; 32];
        if !(self.memory)(&mut bytes, vma.start.0) {
            return false;
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        let [arena, before, size, accessible] = [0, 1, 2, 3].map(word);
        let in_pages = |bytes: u64| bytes > 0 && bytes.is_multiple_of(page_size());
        // The arena itself follows the header of its first heap.
        let of_first = arena % MAX_HEAP >= bytes.len() as u64 && arena % MAX_HEAP < page_size();
        let is_first = arena / MAX_HEAP == vma.start.0 / MAX_HEAP;
        of_first
            && is_first == (before == 0)
            && before.is_multiple_of(MAX_HEAP)
            && in_pages(size)
            && in_pages(accessible)
            && size <= accessible
            && accessible <= MAX_HEAP
    }
}

/// Maximum time that a report takes to find the stacks of threads, which takes some microseconds for each thread.
const THREADS: Duration = Duration::from_millis(20);

/// `HEAP_MAX_SIZE` of glibc on 64-bit machines, in bytes.
const MAX_HEAP: u64 = 64 << 20;

const RESERVED: Category = Category::Anon {
    exec: false,
    write: false,
    read: false,
};

/// The category of each mapping of a process whose executable has this path. For a process that has ended, threads and arenas are
/// unknown.
pub fn of_all(pid: Pid, vmas: &[Vma], executable: Option<String>) -> Vec<Category> {
    let threads = threads::read_within(pid, THREADS);
    let categories = Categories::new(pid, &threads, executable);
    let pagemap = OnceCell::new();
    let guarded = |vma: &Vma| {
        let open = || proc_dir::open(pid, "pagemap").ok();
        let file: Option<&File> = pagemap.get_or_init(open).as_ref();
        file.is_some_and(|file| is_guard(file, vma.start.0))
    };
    find_all(vmas, &categories, guarded)
}

/// The category of each mapping of a process that is known from its core: from the path of its executable, from its threads' stack
/// pointers, and from its memory, which `read` returns (whether it filled the buffer with the bytes at the address).
pub fn of_core<'a>(
    vmas: &[Vma],
    executable: Option<String>,
    mut pointers: Vec<u64>,
    read: impl Fn(&mut [u8], u64) -> bool + 'a,
) -> Vec<Category> {
    pointers.sort_unstable();
    let threads = Threads {
        count: pointers.len(),
        pointers,
    };
    let categories = Categories {
        threads: &threads,
        executable,
        memory: Box::new(read),
    };
    // Some cores lack the guard pages, which nobody can read.
    find_all(vmas, &categories, |_| true)
}

fn find_all(
    vmas: &[Vma],
    categories: &Categories<'_>,
    guarded: impl Fn(&Vma) -> bool,
) -> Vec<Category> {
    let mut all: Vec<Category> = Vec::with_capacity(vmas.len());
    for (at, vma) in vmas.iter().enumerate() {
        let below = at.checked_sub(1).map(|below| (&vmas[below], all[below]));
        let found = categories.find(below, vma, || guarded(vma));
        if found.guard_below {
            all[at - 1] = Category::StackGuard;
        }
        all.push(found.category);
    }
    let file = |vma: &Vma| (vma.dev, vma.ino);
    let code = vmas.iter().filter(|vma| vma.perms.exec && vma.ino != 0);
    let code: HashSet<_> = code.map(file).collect();
    for (vma, category) in vmas.iter().zip(&mut all) {
        let is_code = code.contains(&file(vma)) || named_as_library(&vma.name);
        *category = settled(*category, is_code);
    }
    all
}

/// Whether the page at an address is a guard page within its mapping (Linux 6.14).
fn is_guard(pagemap: &File, address: u64) -> bool {
    const GUARD: u32 = 58;
    let mut entry = [0; 8];
    let at = address / page_size() * 8;
    let read = pagemap.read_exact_at(&mut entry, at);
    read.is_ok() && u64::from_ne_bytes(entry) >> GUARD & 1 == 1
}

/// The path of a process's executable, as in `maps` but without ` (deleted)`; `None` if the process has ended.
pub fn executable(pid: Pid) -> Option<String> {
    let path = proc_dir::link(pid, "exe").ok()?;
    let path = path.to_string_lossy();
    let bare = path.strip_suffix(DELETED);
    let bare = bare.filter(|bare| !named_deleted(pid, "exe", bare));
    Some(bare.unwrap_or(&path).to_owned())
}

/// The final category: a file with executable mappings is a library.
pub fn settled(category: Category, code: bool) -> Category {
    match category {
        Category::OtherFile if code => Category::Library,
        _ => category,
    }
}

fn preliminary(vma: &Vma, executable: Option<&str>) -> Category {
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

pub fn anonymous(name: &str, perms: Perms) -> Category {
    match name {
        "[heap]" => Category::Heap,
        "[stack]" => Category::MainStack,
        // Linux 3.4 to 4.4 name thread stacks.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::{Classifier, proc_maps};

    /// The category of the mapping of this process that contains an address, and the categories of its neighbours.
    fn around(address: u64) -> Vec<Category> {
        let own = Pid(std::process::id());
        let vmas = proc_maps::read(own, &mut Classifier::new()).unwrap();
        let all = of_all(own, &vmas, executable(own));
        assert_eq!(all.len(), vmas.len());
        let at = vmas
            .iter()
            .position(|vma| vma.contains(crate::ids::Addr(address)));
        let at = at.expect("it is mapped");
        all[at - 1..(at + 2).min(all.len())].to_vec()
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn arenas_and_stacks_of_threads_are_told_from_other_memory() {
        use std::sync::mpsc;
        use std::time::{Duration, Instant};
        let (tell, told) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let (local, block) = (0u8, Box::new([0u8; 1000]));
            let addresses = [&raw const local as u64, block.as_ptr() as u64];
            tell.send(addresses).unwrap();
            let _ = wait.recv();
        });
        let [stack, block] = told.recv().unwrap();
        // The stack pointer is visible once the thread waits.
        let limit = Instant::now() + Duration::from_secs(60);
        while around(stack)[1] != Category::ThreadStack {
            assert!(Instant::now() < limit, "{:?}", around(stack));
            std::thread::yield_now();
        }
        let arena = around(block);
        assert_eq!(arena[1..], [Category::Arena, Category::Arena], "{arena:?}");
        assert_eq!(
            around(around as fn(u64) -> Vec<Category> as usize as u64)[1],
            Category::OwnBinary
        );
        assert_eq!(
            around(libc::malloc as *const () as u64)[1],
            Category::Library
        );
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn the_layout_of_an_arena_alone_is_none() {
        let size = MAX_HEAP as usize;
        // SAFETY: this is new memory at an address that the kernel chooses; only this test uses it.
        let at = unsafe {
            let (none, anon) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), 2 * size, none, anon, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let start = (at as u64).next_multiple_of(MAX_HEAP);
        // SAFETY: the range lies in the memory mapped above.
        let done =
            unsafe { libc::mprotect(start as *mut _, 1 << 20, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(done, 0);
        // Go lays out its heap like this.
        let found = around(start);
        assert!(
            matches!(found[1], Category::Anon { write: true, .. }),
            "{found:?}"
        );
        assert_eq!(found[2], RESERVED);
        // SAFETY: it was mapped above; nothing refers to it.
        unsafe { libc::munmap(at, 2 * size) };
    }
}
