//! Samplers beside memprof's library in the same process: an allocator that follows the contract, or a wrapper of one. An allocation
//! that both see counts once. The library's samples count, because they begin with the process. A sample of another sampler is left
//! out if its probe was hit below the library, which had called its allocator. All samples of a file are left out, the earlier
//! ones too, once a sample shows that the library sees its allocations:
//!
//! - the function with its probe calls one that the library samples, as a stack of the library's shows;
//! - both have sampled the same block, one directly after the other.
//!
//! Likewise for two others without the library: if one gets its memory from the other, the inner one's samples count, because it has
//! all allocations of the outer one, and may have more.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Aggregator;
use crate::probe::event::SampledAllocation;
use memprof_profile::{Frame, FrameKind, ModuleId};
use memprof_sys::ids::{MmId, StackId};

/// Two samples of one block are at most so far apart, in ns: the same thread takes them within one call.
const TOGETHER: u64 = 10_000_000;

/// The samplers beside the library.
#[derive(Default)]
pub(super) struct OtherSamplers {
    /// For each file with probes, the functions that contain the probes of allocations: ranges of offsets in the file.
    functions: HashMap<ModuleId, Vec<Range<u64>>>,
    /// The files whose allocations the library or an inner sampler samples, too.
    covered: HashSet<(MmId, ModuleId)>,
}

impl OtherSamplers {
    /// The file of a frame, if it has probes.
    fn has(&self, frame: Frame) -> Option<ModuleId> {
        module_of(frame).filter(|module| self.functions.contains_key(module))
    }

    /// The files that have a function with a probe on this stack.
    fn on<'a>(&'a self, frames: &'a [Frame]) -> impl Iterator<Item = ModuleId> + 'a {
        frames.iter().filter_map(move |frame| match frame.kind() {
            FrameKind::Code(module, offset) => {
                let functions = self.functions.get(&module)?;
                let contains = |function: &Range<u64>| function.contains(&offset);
                functions.iter().any(contains).then_some(module)
            }
            FrameKind::Unmapped(_) => None,
        })
    }
}

fn module_of(frame: Frame) -> Option<ModuleId> {
    match frame.kind() {
        FrameKind::Code(module, _) => Some(module),
        FrameKind::Unmapped(_) => None,
    }
}

impl Aggregator {
    /// Adds a file with a sampler that is not memprof's library. `functions` contain its probes of allocations: ranges of offsets
    /// in the file.
    pub fn set_other_sampler(&mut self, module: ModuleId, functions: Vec<Range<u64>>) {
        self.other_samplers.functions.insert(module, functions);
    }

    /// Adds a sampled allocation, unless the library samples it, too.
    pub(super) fn sampled_allocation(&mut self, seen: &SampledAllocation) {
        if !self.other_samplers.functions.is_empty() && self.is_counted_by_another(seen) {
            return;
        }
        self.samples.allocated(seen);
    }

    fn is_counted_by_another(&mut self, seen: &SampledAllocation) -> bool {
        let Some(stack) = self.stacks.get(seen.stack).cloned() else {
            return false;
        };
        let Some(first) = stack.frames.first().copied() else {
            return false;
        };
        let twin = self.sampled_just_now(seen);
        if self.is_of_library(first) {
            let twin = twin.filter(|twin| !self.is_of_library(*twin));
            let twin = twin.and_then(|twin| self.other_samplers.has(twin));
            let found = self.other_samplers.on(&stack.frames).chain(twin);
            let found: Vec<ModuleId> = found.collect();
            for module in found {
                self.leave_to_another(seen.mm, module);
            }
            return false;
        }
        let Some(module) = self.other_samplers.has(first) else {
            return false;
        };
        let of_other = |twin| self.other_samplers.has(twin).is_some_and(|of| of != module);
        if twin.is_some_and(|twin| self.is_of_library(twin) || of_other(twin)) {
            self.leave_to_another(seen.mm, module);
        }
        let is_covered = self.other_samplers.covered.contains(&(seen.mm, module));
        let outer = self.other_samplers.on(&stack.frames);
        let outer = outer.filter(|outer| *outer != module && !is_covered);
        for outer in outer.collect::<Vec<_>>() {
            self.leave_to_another(seen.mm, outer);
        }
        is_covered || stack.frames.iter().any(|frame| self.is_of_library(*frame))
    }

    /// The place of the probe that sampled the same block directly before.
    fn sampled_just_now(&self, seen: &SampledAllocation) -> Option<Frame> {
        let before = self.samples.live(seen.mm)?.get(seen.address)?;
        let is_near = seen.at.abs_diff(before.at) <= TOGETHER && before.thread == seen.thread;
        let stack = self.stacks.get(before.stack).filter(|_| is_near)?;
        stack.frames.first().copied()
    }

    /// Leaves the allocations of a sampler to another one that has them, those of its earlier samples, too.
    pub fn leave_to_another(&mut self, mm: MmId, module: ModuleId) {
        let spaces = &self.spaces;
        let covered = &mut self.other_samplers.covered;
        if !covered.insert((mm, module)) {
            return;
        }
        covered.retain(|(mm, _)| spaces.contains_key(mm));
        tracing::debug!(
            ?mm,
            ?module,
            "another sampler has this one's allocations, too"
        );
        let is_theirs = |id: &StackId| {
            let stack = self.stacks.get(*id);
            let first = stack.and_then(|stack| stack.frames.first());
            first.and_then(|frame| module_of(*frame)) == Some(module)
        };
        let theirs: HashSet<StackId> = self.samples.stacks().filter(is_theirs).collect();
        self.samples.take_back(mm, &theirs);
    }
}
