//! Root of the readers of heaps in fuzz/'s library: without a process, and without what shows heaps.

mod address_map;
mod all_heaps;
mod arenas;
mod by_stack;
mod chunks;
mod contents;
mod files;
mod glibc;
mod jemalloc;
mod ledger;
mod memory;
mod names;
mod pages;
mod python;
mod reach;
mod report;
mod resident;
mod retained;
mod seen;
mod sizes;
pub mod synthetic;
mod types;
mod vtables;
mod whole;

/// A stub: nothing is shown.
mod text {
    use std::io::{self, Write};

    pub(super) fn write_left(_: &mut dyn Write, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn kib(bytes: u64) -> f64 {
        bytes as f64 / 1024.0
    }
}

/// A stub: no process is stopped.
mod snapshot {
    use std::time::Duration;

    use serde::Serialize;

    use super::memory::{Memory, Run};
    use super::whole::{KernelSums, Missing};
    use crate::freeze::{Guard, Registers};
    use crate::residency::Vma;
    use crate::sys::ids::Pid;

    #[derive(Clone, Debug, Default, PartialEq, Serialize)]
    pub struct Taken {
        pub stops_ms: f64,
    }

    #[derive(Clone, Copy, Debug)]
    pub struct SnapshotOptions {}

    #[derive(Debug)]
    pub(crate) struct Snapshot {
        pub vmas: Vec<Vma>,
        pub memory: Memory,
        pub threads: Vec<Registers>,
        pub taken: Taken,
        pub at: u64,
        pub pages: Pages,
        pub kernel: KernelSums,
        pub missing: Vec<Missing>,
        pub unforeseen: bool,
    }

    #[derive(Debug, Default)]
    pub(crate) struct Pages {
        pub readable: Vec<Run>,
        pub hidden: Vec<Run>,
    }

    impl Snapshot {
        pub(crate) fn of(vmas: Vec<Vma>, memory: Memory, threads: Vec<Registers>) -> Snapshot {
            let parts = vmas.iter().map(|vma| Run {
                start: vma.start.0,
                end: vma.end.0,
                resident: true,
            });
            let pages = Pages {
                readable: parts.collect(),
                hidden: Vec::new(),
            };
            Snapshot {
                vmas,
                memory,
                threads,
                taken: Taken::default(),
                at: 0,
                pages,
                kernel: KernelSums::default(),
                missing: Vec::new(),
                unforeseen: false,
            }
        }
    }

    pub(crate) fn take(
        _: Pid,
        _: &SnapshotOptions,
        _: &mut Guard,
        _: &mut Duration,
    ) -> anyhow::Result<Snapshot> {
        anyhow::bail!("there is no process")
    }

    pub(crate) fn take_exiting(_: Pid, _: Option<Registers>) -> anyhow::Result<Snapshot> {
        anyhow::bail!("there is no process")
    }
}
