//! The threads that build unwind tables and search files for interpreters.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::eventfd::EventFd;

use memprof_code::elf::Elf;
use memprof_code::interpreter::{self, EnabledInterpreters, Interpreter, Unread};
use memprof_code::unwind::{Packed, Rule, Table};
use memprof_profile::{Module, ModuleId};
use memprof_sys::priority;
use memprof_sys::privileges::{self, ThreadRole};

/// Length of the build queue; a file that does not fit is queued when it is next mapped.
const QUEUE: usize = 4096;
/// Maximum number of threads that build tables.
const BUILDERS: usize = 4;

/// A request to build a table.
pub(super) struct BuildOrder {
    pub(super) module: ModuleId,
    pub(super) file: Arc<Module>,
}

/// The result of a thread's work on a file.
pub(super) enum Done {
    /// Searched for an interpreter: the interpreter, or the reason why its frames are not read.
    Searched(Option<Result<Interpreter, Unread>>),
    /// Built a table, or failed with this error.
    Built(Result<(Packed, Vec<Rule>), String>),
}

/// The queues of the threads.
pub(super) struct Queues {
    pub(super) tables: SyncSender<BuildOrder>,
    /// Files to search for an interpreter. A thread searches them before it builds the next table, because a search takes a
    /// thousandth of the time, and functions of an interpreter are known without tables.
    pub(super) searches: SyncSender<BuildOrder>,
}

/// Starts the threads; they write to `wake` when something is done. `interpreters` are the interpreters to search for.
///
/// # Errors
/// A thread could not be started.
pub(super) fn start(
    wake: &Arc<EventFd>,
    interpreters: EnabledInterpreters,
) -> Result<(Queues, Receiver<(ModuleId, Done)>)> {
    let (tables, wanted_tables) = sync_channel(QUEUE);
    let (searches, wanted_searches) = sync_channel(QUEUE);
    let (done, built) = channel();
    let wanted = Arc::new(Orders {
        tables: Mutex::new(wanted_tables),
        searches: Mutex::new(wanted_searches),
    });
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(BUILDERS));
    for _ in 0..threads {
        let (wanted, done, wake) = (Arc::clone(&wanted), done.clone(), Arc::clone(wake));
        thread::Builder::new()
            .name("memprof-tables".into())
            .spawn(move || build_tables(&wanted, &done, &wake, interpreters))
            .context("cannot start a thread that builds unwind tables")?;
    }
    Ok((Queues { tables, searches }, built))
}

struct Orders {
    tables: Mutex<Receiver<BuildOrder>>,
    searches: Mutex<Receiver<BuildOrder>>,
}

impl Orders {
    fn next_table(&self) -> Option<BuildOrder> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.recv().ok()
    }

    fn next_search(&self) -> Option<BuildOrder> {
        let searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        searches.try_recv().ok()
    }
}

fn build_tables(
    wanted: &Orders,
    done: &Sender<(ModuleId, Done)>,
    wake: &EventFd,
    interpreters: EnabledInterpreters,
) {
    priority::restore();
    privileges::reduce(ThreadRole::Tables);
    let tell = |module, what| {
        let told = done.send((module, what)).is_ok();
        let _ = wake.write(1);
        told
    };
    while let Some(order) = wanted.next_table() {
        while let Some(BuildOrder { module, file }) = wanted.next_search() {
            if !tell(
                module,
                Done::Searched(find_interpreter(&file, interpreters)),
            ) {
                return;
            }
        }
        if !tell(order.module, Done::Built(build(&order.file))) {
            return;
        }
    }
}

fn find_interpreter(
    module: &Module,
    wanted: EnabledInterpreters,
) -> Option<Result<Interpreter, Unread>> {
    interpreter::find(&Elf::read(module.file.as_ref()?).ok()?, wanted)
}

fn build(module: &Module) -> Result<(Packed, Vec<Rule>), String> {
    let began = Instant::now();
    let file = module.file.as_ref().ok_or("the file is not open")?;
    let table = Table::build(file).map_err(|e| e.to_string());
    let (file, took) = (&module.path, began.elapsed());
    match table {
        Ok(table) => {
            let (rows, rules) = (table.rows.len(), table.rules.len());
            tracing::debug!(?file, rows, rules, ?took, "an unwind table was built");
            Ok((table.pack(), table.rules))
        }
        Err(e) => {
            tracing::debug!(?file, error = e, "there is no unwind table");
            Err(e)
        }
    }
}
