//! The `memprof attach-heap` command: finds a thread at a safe point and makes it load the library.

use std::fs::{self, File};
use std::io::{self, BufRead, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::added;
use super::detours::{self, Site};
use super::loaded_files::Files;
use super::loader_lock;
use super::report::{Done, LoadedLibrary};
use super::safe_point::{SafePoint, judge};
use super::walk::Tables;
use super::without_loader;
use crate::attach::AttachConfig;
use crate::sampler::{self, Image, Options};
use memprof_code::allocators::{self, Detours, ThreadStates};
use memprof_sys::freeze::{
    HoldError, LoadError, Loader, Loading, StoppedThread, WorkerProcess, not_traceable, threads,
};
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::proc_dir;
use memprof_sys::process::{Presence, comm};
use memprof_sys::procfs::{self, StatusFile};
use memprof_sys::residency::readable;
use memprof_sys::text::printable;

/// Maximum time for a thread to stop.
const MAX_STOP: Duration = Duration::from_millis(50);
/// Pause between two passes over the threads.
const PAUSE: Duration = Duration::from_millis(5);
/// Age at which the list of loaded files is read again.
const FRESH: Duration = Duration::from_millis(500);
/// Maximum time for a newly started process to load its C library.
const LOADS: Duration = Duration::from_secs(1);

/// Makes a running process load the library. Returns the text to print.
///
/// # Errors
/// The process cannot load the library, or there was no safe moment. The process is unchanged unless the message says
/// otherwise.
pub fn run(config: &AttachConfig) -> Result<Vec<u8>> {
    // Must run while memprof has a single thread.
    let apart = WorkerProcess::start(|pid| attach_to(config, pid))?;
    let pid = config.target.process()?;
    if let Some(why) = Presence::look_up(pid).refusal(pid) {
        bail!(why);
    }
    wait_until_readable(pid, config.wait)?;
    let comm = comm(pid).unwrap_or_default();
    let name = printable(&comm);
    let cannot = || format!("cannot attach to process {pid} ({name})");
    check(pid).with_context(cannot)?;
    let has_library = match without_loader::site(pid).with_context(cannot)? {
        Some(site) => {
            let attached = sampler::detours_placed(pid).is_some();
            if !attached {
                without_loader::plan_detours(pid, &site).with_context(cannot)?;
            }
            attached
        }
        None => {
            let files = files_with_libc(pid).with_context(cannot)?;
            let attached = files.attached().is_some();
            match attached {
                true => !added::is_missing(pid).with_context(cannot)?,
                false => {
                    plan_detours(pid).with_context(cannot)?;
                    false
                }
            }
        }
    };
    if has_library {
        let text = format!(
            "process {pid} ({name}) has the sampling library already\nnext: memprof --heap --pid {pid}\n"
        );
        return Ok(text.into_bytes());
    }
    confirm(config, pid, &name)?;
    apart.work(pid).with_context(cannot)
}

/// Waits until nobody holds the process's mmap lock. Threads that map memory all the time leave it to others late on a busy machine.
fn wait_until_readable(pid: Pid, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match readable(pid) {
            Err(_) if begun.elapsed() < patience => thread::sleep(PAUSE),
            readable => return Ok(readable?),
        }
    }
}

/// Runs in a separate process, after the user has agreed.
fn attach_to(config: &AttachConfig, pid: Pid) -> Result<Vec<u8>> {
    let name = comm(pid).unwrap_or_default();
    if let Some(site) = without_loader::site(pid)? {
        return without_loader::attach(config, pid, &printable(&name), &site);
    }
    if added::is_missing(pid)? {
        return added::add(pid, &printable(&name), config.wait);
    }
    let options = Options {
        interval: config.interval,
        ..Options::default()
    };
    let detours = plan_detours(pid)?;
    let image = Image::for_running(&options, &detours)?;
    let done = attach(config, pid, &image, &detours)?;
    Ok(done.text(pid, &printable(&name)).into_bytes())
}

/// Reads the loaded files of a process, waiting until its C library is among them.
fn files_with_libc(pid: Pid) -> Result<Files> {
    let begun = Instant::now();
    loop {
        let files = Files::read(pid)?;
        match files.functions() {
            Ok(_) => return Ok(files),
            Err(why) if begun.elapsed() >= LOADS => return Err(why),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Checks that the process is in a state in which it can load the library.
fn check(pid: Pid) -> Result<()> {
    let status = StatusFile::for_process(pid)?;
    let field = |key| status.field(key).unwrap_or_default();
    let tracer = field("TracerPid");
    if tracer != "0" {
        bail!("it is traced by process {tracer}, a debugger or another memprof: end that first");
    }
    if field("State").starts_with('T') {
        bail!("it is stopped (SIGSTOP): it must run; `kill -CONT {pid}` resumes it");
    }
    // The loader opens the library by a path in /proc.
    if fs::symlink_metadata(proc_dir::path(pid, "root/proc/self")).is_err() {
        bail!("its file tree has no /proc, from which its loader could load the library");
    }
    Ok(())
}

/// Plans how the functions of an allocator inside the executable are made to lead to the library. Refuses a program where that is
/// impossible: the library would be loaded and see none of its calls.
pub(super) fn plan_detours(pid: Pid) -> Result<Detours> {
    let site = Site::executable(pid)?;
    let detours = site.plan(pid, ThreadStates::ThreadLocal)?;
    match allocators::own_allocator(&site.file) {
        Some(function) if detours.all.is_empty() => bail!(
            "it allocates through its executable's own allocator ({}), whose calls a loaded library does not see, and whose functions \
             cannot be changed safely ({}); use `memprof --heap=exact --duration 10 --pid {pid}`, which counts every call, or `memprof \
             heap --pid {pid}`; nothing was done",
            printable(&function),
            detours
                .refused
                .first()
                .map_or("none is long enough", |(_, why)| why),
        ),
        _ => Ok(detours),
    }
}

/// Asks the user for consent, unless already given.
fn confirm(config: &AttachConfig, pid: Pid, name: &str) -> Result<()> {
    if config.agreed {
        return Ok(());
    }
    let warning = format!(
        "attach-heap changes process {pid} ({name}) until it ends: one of its threads is made to load a library, and its \
         calls of the allocator then go through that library. It cannot be unloaded. memprof waits for a moment at which \
         the thread holds no lock of the allocator or the loader, but no such method is free of all risk."
    );
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        bail!("{warning} Pass --yes if you agree; nothing was done");
    }
    let _ = write!(io::stderr(), "memprof: {warning}\nContinue? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}

/// A search for a thread that may load the library.
struct Search<'a> {
    pid: Pid,
    memory: File,
    files: Files,
    tables: Tables,
    loader: Loader,
    image: &'a Image,
    patience: Duration,
    stops: u32,
    looked: Duration,
}

/// Why a thread did not load the library.
enum No {
    /// The thread could not be examined.
    Missed(String),
    /// The thread is not at a safe point.
    Refused(String),
}

/// The thread that loaded the library.
struct By {
    tid: i32,
    place: SafePoint,
    held: Duration,
    handle: u64,
}

fn attach(config: &AttachConfig, pid: Pid, image: &Image, detours: &Detours) -> Result<Done> {
    let files = files_with_libc(pid)?;
    let begun = Instant::now();
    let memory = proc_dir::open(pid, "mem")
        .with_context(|| format!("cannot read the memory of process {pid}; run memprof as root"))?;
    let mut search = Search {
        pid,
        memory,
        files,
        tables: Tables::default(),
        loader: Loader::prepare(pid).map_err(|e| anyhow!(e))?,
        image,
        patience: config.wait,
        stops: 0,
        looked: Duration::ZERO,
    };
    // Privileges go only now: opening the process's files and memory above may need them if it runs as another user.
    privileges::reduce(ThreadRole::Attach);
    let by = search.until(begun + config.wait)?;
    let took = begun.elapsed();
    let base = search.base(by.handle)?;
    let found = LoadedLibrary::read(
        &search.memory,
        base.wrapping_add(image.places.config),
        image,
    )?;
    let state = base.wrapping_add(image.places.detours);
    let redirected = detours::redirect(
        pid,
        &search.memory,
        detours,
        &found.detours,
        state,
        config.wait,
    );
    let thread = procfs::comm(format_args!("{pid}/task/{}", by.tid));
    Ok(Done {
        tid: by.tid,
        thread: printable(&thread.unwrap_or_default()).into_owned(),
        place: by.place,
        held: by.held,
        looked: search.looked,
        stops: search.stops.saturating_sub(1),
        took,
        found,
        redirected,
    })
}

impl Search<'_> {
    /// Tries one thread after another until one has loaded the library.
    fn until(&mut self, end: Instant) -> Result<By> {
        let mut read = Instant::now();
        let (mut why, mut missed) = (None, "it has no thread".to_owned());
        loop {
            let mut all = threads(self.pid);
            // Try the first thread first: it has the largest stack, and waits in most programs.
            all.sort_by_key(|tid| *tid != self.pid.0.cast_signed());
            if all.is_empty() {
                bail!("it has ended");
            }
            for (n, tid) in all.into_iter().enumerate() {
                match self.try_thread(tid, end)? {
                    Ok(by) => return Ok(by),
                    Err(No::Refused(reason)) if n == 0 => why = Some(reason),
                    Err(No::Missed(reason)) if n == 0 => missed = reason,
                    Err(_) => {}
                }
                if Instant::now() >= end {
                    bail!(
                        "there was no safe moment in {} s (--wait), in {} stops: {}; nothing was changed",
                        self.patience.as_secs_f64(),
                        self.stops,
                        why.unwrap_or(missed)
                    );
                }
            }
            thread::sleep(PAUSE);
            if read.elapsed() > FRESH {
                self.files = Files::read(self.pid)?;
                read = Instant::now();
            }
        }
    }

    /// Tries a thread. Tries again after each walk that lacked unwind tables, which are built while the thread runs.
    fn try_thread(&mut self, tid: i32, end: Instant) -> Result<Result<By, No>> {
        loop {
            let tried = self.look(tid, end)?;
            if tried.is_ok() || !self.tables.build(&self.files) {
                return Ok(tried);
            }
        }
    }

    /// Stops a thread and makes it load the library if it is at a safe point. The inner error says why it did not.
    fn look(&mut self, tid: i32, end: Instant) -> Result<Result<By, No>> {
        self.stops += 1;
        let mut held = match StoppedThread::stop(tid, MAX_STOP, end) {
            Ok(held) => held,
            Err(HoldError::Missed(why)) => return Ok(Err(No::Missed(why))),
            Err(HoldError::Blocked(why)) => bail!("{why}; nothing was changed"),
            Err(HoldError::Refused(e)) => bail!("{}", not_traceable(tid, &e)),
        };
        let place = match self.place(tid, &held) {
            Ok(place) => place,
            Err(why) => {
                self.looked += held.release();
                return Ok(Err(No::Refused(why)));
            }
        };
        let what = Loading {
            functions: self.files.functions()?,
            library: &self.image.bytes,
            patience: self.patience,
        };
        let loaded = held.load(&self.loader, &what);
        let time = held.release();
        match loaded {
            Ok(loaded) => Ok(Ok(By {
                tid,
                place,
                held: time,
                handle: loaded.handle,
            })),
            Err(LoadError::Refused(why)) => {
                self.looked += time;
                Ok(Err(No::Refused(why)))
            }
            Err(LoadError::Failed(why)) => bail!("{why}; thread {tid} goes on as before"),
            Err(LoadError::Blocked) => bail!(
                "thread {tid} has waited in the kernel for {} s for memory for the library; it was let go, and nothing is loaded",
                self.patience.as_secs_f64()
            ),
            Err(LoadError::Waits) => bail!(
                "thread {tid} has waited for a lock of the loader for {} s, which another thread holds; it was let go, and the \
                 library is loaded once that thread releases the lock",
                self.patience.as_secs_f64()
            ),
        }
    }

    /// Decides whether a stopped thread may call the loader.
    fn place(&self, tid: i32, held: &StoppedThread) -> Result<SafePoint, String> {
        let state = held
            .state()
            .ok_or_else(|| format!("thread {tid} was killed"))?;
        let (frames, ended) = self.tables.walk(&self.memory, &self.files, &state);
        let place = judge(&state, &frames, ended, self.files.own_malloc)
            .map_err(|why| format!("thread {tid} {why}"))?;
        match self.files.loader_lock {
            // The owner of the lock may wait for this thread, for example in the constructor of a library.
            Some(lock) if loader_lock::is_held(&self.memory, lock) => {
                Err("another thread is loading or unloading a library".to_owned())
            }
            _ => Ok(place),
        }
    }

    /// Load address of the library: the first word of the `struct link_map` that the loader returned.
    fn base(&self, handle: u64) -> Result<u64> {
        use std::os::unix::fs::FileExt;
        let mut word = [0; 8];
        let read = self.memory.read_exact_at(&mut word, handle);
        read.context("cannot read where the library was loaded")?;
        Ok(u64::from_le_bytes(word))
    }
}
