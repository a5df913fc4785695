//! The threads that build tables.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::eventfd::EventFd;

use crate::elf::Elf;
use crate::interpreter::{self, Interpreter, Unread, Wanted};
use crate::priority;
use crate::privileges::{self, Role};
use crate::profile::{Module, ModuleId};
use crate::unwind::{Packed, Rule, Table};

/// Length of the build queue; a file that does not fit is queued when it is next mapped.
const QUEUE: usize = 4096;
/// Maximum number of threads that build tables.
const BUILDERS: usize = 4;

/// A request to build a table.
pub(super) struct BuildOrder {
    pub(super) module: ModuleId,
    pub(super) file: Arc<Module>,
}

/// A table built by a thread, or the error.
pub(super) struct Built {
    pub(super) module: ModuleId,
    pub(super) table: Result<(Packed, Vec<Rule>), String>,
    /// The interpreter in the file, if there is one; or why its frames are not read.
    pub(super) interpreter: Option<Result<Interpreter, Unread>>,
}

/// Starts the threads; they write to `wake` when a table is built. `interpreters` says which interpreters they
/// also look for.
///
/// # Errors
/// A thread could not be started.
pub(super) fn start(
    wake: &Arc<EventFd>,
    interpreters: Wanted,
) -> Result<(SyncSender<BuildOrder>, Receiver<Built>)> {
    let (requests, wanted) = sync_channel(QUEUE);
    let (done, built) = channel();
    let wanted = Arc::new(Mutex::new(wanted));
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(BUILDERS));
    for _ in 0..threads {
        let (wanted, done, wake) = (Arc::clone(&wanted), done.clone(), Arc::clone(wake));
        thread::Builder::new()
            .name("memprof-tables".into())
            .spawn(move || build_tables(&wanted, &done, &wake, interpreters))
            .context("cannot start a thread that builds unwind tables")?;
    }
    Ok((requests, built))
}

fn build_tables(
    wanted: &Mutex<Receiver<BuildOrder>>,
    done: &Sender<Built>,
    wake: &EventFd,
    interpreters: Wanted,
) {
    priority::restore();
    privileges::reduce(Role::Tables);
    while let Some(BuildOrder { module, file }) = next(wanted) {
        let built = Built {
            module,
            table: build(&file),
            interpreter: find_interpreter(&file, interpreters),
        };
        if done.send(built).is_err() {
            return;
        }
        let _ = wake.write(1);
    }
}

fn next(wanted: &Mutex<Receiver<BuildOrder>>) -> Option<BuildOrder> {
    let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
    wanted.recv().ok()
}

fn find_interpreter(module: &Module, wanted: Wanted) -> Option<Result<Interpreter, Unread>> {
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
