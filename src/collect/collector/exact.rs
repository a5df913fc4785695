//! Finds the functions of allocators in the followed processes, and counts their calls (`--heap=exact`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::anyhow;
use libbpf_rs::Link;

use super::Collector;
use crate::probe::SeenCalls;
use memprof_code::allocators::{self, Function, FunctionRole};
use memprof_code::modules::open_regular;
use memprof_heap::sampler;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::kernel_version::KernelVersion;
use memprof_sys::messages;
use memprof_sys::proc_dir;
use memprof_sys::target_file::{TargetFile, about_path};
use memprof_sys::text::printable;

/// Device and inode of a file.
type FileId = (u64, u64);

/// The probed functions of the followed processes.
#[derive(Default)]
pub(super) struct ExactCalls {
    wanted: bool,
    /// The functions in each examined file.
    files: HashMap<FileId, Rc<[Function]>>,
    /// Address spaces that have mapped code since the last search.
    changed: BTreeSet<MmId>,
    /// Address spaces that were searched.
    known: BTreeSet<MmId>,
    /// The links of each process and file.
    counting: BTreeMap<(Pid, FileId), Vec<Link>>,
    failures: u64,
}

impl Collector {
    /// Counts every call of allocation functions from now on.
    pub fn count_all_calls(&mut self) {
        self.exact.wanted = true;
    }

    /// Ends the counting. Returns the numbers of calls; `None` if calls were not counted.
    pub(super) fn stop_counting(&mut self) -> Option<SeenCalls> {
        if !std::mem::take(&mut self.exact.wanted) {
            return None;
        }
        std::mem::take(&mut self.exact.counting);
        Some(self.probe.seen_calls())
    }

    /// Searches newly mapped code for allocators.
    pub(super) fn look_for_allocators(&mut self) {
        if self.exact.changed.is_empty() {
            return;
        }
        let pids: BTreeSet<Pid> = self.aggregator.pids().into_iter().collect();
        self.exact.counting.retain(|(pid, _), _| pids.contains(pid));
        let aggregator = &self.aggregator;
        let (known, ended) = std::mem::take(&mut self.exact.known)
            .into_iter()
            .partition(|mm| aggregator.has(*mm));
        self.exact.known = known;
        let ended: BTreeSet<MmId> = ended;
        if !ended.is_empty() {
            let forgotten = self.probe.forget_blocks(&ended);
            self.tolerate(forgotten);
        }
        for mm in std::mem::take(&mut self.exact.changed) {
            self.exact.known.insert(mm);
            let Some(pid) = self
                .aggregator
                .pid_of(mm)
                .filter(|_| !self.aggregator.is_starting(mm))
            else {
                continue;
            };
            let Some((code, modules)) = self.aggregator.code_now(mm) else {
                continue;
            };
            let modules = modules.modules();
            let seen: BTreeSet<usize> = code.ranges().map(|(_, _, _, id)| id.0.into()).collect();
            let modules = seen.into_iter().filter_map(|at| modules.get(at));
            let files: Vec<(&Path, &TargetFile)> = modules
                // Skips memprof's own copies of process memory, in which no code runs.
                .filter_map(|m| Some((m.path.as_path(), m.file.as_ref()?)))
                .filter(|(_, file)| !file.is_own())
                .collect();
            self.count_calls_of(pid, &files);
        }
    }

    /// Counts the calls of a command that is about to start.
    pub(super) fn count_calls_of_command(&mut self, paths: &[PathBuf]) {
        let Some(pid) = self.target.filter(|_| self.exact.wanted) else {
            return;
        };
        let files = paths
            .iter()
            .filter_map(|path| Some((path, open_regular(path).ok()?)));
        let files: Vec<(&PathBuf, TargetFile)> = files.collect();
        let files: Vec<(&Path, &TargetFile)> =
            files.iter().map(|(p, f)| (p.as_path(), f)).collect();
        self.count_calls_of(pid, &files);
    }

    fn count_calls_of(&mut self, pid: Pid, files: &[(&Path, &TargetFile)]) {
        let mut new = Vec::new();
        for (path, file) in files {
            let id = file.identity();
            let functions = self.exact.files.entry(id).or_insert_with(|| {
                let found = allocators::functions_of(*file, KernelVersion::running());
                found.unwrap_or_default().into()
            });
            let functions = Rc::clone(functions);
            if file.is_backing_off() {
                // The file is examined again when the process next maps code.
                self.exact.files.remove(&id);
            }
            if !functions.is_empty() && !self.exact.counting.contains_key(&(pid, id)) {
                new.push((*path, *file, id, functions));
            }
        }
        if new.is_empty() {
            return;
        }
        tell_cost(
            pid,
            new.iter()
                .map(|(path, _, _, functions)| (*path, &**functions)),
        );
        for (path, file, id, functions) in new {
            if !file.answers_at(functions.iter().map(|function| function.offset)) {
                continue;
            }
            if leads_to_the_library(pid, file) {
                let why = anyhow!(
                    "they lead to the sampling library already, and the kernel's probes would break them; `memprof --heap` samples them"
                );
                self.exact.fail(pid, path, &why);
                continue;
            }
            match self.probe.count_calls(pid, file, &functions) {
                Ok(links) => drop(self.exact.counting.insert((pid, id), links)),
                Err(e) => self.exact.fail(pid, path, &e),
            }
        }
    }
}

impl ExactCalls {
    /// Notes that an address space has mapped code, which may contain an allocator.
    pub(super) fn note_code(&mut self, mm: MmId) {
        if self.wanted {
            self.changed.insert(mm);
        }
    }

    fn fail(&mut self, pid: Pid, path: &Path, e: &anyhow::Error) {
        tracing::warn!(%pid, "{e:#}");
        if self.failures == 0 {
            messages::print(&format!(
                "the allocations that process {pid} makes by {} are not counted: {e:#}",
                printable(&path.to_string_lossy())
            ));
        }
        self.failures += 1;
    }
}

/// Whether the functions of a file begin with jumps to the sampling library in a process. At a breakpoint, the kernel executes the
/// instructions of the file in their place.
fn leads_to_the_library(pid: Pid, file: &TargetFile) -> bool {
    let executable = about_path(proc_dir::path(pid, "exe"));
    executable.is_ok_and(|about| about.identity() == file.identity())
        && sampler::detours_placed(pid).is_some_and(|placed| placed.count > 0)
}

/// Prints the cost of the probes before they are attached.
fn tell_cost<'f>(pid: Pid, files: impl Iterator<Item = (&'f Path, &'f [Function])>) {
    let (mut number, mut slow, mut names) = (0, Vec::new(), Vec::new());
    for (path, functions) in files {
        // Exceptions are rare, so their probe costs nothing.
        let functions = functions.iter().filter(|f| f.role != FunctionRole::Throws);
        let functions: Vec<&Function> = functions.collect();
        if functions.is_empty() {
            continue;
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        names.push(printable(&name.to_string_lossy()).to_string());
        number += functions.len();
        slow.extend(
            functions
                .iter()
                .filter(|f| !f.emulated)
                .map(|f| f.name.as_str()),
        );
    }
    if number == 0 {
        return;
    }
    messages::print(&format!(
        "counting every call of {number} allocation functions of {} in process {pid}: each costs it 1 to 5 µs. As a rule, programs that mostly compute take up to twice the CPU time, such as CPython with its own pools; \
         those that allocate much 40 to 110 times; code that does nothing else 400 times",
        names.join(", ")
    ));
    if !slow.is_empty() {
        messages::print(&format!(
            "of these functions, {} cost 15 to 50 µs a call, because the processor must execute one of their instructions alone: {}",
            slow.len(),
            slow.join(", ")
        ));
    }
}
