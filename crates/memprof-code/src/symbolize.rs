//! Resolves frames to function names.
//!
//! Names come from the files' symbol tables, which are read again for each batch of unknown frames; only the resulting
//! names are cached. Inlined functions and source lines come from debug information, which is expensive to read, so
//! they are looked up only on request, on a thread of their own: names do not wait for them.

mod advice;
mod cache;
mod debugfile;
pub mod debuginfod_cache;
mod decompress;
mod demangle;
mod dwarf;
pub mod fetch;
mod gopclntab;
mod linked;
mod minidebug;
mod names;
mod packages;
mod plain;
mod runtimes;
mod sections;
mod shrunk;
mod sources;
mod split;
mod symtab;
pub mod types;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use self::advice::{Remedies, Remedy};
use self::cache::Cache;
pub use self::debugfile::debug_file_of;
use self::debuginfod_cache::CacheDirs;
pub use self::demangle::demangle;
use self::dwarf::Dwarf;
use self::fetch::{Fetch, Requests};
use self::sources::Sources;
pub use self::symtab::lookup;
use memprof_profile::symbol::{Function, Language, Symbol, Symbols, UnknownReason};
use memprof_profile::{Frame, FrameKind, JIT, Module, ModuleId};
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::{allocator, priority};

/// Capacity of the request queue.
const QUEUE: usize = 8;
/// After this time a report is returned without the names that are not known yet. Reading one file takes bounded time,
/// but many files or much debug information may take longer than users want to wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of cached names, and maximum size of the cache in bytes.
const MAX_NAMES: usize = 200_000;
const MAX_NAME_BYTES: usize = 24 << 20;
/// Number of modules from which on dropped modules are removed, each time the number has doubled.
const MANY_MODULES: usize = 1024;
/// Debug information is dropped after this time without a request.
const IDLE: Duration = Duration::from_secs(5);
/// Stack size of the thread, in bytes. Demanglers and DWARF readers recurse, up to limits well below this size. Only
/// the used part takes memory.
pub const STACK: usize = 32 << 20;

/// The level of detail to look up for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The function's name.
    Names,
    /// Also inlined functions and source lines, if the file has debug information.
    Inlined,
}

/// A handle to the threads that look up names, and lines. The threads end when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Symbolizer {
    requests: SyncSender<Job>,
    /// Requests of source lines and inlined functions.
    lines: SyncSender<Job>,
    rust_hashes: bool,
    /// Whether missing debug files are requested from servers.
    asking: bool,
}

#[derive(Debug)]
enum Job {
    Names(Request),
    /// Debug files of these modules have arrived, so that they are looked up again.
    Forget(HashSet<ModuleKey>),
    /// Asks for the remedies that would provide names for these files.
    Remedies(Vec<Arc<Module>>, SyncSender<Vec<Option<Remedy>>>),
}

#[derive(Debug)]
struct Request {
    frames: BTreeSet<Frame>,
    modules: Vec<Arc<Module>>,
    detail: Detail,
    reply: SyncSender<Symbols>,
}

impl Symbolizer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start() -> io::Result<Symbolizer> {
        Symbolizer::start_with(CacheDirs::of_environment(), None)
    }

    /// Starts the thread, which searches the directories in `cache` for debug files, and requests missing ones through
    /// `fetch`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start_with(cache: CacheDirs, fetch: Option<Fetch>) -> io::Result<Symbolizer> {
        let asking = fetch.is_some();
        let lines = start("memprof-lines", cache.clone(), None, None)?;
        Ok(Symbolizer {
            requests: start("memprof-symbols", cache, fetch, Some(lines.clone()))?,
            lines,
            rust_hashes: false,
            asking,
        })
    }

    /// Sets whether resolved symbols [show](Symbols::shown) Rust's hashes.
    pub fn with_rust_hashes(self, yes: bool) -> Symbolizer {
        Symbolizer {
            rust_hashes: yes,
            ..self
        }
    }

    /// Resolves frames. Blocks until done, at most half a minute. `modules` is indexed by [`ModuleId`].
    ///
    /// Every frame gets a [`Symbol`]; `Unknown` contains the reason for a failure.
    pub fn resolve(&self, frames: &[Frame], modules: &[Arc<Module>]) -> Symbols {
        self.resolve_with(frames, modules, Detail::Names)
    }

    /// Like [`resolve`](Symbolizer::resolve), with the given detail: with names alone if lines are not known in time.
    pub fn resolve_with(
        &self,
        frames: &[Frame],
        modules: &[Arc<Module>],
        detail: Detail,
    ) -> Symbols {
        let wanted: BTreeSet<Frame> = frames.iter().copied().collect();
        let (reply, answer) = mpsc::sync_channel(1);
        let request = Request {
            frames: wanted.clone(),
            modules: modules.to_vec(),
            detail,
            reply,
        };
        // If the queue is full, the thread is behind by that many reports, and this report does not wait.
        let thread = match detail {
            Detail::Names => &self.requests,
            Detail::Inlined => &self.lines,
        };
        let sent = thread.try_send(Job::Names(request)).is_ok();
        let why = match sent.then(|| answer.recv_timeout(PATIENCE)) {
            Some(Ok(mut symbols)) => {
                symbols.show_rust_hashes(self.rust_hashes);
                return symbols;
            }
            // Debug information that takes long to read must not cost the names.
            _ if detail == Detail::Inlined => {
                return self.resolve_with(frames, modules, Detail::Names);
            }
            Some(Err(RecvTimeoutError::Disconnected)) => "the symbol thread has ended",
            Some(Err(RecvTimeoutError::Timeout)) | None => {
                "names are still being read; a later report has them"
            }
        };
        let symbol = Arc::new(Symbol::Unknown(UnknownReason::Unreadable(why.into())));
        let all = wanted.into_iter();
        all.map(|f| (f, Arc::clone(&symbol))).collect()
    }
}

/// Key of a [`Module`] in the caches: its memory address, which is not reused while a weak reference
/// exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ModuleKey(usize);

impl ModuleKey {
    fn new(module: &Arc<Module>) -> ModuleKey {
        ModuleKey(Arc::as_ptr(module) as usize)
    }
}

type NameKey = (ModuleKey, u64);

struct Worker {
    /// The thread that looks up lines, which hears of debug files that have arrived.
    lines: Option<SyncSender<Job>>,
    names: Cache<NameKey>,
    modules: HashMap<ModuleKey, Weak<Module>>,
    /// Number of modules at which dropped modules are removed next.
    most_modules: usize,
    sources: Sources,
    remedies: Remedies,
    dwarf: Dwarf,
    no_file: Arc<Symbol>,
    jit: Arc<Symbol>,
}

/// Starts a thread that serves requests. `lines` is the thread that looks up lines.
fn start(
    name: &str,
    cache: CacheDirs,
    fetch: Option<Fetch>,
    lines: Option<SyncSender<Job>>,
) -> io::Result<SyncSender<Job>> {
    let (requests, inbox) = mpsc::sync_channel(QUEUE);
    let thread = thread::Builder::new().name(name.into()).stack_size(STACK);
    thread.spawn(move || {
        priority::restore();
        privileges::reduce(ThreadRole::Symbols);
        let worker = Worker {
            lines,
            ..Worker::new(cache, fetch)
        };
        serve(&inbox, worker);
    })?;
    Ok(requests)
}

fn serve(inbox: &Receiver<Job>, mut worker: Worker) {
    let mut tidy = true;
    loop {
        let request = if tidy {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(IDLE)
        };
        match request {
            Ok(Job::Remedies(modules, reply)) => {
                let cache = &worker.sources.cache;
                let _ = reply.send(worker.remedies.of_all(&modules, cache));
            }
            Ok(Job::Forget(arrived)) => worker.forget_files(&arrived),
            Ok(Job::Names(request)) => {
                let symbols = worker.answer(&request);
                // If the caller has gone away, nobody needs the reply.
                let _ = request.reply.send(symbols);
                tidy = false;
            }
            Err(RecvTimeoutError::Timeout) => {
                worker.tidy();
                tidy = true;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Worker {
    fn new(cache: CacheDirs, fetch: Option<Fetch>) -> Worker {
        Worker {
            lines: None,
            names: Cache::new(MAX_NAMES, MAX_NAME_BYTES),
            modules: HashMap::new(),
            most_modules: MANY_MODULES,
            sources: Sources {
                cache,
                requests: Requests::new(fetch),
                ..Sources::default()
            },
            remedies: Remedies::default(),
            dwarf: Dwarf::default(),
            no_file: Arc::new(Symbol::Unknown(UnknownReason::NoFile)),
            jit: Arc::new(Symbol::Known(Function {
                name: JIT.to_owned(),
                language: Language::Other,
                offset_in_function: 0,
                first_line: None,
                inlined: Vec::new(),
                location: None,
            })),
        }
    }

    fn answer(&mut self, request: &Request) -> Symbols {
        self.forget_arrived();
        let mut symbols = Symbols::default();
        let mut missing: HashMap<ModuleId, Vec<u64>> = HashMap::new();
        for frame in &request.frames {
            match self.known(*frame, request) {
                Ok(symbol) => symbols.insert(*frame, symbol),
                Err((id, offset)) => missing.entry(id).or_default().push(offset),
            }
        }
        for (id, mut offsets) in missing {
            offsets.sort_unstable();
            let Some(module) = request.modules.get(usize::from(id.0)) else {
                continue;
            };
            let found = self.look_up(module, &offsets, request.detail);
            for (offset, symbol) in offsets.into_iter().zip(found) {
                symbols.insert(Frame::code(id, offset), symbol);
            }
        }
        symbols.set_has_lines(request.detail == Detail::Inlined);
        if symbols.has_lines() {
            self.add_unread(request, &mut symbols);
        }
        symbols
    }

    /// Adds messages about files in the request whose debug information was only partly read.
    fn add_unread(&self, request: &Request, symbols: &mut Symbols) {
        let ids = request
            .frames
            .iter()
            .filter_map(|frame| match frame.kind() {
                FrameKind::Code(id, _) => Some(id),
                FrameKind::Unmapped(_) => None,
            });
        let ids: BTreeSet<ModuleId> = ids.collect();
        let modules = ids
            .iter()
            .filter_map(|id| request.modules.get(usize::from(id.0)));
        let unread = modules.filter_map(|module| self.dwarf.unread(ModuleKey::new(module)));
        unread.for_each(|what| symbols.add_unread(what));
    }

    /// The symbol, if it is known without reading a file; otherwise the module and offset to look up.
    fn known(&mut self, frame: Frame, request: &Request) -> Result<Arc<Symbol>, (ModuleId, u64)> {
        let FrameKind::Code(id, offset) = frame.kind() else {
            return Ok(Arc::clone(&self.no_file));
        };
        match request.modules.get(usize::from(id.0)) {
            Some(module) if module.file.is_some() || module.functions.is_some() => {
                let key = (ModuleKey::new(module), offset);
                self.names.get(key).ok_or((id, offset))
            }
            Some(module) if module.is_jit() => Ok(Arc::clone(&self.jit)),
            _ => Ok(Arc::clone(&self.no_file)),
        }
    }

    fn look_up(
        &mut self,
        module: &Arc<Module>,
        offsets: &[u64],
        detail: Detail,
    ) -> Vec<Arc<Symbol>> {
        let (sources, dwarf) = (&mut self.sources, &mut self.dwarf);
        // The files are untrusted: a panic while reading one of them must not affect the names from
        // other files.
        let found = catch_unwind(AssertUnwindSafe(|| {
            names::of_module(
                sources,
                module,
                offsets,
                (detail == Detail::Inlined).then_some(dwarf),
            )
        }));
        let found = found.unwrap_or_else(|_| {
            self.dwarf = Dwarf::default();
            self.sources.mini.clear();
            let why = UnknownReason::Unreadable("the symbol reader panicked on this file".into());
            vec![Symbol::Unknown(why); offsets.len()]
        });
        // `tidy` may never run, because a target that keeps mapping new files can cause requests without a pause.
        if self.modules.len() >= self.most_modules {
            self.forget_gone();
        }
        let key = ModuleKey::new(module);
        self.modules
            .entry(key)
            .or_insert_with(|| Arc::downgrade(module));
        // If the module's file is temporarily unreadable, the result is not cached.
        let keep = !module.rests();
        let found = offsets.iter().zip(found).map(|(offset, symbol)| {
            let symbol = Arc::new(symbol);
            if keep {
                self.names.insert((key, *offset), Arc::clone(&symbol));
            }
            symbol
        });
        found.collect()
    }

    /// Frees memory that is only needed during active use.
    fn tidy(&mut self) {
        let had_dwarf = !self.dwarf.is_empty();
        self.dwarf.clear();
        self.sources.mini.clear();
        self.forget_gone();
        if had_dwarf {
            allocator::give_back();
        }
    }

    fn forget_gone(&mut self) {
        self.modules.retain(|_, module| module.strong_count() > 0);
        self.most_modules = MANY_MODULES.max(2 * self.modules.len());
        let modules = &self.modules;
        self.names
            .retain(|(module, _)| modules.contains_key(module));
        self.dwarf.retain(|module| modules.contains_key(module));
        self.sources
            .requests
            .retain(|module| modules.contains_key(module));
    }

    /// Drops cached names of files whose debug files have arrived, so that they are looked up again.
    fn forget_arrived(&mut self) {
        let arrived = self.sources.requests.arrived();
        if arrived.is_empty() {
            return;
        }
        self.forget_files(&arrived);
        if let Some(lines) = &self.lines {
            // If it is far behind, its lines stay those of before.
            let _ = lines.try_send(Job::Forget(arrived));
        }
    }

    fn forget_files(&mut self, modules: &HashSet<ModuleKey>) {
        self.names.retain(|(module, _)| !modules.contains(module));
        modules.iter().for_each(|key| self.dwarf.forget(*key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_are_gone_are_forgotten_without_a_pause() {
        let mut worker = Worker::new(CacheDirs::default(), None);
        let ask = |worker: &mut Worker| {
            let module = Arc::new(Module {
                path: "/nowhere/short-lived".into(),
                name: "short-lived".into(),
                file: Some(tempfile::tempfile().unwrap().into()),
                ..Module::jit()
            });
            let request = Request {
                frames: [Frame::code(ModuleId(0), 0)].into(),
                modules: vec![Arc::clone(&module)],
                detail: Detail::Names,
                reply: mpsc::sync_channel(1).0,
            };
            worker.answer(&request);
            module
        };
        let kept: Vec<_> = (0..10).map(|_| ask(&mut worker)).collect();
        for _ in 0..3 * MANY_MODULES {
            ask(&mut worker);
        }
        assert!(worker.modules.len() <= MANY_MODULES);
        for module in &kept {
            assert!(worker.modules.contains_key(&ModuleKey::new(module)));
        }
    }
}
