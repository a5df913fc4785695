//! Retains an address space after its process ends.
//!
//! The kernel frees a process's memory when its address space has no users left. A read of `/proc/PID/mem` is a user for its
//! duration. The read here blocks until memprof ends it, because its destination is a page that only a `userfaultfd` can fill. This
//! neither stops nor changes the process. If memprof dies, the kernel ends the read and frees the memory.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};

use super::classify::Classifier;
use super::error::{Error, Result};
use super::page::page_size;
use super::scan::Pages;
use super::vma::{Backing, Vma};
use super::{proc_maps, smaps};
use crate::ids::Pid;
use crate::kernel_figures::KernelFigures;
use crate::proc_dir;
use crate::procfs::Auxv;

/// Maximum time until the read blocks, in ms.
const BEGIN: u16 = 1000;
/// CPU time above which the reader thread spins. A thread that waits takes less: it starts, and is woken up once.
const WAITS: Duration = Duration::from_millis(50);

/// A process's address space, as it was when this was created. Dropping this lets the kernel free the memory.
#[derive(Debug)]
pub struct ExitMemory {
    pid: Pid,
    pages: Pages,
    maps: File,
    smaps: File,
    read: LongRead,
}

impl ExitMemory {
    /// Retains the address space of a running process. The reader thread calls `begin` first.
    ///
    /// # Errors
    /// The process is gone or cannot be traced, or the kernel refuses a `userfaultfd`.
    pub fn new(pid: Pid, begin: fn()) -> Result<ExitMemory> {
        let open = |name| open(pid, name);
        let at = mapped_address(pid)?;
        let read = LongRead::begin(open("mem")?, at, begin);
        Ok(ExitMemory {
            pid,
            pages: Pages::open(pid)?,
            maps: open("maps")?,
            smaps: open("smaps")?,
            read: read.map_err(|e| Error::from_io(pid, "userfaultfd", e))?,
        })
    }

    /// Whether the reader thread takes CPU time instead of waiting.
    ///
    /// It does once memprof was stopped by SIGSTOP or frozen, even after memprof was continued: the kernel lets the thread wait
    /// only without a pending signal, and never clears the request to stop. A new thread, which has no such request, waits.
    pub fn spins(&self) -> bool {
        self.read.processor_time().is_some_and(|time| time > WAITS)
    }

    /// Duplicates the descriptor of the page tables.
    ///
    /// # Errors
    /// Too many open files.
    pub fn pages(&self) -> Result<Pages> {
        self.pages.try_clone()
    }

    /// Reads the mappings. The process may be a zombie.
    ///
    /// # Errors
    /// As for [`proc_maps::read`].
    pub fn mappings(&self, classifier: &mut Classifier) -> Result<Vec<Vma>> {
        let mut vmas = proc_maps::parse(&self.text(&self.maps, "maps")?)?;
        classifier.classify(self.pid, &mut vmas);
        Ok(vmas)
    }

    /// Sums up the kernel's figures for all mappings (`smaps`) by backing, because an ended process has no counters. The result
    /// does not include page tables.
    ///
    /// # Errors
    /// As for `smaps::read`.
    pub fn figures(&self, classifier: &mut Classifier) -> Result<KernelFigures> {
        let text = self.text(&self.smaps, "smaps")?;
        let mut sum = KernelFigures::default();
        smaps::parse_all(self.pid, &text[..], classifier, &mut |region| {
            let of_files = region.figures.rss.saturating_sub(region.figures.anonymous);
            sum.rss_anon += region.figures.anonymous;
            match region.vma.backing {
                Backing::Shmem | Backing::Anon => sum.rss_shmem += of_files,
                _ => sum.rss_file += of_files,
            }
            sum.swap += region.figures.swap;
        })?;
        sum.anonymous = Some(sum.rss_anon);
        Ok(sum)
    }

    fn text(&self, file: &File, name: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut part = vec![0; 64 << 10];
        // `read_at` leaves the file position at 0, so that the next report can read the file again.
        loop {
            match file.read_at(&mut part, text.len() as u64) {
                Ok(0) if text.is_empty() => return Err(Error::Gone(self.pid)),
                Ok(0) => return Ok(text),
                Ok(n) => text.extend_from_slice(&part[..n]),
                Err(e) => return Err(Error::from_io(self.pid, proc_dir::shown(self.pid, name), e)),
            }
        }
    }
}

fn open(pid: Pid, name: &str) -> Result<File> {
    proc_dir::open(pid, name).map_err(|e| Error::from_io(pid, proc_dir::shown(pid, name), e))
}

/// An address that the process has mapped and touched since `execve`.
fn mapped_address(pid: Pid) -> Result<u64> {
    let auxv = Auxv::for_process(pid);
    let auxv = auxv.map_err(|e| Error::from_io(pid, proc_dir::shown(pid, "auxv"), e))?;
    // The address of 16 random bytes on the stack that `execve` created.
    auxv.get(libc::AT_RANDOM).ok_or(Error::Gone(pid))
}

mod fault {
    //! `userfaultfd` definitions of `linux/userfaultfd.h`.

    const TYPE: u8 = 0xaa;
    pub const API: u64 = 0xaa;
    pub const MISSING: u64 = 1;

    #[repr(C)]
    #[derive(Default)]
    pub struct Api {
        pub api: u64,
        pub features: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    pub struct Register {
        pub start: u64,
        pub len: u64,
        pub mode: u64,
        pub ioctls: u64,
    }

    nix::ioctl_readwrite!(agree, TYPE, 0x3f, Api);
    nix::ioctl_readwrite!(register, TYPE, 0x00, Register);
}

/// A blocked read. Dropping this ends the read.
#[derive(Debug)]
struct LongRead {
    /// Closing this descriptor unblocks the read.
    faults: Option<OwnedFd>,
    reader: Option<JoinHandle<()>>,
    unwanted: Arc<AtomicBool>,
    page: Page,
}

impl LongRead {
    fn begin(memory: File, at: u64, begin: fn()) -> io::Result<LongRead> {
        let page = Page::new()?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: this is a plain system call that creates a descriptor.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if faults < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let faults = unsafe { OwnedFd::from_raw_fd(faults as i32) };
        let mut api = fault::Api {
            api: fault::API,
            ..fault::Api::default()
        };
        let mut register = fault::Register {
            start: page.at.as_ptr() as u64,
            len: page.len.get() as u64,
            mode: fault::MISSING,
            ..fault::Register::default()
        };
        // SAFETY: both structures have the kernel's layout and live throughout the calls.
        unsafe {
            fault::agree(faults.as_raw_fd(), &mut api)?;
            fault::register(faults.as_raw_fd(), &mut register)?;
        }
        let unwanted = Arc::new(AtomicBool::new(false));
        let (over, into) = (Arc::clone(&unwanted), page.at.as_ptr() as usize);
        let reader = thread::Builder::new()
            .name("memprof-keep".into())
            .spawn(move || {
                begin();
                read(&memory, at, into, &over);
            })?;
        let read = LongRead {
            faults: Some(faults),
            reader: Some(reader),
            unwanted,
            page,
        };
        read.wait_until_begun()?;
        Ok(read)
    }

    /// The CPU time that the reader thread has taken.
    fn processor_time(&self) -> Option<Duration> {
        let reader = self.reader.as_ref()?.as_pthread_t();
        let mut clock = 0;
        // SAFETY: the thread was not joined, so its id is valid; `clock` lives throughout the call.
        let failed = unsafe { libc::pthread_getcpuclockid(reader, &mut clock) };
        if failed != 0 {
            return None;
        }
        let time = clock_gettime(ClockId::from_raw(clock)).ok()?;
        Some(time.into())
    }

    /// Waits until the reader faults on the page, which makes the `userfaultfd` readable.
    fn wait_until_begun(&self) -> io::Result<()> {
        let Some(faults) = &self.faults else {
            return Ok(());
        };
        let mut fds = [PollFd::new(faults.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(BEGIN)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for LongRead {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::SeqCst);
        self.faults = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        // SAFETY: `Page::new` created the mapping, and its only user, the reader, has ended.
        let _ = unsafe { munmap(self.page.at, self.page.len.get()) };
    }
}

fn read(memory: &File, at: u64, into: usize, unwanted: &AtomicBool) {
    // A signal would end the read.
    let _ = SigSet::all().thread_block();
    loop {
        // SAFETY: `into` is memprof's own page, of which the kernel writes one byte; it stays mapped until
        // this thread has ended, and nothing else accesses it.
        let n = unsafe { libc::pread64(memory.as_raw_fd(), into as *mut c_void, 1, at as i64) };
        // Stopping memprof (SIGSTOP) nevertheless ends the read.
        let again = n < 0 && matches!(Errno::last(), Errno::EFAULT | Errno::EINTR);
        if !again || unwanted.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// A page of memprof's own memory that user space never accesses.
#[derive(Debug)]
struct Page {
    at: NonNull<c_void>,
    len: NonZeroUsize,
}

// SAFETY: this is an address and a length; no code here accesses memory through it. `LongRead` unmaps the page once
// its reader has ended.
unsafe impl Send for Page {}
// SAFETY: as for `Send`.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> io::Result<Page> {
        let len = usize::try_from(page_size())
            .ok()
            .and_then(NonZeroUsize::new);
        let len = len.ok_or(io::ErrorKind::InvalidData)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Page { at, len })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::residency::{Method, Scanner, add_run, figures};
    use crate::usage::Usage;

    /// The memory of the retained address space, according to the page scan and to the kernel's figures.
    fn seen(kept: &ExitMemory) -> Result<(Usage, KernelFigures)> {
        let mut classifier = Classifier::new();
        let mut scanner = Scanner::for_pages(kept.pages()?, Method::Auto)?;
        let mut usage = Usage::default();
        let vmas = kept.mappings(&mut classifier)?;
        scanner.scan(&vmas, &mut |_, run| add_run(&mut usage, run), &mut || ())?;
        Ok((usage, kept.figures(&mut classifier)?))
    }

    #[test]
    fn the_memory_of_a_process_outlives_it() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid(child.id());
        while !proc_dir::link(pid, "exe").is_ok_and(|exe| exe.ends_with("sleep")) {
            thread::yield_now();
        }
        // The child's memory changes until it sleeps.
        while proc_dir::text(pid, "wchan").is_ok_and(|at| !at.contains("nanosleep")) {
            thread::yield_now();
        }
        let kept = match ExitMemory::new(pid, || ()) {
            Err(Error::Denied { .. }) => {
                crate::skip::skip("without CAP_SYS_PTRACE the kernel gives no such userfaultfd");
                let _ = child.kill();
                return drop(child.wait());
            }
            kept => kept.unwrap(),
        };
        let alive = figures::read(pid).unwrap();
        child.kill().unwrap();
        let ended = nix::sys::wait::waitid(
            nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid.0 as i32)),
            nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
        );
        ended.unwrap();
        assert!(figures::read(pid).unwrap_err().is_gone());
        for _ in 0..2 {
            let (usage, kernel) = seen(&kept).unwrap();
            assert_eq!(Some(usage.anon), kernel.anonymous);
            assert_eq!(kernel.anonymous, alive.anonymous);
            assert_eq!(usage.shmem, kernel.rss_shmem);
            assert!(usage.anon > 0 && kernel.rss_file > 0, "{usage:?}");
        }
        // Once the child is reaped, its address space can no longer be read.
        child.wait().unwrap();
        assert!(seen(&kept).unwrap_err().is_gone());
    }
}
