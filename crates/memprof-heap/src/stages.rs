//! What the parts of an analysis take, for the benchmark.

use std::time::Duration;

use anyhow::{Context, Result};

use super::all_heaps::AllHeaps;
use super::snapshot::{self, SnapshotOptions};
use super::types::Census;
use super::{glibc, reach};
use memprof_sys::freeze::Guard;
use memprof_sys::ids::Pid;

/// Times of the parts of one analysis, in the unit of the clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// Reading glibc's heap.
    pub walk: f64,
    /// Finding what can be reached, and nothing else.
    pub mark: f64,
    /// The same with what `memprof heap` does meanwhile: types and roots of all objects.
    pub mark_and_types: f64,
}

impl Stages {
    /// Takes a snapshot, and analyses it in parts. `clock` returns the time that this thread has used.
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
        // The marks are in the heap, so that it is read anew.
        let mut heaps = read()?;
        let again = clock();
        let mut census = Census::new(Some(pid), &snapshot, 20);
        reach::search(&snapshot, &mut heaps, &mut census, 20);
        census.finish();
        Ok(Stages {
            walk: walked - begun,
            mark: marked - walked,
            mark_and_types: clock() - again,
        })
    }
}
