//! Keeps the probe's unwind tables in step with the code that the followed processes have mapped.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nix::sys::eventfd::EventFd;

use crate::aggregate::Aggregator;
use crate::event::{MmId, Pid};
use crate::probe::{Probe, TableMaps};
use crate::profile::Losses;
use crate::unwind::publish::Publisher;

/// How long a process waits for the tables of its code, at most: its first stacks are then complete.
/// The libraries of a compiler take a second; on a busy machine, and in a build that is not optimised,
/// more than ten.
pub(super) const PREPARE: Duration = Duration::from_secs(30);

/// The tables and where they go.
pub struct Unwinding {
    publisher: Publisher,
    maps: TableMaps,
}

impl Unwinding {
    /// Starts the thread that builds tables; it writes to `wake` when one is there.
    ///
    /// # Errors
    /// The thread could not be started, or the maps cannot be used.
    pub fn start(probe: &Probe, wake: Arc<EventFd>) -> Result<Unwinding> {
        Ok(Unwinding {
            publisher: Publisher::start(wake)?,
            maps: probe.table_maps()?,
        })
    }

    /// Builds the tables of a process that is about to be followed.
    ///
    /// # Errors
    /// The maps could not be written.
    pub fn prepare(&mut self, pid: Pid, books: &mut Aggregator) -> Result<()> {
        // A process that cannot be looked at is reported when it is followed.
        let Ok((code, modules)) = books.look_at_code(pid) else {
            return Ok(());
        };
        self.publisher
            .prepare(&code, &modules, &mut self.maps, PREPARE)
    }

    /// Publishes what changed: tables that were built, mappings that are new.
    ///
    /// # Errors
    /// The maps could not be written.
    pub fn update(&mut self, books: &mut Aggregator, probe: &mut Probe) -> Result<()> {
        let richer = self.publisher.collect(&mut self.maps)?;
        books.republish(&richer);
        let mut changed = !richer.is_empty();
        books.changed_code(|mm, code, modules| {
            changed = true;
            self.publisher.map(mm, code, modules, &mut self.maps)
        })?;
        if changed {
            probe.tables_changed();
        }
        Ok(())
    }

    /// An address space is gone.
    pub fn forget(&mut self, mm: MmId) {
        self.publisher.forget(mm);
        self.maps.forget(mm);
    }

    /// What did not fit.
    pub fn losses(&self, losses: &mut Losses) {
        losses.add(
            "files without an unwind table: tables full",
            self.publisher.refused(),
        );
        losses.add(
            "code mappings unknown to the unwinder: too many in one process",
            self.publisher.left_out(),
        );
        losses.add(
            "processes whose code is unknown to the unwinder: table full (counted at each try)",
            self.maps.refused(),
        );
    }
}
