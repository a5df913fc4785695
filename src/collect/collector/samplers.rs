//! Finds samplers in the followed processes, and attaches to them: the library that memprof has preloaded, and any other code that
//! follows the contract of OpenTelemetry's profiler (`--heap`). Likewise for the probe by which programs set marks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::Link;
use tokio::sync::mpsc;

use super::Collector;
use super::own_allocators::OwnAllocator;
use super::python_blocks::PythonBlocks;
use crate::probe::event::MarkSet;
use crate::probe::{is_sampler_probe, sets_marks};
use memprof_code::elf::Elf;
use memprof_code::usdt::{self, Usdt};
use memprof_heap::sampler::{self, Preloaded};
use memprof_profile::{Losses, ModuleId};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::target_file::ReadAt;
use memprof_sys::{messages, mmap_lock, proc_dir};

/// The providers whose probes are a sampler's: OpenTelemetry's contract, and the library family in which it originated.
const PROVIDERS: [&str; 2] = ["otel_memory", "ddheap"];

/// The providers that wrap another allocator, whose functions memprof's library samples.
const WRAPPERS: [&str; 1] = ["ddheap"];

/// Minimum time between two searches of newly mapped code.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Time between two checks whether the threads to which probes are tied are alive.
const AGAIN: Duration = Duration::from_secs(1);
/// Programs load their libraries, and with them a sampler, within this time.
pub(super) const LOADED: Duration = Duration::from_secs(2);

/// The samplers to attach to.
#[derive(Clone, Debug, Default)]
pub struct SamplerOptions {
    /// Additional providers.
    pub providers: Vec<String>,
    /// The library that memprof preloads.
    pub preloaded: Option<Preloaded>,
    /// Receives the marks that programs set, unless the channel is full.
    pub marks: Option<mpsc::Sender<(Pid, MarkSet)>>,
}

/// The samplers of the followed processes.
#[derive(Default)]
pub(super) struct Samplers {
    /// `None` if samplers are not requested.
    options: Option<Rc<SamplerOptions>>,
    /// The samplers' probes in each examined file.
    files: HashMap<ModuleId, Rc<[Usdt]>>,
    /// Address spaces that have mapped code since the last search.
    changed: BTreeSet<MmId>,
    looked: Option<Instant>,
    /// The links of each process and file, and the thread with which they end.
    listening: BTreeMap<(MmId, ModuleId), (i32, Vec<Link>)>,
    /// Time of the last check whether these threads are alive.
    checked: Option<Instant>,
    preloaded: Vec<Link>,
    /// The executables of followed processes, by whether they have an allocator of their own.
    executables: HashMap<ModuleId, OwnAllocator>,
    /// The Python interpreters of followed processes.
    pub(super) python: PythonBlocks,
    /// Number of marks that were not passed on.
    marks_left_out: u64,
    /// Number of samplers to which memprof could not attach.
    failures: u64,
    /// Number of times the thread to which probes were tied had ended.
    interruptions: u64,
    /// Whether any process had a sampler.
    found: bool,
    /// Time of the first search; `None` once the absence of a sampler was printed.
    missing_since: Option<Instant>,
}

impl Collector {
    /// Attaches to samplers from now on, first to the library that memprof preloads.
    ///
    /// # Errors
    /// The preloaded library cannot be opened, or the kernel refuses its probes.
    pub fn listen_to_samplers(&mut self, options: Option<SamplerOptions>) -> Result<()> {
        if let Some(Preloaded { path, .. }) = options.as_ref().and_then(|o| o.preloaded.as_ref()) {
            let of = || format!("the sampler {}", path.display());
            let file = File::open(path).with_context(|| format!("cannot open {}", of()))?;
            let probes = samplers_probes(&file, |provider| PROVIDERS.contains(&provider));
            self.aggregator.set_preloaded(path);
            self.samplers.preloaded = self
                .probe
                .listen(None, &file, &probes)
                .with_context(|| format!("cannot listen to {}", of()))?;
        }
        self.samplers.options = options.map(Rc::new);
        Ok(())
    }

    /// Detaches from samplers, one probe after the other.
    pub(super) fn stop_listening(&mut self) {
        let samplers = std::mem::take(&mut self.samplers);
        drop(samplers);
    }

    /// Passes on a mark that a program has set.
    pub(super) fn pass_on(&mut self, mark: &MarkSet) {
        let samplers = &mut self.samplers;
        let marks = samplers.options.as_ref().and_then(|o| o.marks.as_ref());
        // Nothing receives marks in some sessions.
        let marks = marks.filter(|marks| !marks.is_closed());
        let (Some(marks), Some(pid)) = (marks, self.aggregator.pid_of(mark.mm)) else {
            return;
        };
        if marks.try_send((pid, mark.clone())).is_err() {
            if samplers.marks_left_out == 0 {
                messages::print(&format!(
                    "process {pid} sets marks faster than memprof can make reports; some are left out"
                ));
            }
            samplers.marks_left_out += 1;
        }
    }

    /// Searches newly mapped code for samplers.
    pub(super) fn look_for_samplers(&mut self) {
        self.say_if_there_is_none();
        self.samplers.hear_of_own_allocators();
        self.listen_again();
        let recent = |at: Instant| at.elapsed() < PAUSE;
        if self.samplers.changed.is_empty() || self.samplers.looked.is_some_and(recent) {
            return;
        }
        let aggregator = &self.aggregator;
        let samplers = &mut self.samplers;
        samplers.listening.retain(|(mm, _), _| aggregator.has(*mm));
        samplers.python.retain(|mm| aggregator.has(mm));
        for mm in std::mem::take(&mut samplers.changed) {
            match self.aggregator.pid_of(mm) {
                // Searched later, when the mmap lock is free.
                Some(pid) if mmap_lock::is_held(pid) => drop(self.samplers.changed.insert(mm)),
                _ => self.look_for_samplers_of(mm),
            }
        }
        let now = Instant::now();
        if self.samplers.looked.replace(now).is_none() {
            self.samplers.missing_since = Some(now);
        }
    }

    /// Ties the probes of a process to another thread if their thread has ended.
    fn listen_again(&mut self) {
        let samplers = &mut self.samplers;
        if samplers.checked.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        samplers.checked = Some(Instant::now());
        let aggregator = &self.aggregator;
        let is_lost = |mm: MmId, thread: i32| {
            let pid = aggregator.pid_of(mm);
            pid.is_some_and(|pid| !proc_dir::has_memory(pid, thread) && proc_dir::lives(pid))
        };
        let all = samplers.listening.iter();
        let lost = all.filter(|((mm, _), (thread, _))| is_lost(*mm, *thread));
        let lost: Vec<_> = lost.map(|(key, (thread, _))| (*key, *thread)).collect();
        for (key, thread) in lost {
            samplers.listening.remove(&key);
            samplers.interruptions += 1;
            messages::print(&format!(
                "thread {thread} has ended, and with it the probes of a sampler, which memprof listens to again through another \
                 thread: allocations of up to {} s are missing",
                AGAIN.as_secs()
            ));
            samplers.changed.insert(key.0);
        }
    }

    fn say_if_there_is_none(&mut self) {
        let samplers = &mut self.samplers;
        let late = |since: Instant| since.elapsed() >= LOADED;
        if samplers.found || !samplers.missing_since.is_some_and(late) {
            return;
        }
        samplers.missing_since = None;
        messages::print(
            "no process has a sampler of allocations, so the heap by stack stays empty; `memprof --heap -- COMMAND` starts \
             a command with one, `memprof attach-heap --pid PID` gives one to a running process",
        );
    }

    fn look_for_samplers_of(&mut self, mm: MmId) {
        let Some(pid) = self.aggregator.pid_of(mm) else {
            return;
        };
        let Some(options) = self.samplers.options.clone() else {
            return;
        };
        let wanted = |provider: &str| {
            let mut more = options.providers.iter();
            PROVIDERS.contains(&provider) || more.any(|name| name == provider)
        };
        let Some((code, modules)) = self.aggregator.code_now(mm) else {
            return;
        };
        let modules = modules.modules();
        let seen: HashSet<ModuleId> = code.ranges().map(|(_, _, _, id)| id).collect();
        let of_own = options.preloaded.as_ref().map(|own| own.path.as_path());
        let path = |id: &ModuleId| modules.get(usize::from(id.0)).map(|m| m.path.as_path());
        let is_own = |id: &ModuleId| of_own.is_some() && path(id) == of_own;
        let has_preloaded = seen.iter().any(is_own);
        let is_library = |id: &ModuleId| self.aggregator.is_sampler(*id);
        let has_library = has_preloaded || seen.iter().any(is_library);
        for id in seen {
            let Some(module) = modules.get(usize::from(id.0)) else {
                continue;
            };
            // Skips memprof's own copies of process memory, in which no code runs.
            let Some(file) = module.file.as_ref().filter(|file| !file.is_own()) else {
                continue;
            };
            // Probes of the preloaded library are attached in all processes at once.
            let own = options.preloaded.as_ref();
            if own.is_some_and(|own| own.path == module.path) {
                self.samplers.found = true;
                continue;
            }
            let files = &mut self.samplers.files;
            let probes = files
                .entry(id)
                .or_insert_with(|| samplers_probes(file, wanted).into());
            let probes = Rc::clone(probes);
            if file.is_backing_off() {
                // The file is examined again when the process next maps code.
                files.remove(&id);
            }
            if module.own_executable {
                let executables = &mut self.samplers.executables;
                executables
                    .entry(id)
                    .or_insert_with(|| match probes.iter().any(is_sampler) {
                        true => OwnAllocator::None,
                        false => OwnAllocator::look(pid, file),
                    });
            }
            if probes.is_empty() {
                continue;
            }
            if sampler::is_library(file) && self.aggregator.set_sampler(id) {
                // Wrappers are left to it from now on.
                self.samplers.changed.insert(mm);
            }
            let is_wrapper = |probe: &Usdt| WRAPPERS.contains(&probe.provider.as_str());
            if has_library && probes.iter().all(is_wrapper) {
                tracing::debug!(%pid, file = %module.path.display(), "left to memprof's library: a sampler of its allocations");
                let listened = self.samplers.listening.remove(&(mm, id)).is_some();
                if listened && has_preloaded {
                    // The library has sampled since before this file's probes were found.
                    self.aggregator.leave_to_another(mm, id);
                }
                continue;
            }
            if self.samplers.listening.contains_key(&(mm, id)) {
                continue;
            }
            if !file.answers_at(probes.iter().map(|probe| probe.offset)) {
                continue;
            }
            let thread = proc_dir::thread(pid);
            match self.probe.listen(Some(thread), file, &probes) {
                Ok(links) => {
                    self.samplers.found |= probes.iter().any(is_sampler);
                    tracing::debug!(%pid, file = %module.path.display(), "a sampler is listened to");
                    self.samplers.listening.insert((mm, id), (thread, links));
                    if !sampler::is_library(file) {
                        let functions = allocating_functions(file, &probes);
                        self.aggregator.set_other_sampler(id, functions);
                    }
                }
                Err(e) => self.samplers.fail(pid, &e),
            }
        }
        let Samplers { python, files, .. } = &mut self.samplers;
        python.look(mm, &code, &modules, |id, module| {
            let own = options.preloaded.as_ref();
            own.is_some_and(|own| own.path == module.path)
                || files.get(&id).is_some_and(|probes| !probes.is_empty())
        });
    }
}

fn is_sampler(probe: &Usdt) -> bool {
    !sets_marks(&probe.provider, &probe.name)
}

impl Samplers {
    /// Says which executables have an allocator of their own whose calls are not sampled.
    fn hear_of_own_allocators(&mut self) {
        for executable in self.executables.values_mut() {
            executable.hear();
        }
    }

    /// Whether samplers are requested.
    pub(super) fn is_listening(&self) -> bool {
        self.options.is_some()
    }

    /// Notes that an address space has mapped code, which may contain a sampler.
    pub(super) fn note_code(&mut self, mm: MmId) {
        if self.is_listening() {
            self.changed.insert(mm);
        }
    }

    /// Memprof's own library, if memprof is attached to it from the start of each process that has preloaded it.
    pub(super) fn preloaded(&self) -> Option<&Preloaded> {
        let options = self.options.as_ref().filter(|_| !self.preloaded.is_empty());
        options.and_then(|options| options.preloaded.as_ref())
    }

    /// Whether memprof is attached to a sampler of a followed process.
    pub(super) fn are_found(&self) -> bool {
        self.found
    }

    /// Counts missing samples and marks.
    pub(super) fn losses(&self, losses: &mut Losses) {
        losses.add(
            "samplers of allocations that memprof could not listen to",
            self.failures,
        );
        let has_own = |executable: &&OwnAllocator| matches!(executable, OwnAllocator::Has);
        losses.add(
            "executables with an allocator of their own, whose calls are not sampled: they are in no figure of the heap",
            self.executables.values().filter(has_own).count() as u64,
        );
        losses.add(
            "gaps of about a second in the sampled allocations of a process: the thread that the probes were tied to had ended",
            self.interruptions,
        );
        losses.add(
            "marks of programs left out: more were set than memprof could make reports",
            self.marks_left_out,
        );
    }

    fn fail(&mut self, pid: Pid, e: &anyhow::Error) {
        tracing::warn!(%pid, "{e:#}");
        if self.failures == 0 {
            messages::print(&format!(
                "process {pid} has a sampler of allocations, but {e:#}"
            ));
        }
        self.failures += 1;
    }
}

/// The functions of a file that contain probes of allocations.
fn allocating_functions(file: &dyn ReadAt, probes: &[Usdt]) -> Vec<Range<u64>> {
    let of_allocations = probes.iter().filter(|probe| probe.name == "alloc");
    let of_allocations: Vec<Usdt> = of_allocations.cloned().collect();
    let elf = Elf::read(file);
    elf.map_or(Vec::new(), |elf| usdt::functions(&elf, &of_allocations))
}

/// The probes in a file to which memprof attaches; none if the file cannot be read.
fn samplers_probes(file: &dyn ReadAt, provider: impl Fn(&str) -> bool) -> Vec<Usdt> {
    let wanted =
        |of: &str, name: &str| (provider(of) && is_sampler_probe(name)) || sets_marks(of, name);
    let elf = Elf::read(file);
    let probes = elf.and_then(|elf| usdt::probes(&elf, wanted));
    let mut probes = probes.unwrap_or_default();
    // In one file, what a wrapper wraps is the allocator with probes of its own, which has all of the wrapper's allocations.
    let is_wrapper = |probe: &Usdt| WRAPPERS.contains(&probe.provider.as_str());
    if probes
        .iter()
        .any(|probe| is_sampler(probe) && !is_wrapper(probe))
    {
        probes.retain(|probe| !is_wrapper(probe));
    }
    probes
}
