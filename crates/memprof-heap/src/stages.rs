//! Measures the stages of an analysis, for the benchmark.

use std::time::Duration;

use anyhow::{Context, Result};

use super::all_heaps::AllHeaps;
use super::snapshot::{self, SnapshotOptions};
use super::source::Source;
use super::types::Census;
use super::{glibc, reach};
use memprof_sys::freeze::Guard;
use memprof_sys::ids::Pid;

/// Durations of the stages of one analysis, in the unit of the clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// Reading glibc's heap.
    pub walk: f64,
    /// Finding the reachable chunks, and nothing else.
    pub mark: f64,
    /// Finding the reachable chunks, and counting all objects by type and root as `memprof heap` does.
    pub mark_and_types: f64,
}

impl Stages {
    /// Takes a snapshot, and analyses it in stages. `clock` returns the CPU time of this thread.
    ///
    /// # Errors
    /// There is no snapshot, or no glibc heap in it.
    pub fn measure(pid: Pid, options: &SnapshotOptions, clock: fn() -> f64) -> Result<Stages> {
        let snapshot = snapshot::take(
            pid,
            options,
            &mut Guard::default(),
            &mut Duration::default(),
        )?;
        let read = || -> Result<AllHeaps> {
            let heap = glibc::read(&snapshot)?.context("there is no glibc heap")?;
            Ok(AllHeaps::new(Some(heap), None))
        };
        let begun = clock();
        let mut heaps = read()?;
        let walked = clock();
        let mut nothing = Census::of_nothing(&snapshot);
        reach::search(&snapshot, &mut heaps, &mut nothing, 20);
        let marked = clock();
        drop((heaps, nothing));
        // The marks are stored in the heap, so it is read again.
        let mut heaps = read()?;
        let again = clock();
        let mut census = Census::new(Source::Process(pid), &snapshot, 20);
        reach::search(&snapshot, &mut heaps, &mut census, 20);
        census.finish();
        Ok(Stages {
            walk: walked - begun,
            mark: marked - walked,
            mark_and_types: clock() - again,
        })
    }
}
