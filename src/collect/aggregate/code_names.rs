//! Names of the JIT code of the followed processes.

use std::ops::Range;
use std::time::Instant;

use super::Aggregator;
use crate::probe::Probe;
use memprof_code::jit::{NamesWritten, Problems};
use memprof_profile::Losses;
use memprof_sys::ids::MmId;

impl Aggregator {
    /// Whether a followed process has JIT code.
    pub fn has_runtime_code(&self) -> bool {
        self.spaces.values().any(|space| space.code.has_jit())
    }

    /// Reads the names that a process has written. Stacks after this event get these names.
    pub(super) fn names_written(&mut self, written: &NamesWritten) {
        if let Some(space) = self.spaces.get_mut(&written.mm) {
            let renamed = space.code.names_written(written, &mut self.modules);
            self.stacks.rename(written.mm, &renamed, &self.modules);
        }
    }

    /// Reads the names of JIT code that were written since the last call, and notifies the probe of replaced code.
    pub fn read_code_names(&mut self, probe: &mut Probe) {
        if probe.sees_runtime_code() {
            for space in self.spaces.values_mut() {
                space.code.look_for_runtime_code(&mut self.modules);
            }
        }
        let spaces = self.spaces.iter().filter(|(_, space)| space.code.has_jit());
        let spaces: Vec<MmId> = spaces.map(|(mm, _)| *mm).collect();
        if self
            .spaces
            .values()
            .any(|space| space.code.has_trampolines())
        {
            probe.expect_epilogues();
        }
        for mm in spaces {
            for replaced in self.read_names_of(mm) {
                probe.code_replaced(mm, replaced);
            }
        }
    }

    /// Reads the names of the code of one address space. Returns the addresses whose code was replaced.
    pub(super) fn read_names_of(&mut self, mm: MmId) -> Vec<Range<u64>> {
        let Some(space) = self.spaces.get_mut(&mm) else {
            return Vec::new();
        };
        let (renamed, replaced) = space.code.update_names(&mut self.modules);
        self.stacks.rename(mm, &renamed, &self.modules);
        if space.code.has_forgotten() {
            let begun = Instant::now();
            self.stacks.rename_all(mm, &space.code, &mut self.modules);
            space.code.named_all(begun.elapsed());
        }
        replaced
    }

    /// Adds the problems with names, including those of ended processes.
    pub(super) fn name_losses(&self, losses: &mut Losses) {
        let mut all = self.name_problems;
        for space in self.spaces.values() {
            all += space.code.name_problems();
        }
        for (what, count) in [
            (
                "perf maps that were not read: not a file of the process's own",
                all.refused,
            ),
            ("lines in perf maps that could not be read", all.malformed),
            (
                "times a perf map was rewritten: names since then are said to be later",
                all.rewritten,
            ),
            ("JIT functions without a name: too many names", all.no_room),
            (
                "functions without a name: too many functions",
                self.modules.functions_refused(),
            ),
        ] {
            losses.add(what, count);
        }
    }

    /// Records the problems of a process that ends.
    pub(super) fn keep_name_problems(&mut self, problems: Problems) {
        self.name_problems += problems;
    }
}
