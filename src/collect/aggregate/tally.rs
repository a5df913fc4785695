//! Adds up the pages of a process by owner and by mapping.

use std::collections::HashMap;

use anyhow::Result;

use crate::collect::resident::Join;
use crate::collect::stack::StackTable;
use crate::probe::source::Totals;
use crate::probe::source::resident_pages::PageLedger;
use memprof_profile::{Amounts, MappedBytes};
use memprof_sys::ids::StackId;
use memprof_sys::residency::{PageRun, Vma};
use memprof_sys::usage::Usage;

/// Maximum number of pairs of mapping and stack that are stored until the frames of the stack arrive, 56 bytes each. The bytes of
/// further pairs count as attributed in their mapping, even if the frames are lost.
const MAX_UNKNOWN: usize = 1 << 18;

/// The bytes of a mapping whose stack was not known at the scan: its frames had not arrived yet, or were lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown {
    /// The index of the mapping.
    pub mapping: u32,
    pub stack: StackId,
    pub usage: Usage,
}

/// The totals of a process's pages.
pub(super) struct Tallied {
    /// Totals by owner.
    pub totals: Totals,
    /// Bytes of each mapping.
    pub bytes: Vec<MappedBytes>,
    /// The part of `bytes` whose stack was not known.
    pub unknown: Vec<Unknown>,
}

/// Totals the pages of a process by owner and by mapping.
pub(super) struct Tally<'a, L> {
    join: Join<'a, L>,
    vmas: &'a [Vma],
    stacks: &'a StackTable,
    /// Totals without the stacks of finished mappings, which are in `by_stack`.
    totals: Totals,
    by_stack: HashMap<StackId, Amounts>,
    bytes: Vec<MappedBytes>,
    unknown: Vec<Unknown>,
    failed: Option<anyhow::Error>,
    /// Number of bytes added so far.
    pub(super) seen: u64,
    /// The current mapping.
    last: Option<usize>,
}

impl<'a, L: PageLedger> Tally<'a, L> {
    pub(super) fn new(join: Join<'a, L>, vmas: &'a [Vma], stacks: &'a StackTable) -> Self {
        Tally {
            join,
            vmas,
            stacks,
            totals: Totals::default(),
            by_stack: HashMap::new(),
            unknown: Vec::new(),
            bytes: vec![MappedBytes::default(); vmas.len()],
            failed: None,
            seen: 0,
            last: None,
        }
    }

    /// Adds a run of pages of the mapping with this index.
    pub(super) fn add(&mut self, index: usize, run: PageRun) {
        if let Some(ended) = self.last.replace(index).filter(|last| *last != index) {
            self.end_mapping(ended);
        }
        if self.failed.is_none() {
            self.seen += run.len();
            let (totals, bytes) = (&mut self.totals, &mut self.bytes[index]);
            let added = self.join.add(&self.vmas[index], run, totals, bytes);
            self.failed = added.err();
        }
    }

    fn end_mapping(&mut self, index: usize) {
        let (totals, bytes) = (&mut self.totals, &mut self.bytes[index]);
        self.join.end_mapping(&self.vmas[index], totals, bytes);
        for (stack, amounts) in std::mem::take(&mut self.totals.stacks) {
            // The frames of the stack may arrive later.
            if self.stacks.get(stack).is_none() && self.unknown.len() < MAX_UNKNOWN {
                self.unknown.push(Unknown {
                    mapping: index as u32,
                    stack,
                    usage: amounts.usage,
                });
            }
            *self.by_stack.entry(stack).or_default() += amounts;
        }
    }

    /// Returns the totals.
    ///
    /// # Errors
    /// If the ledger could not be read.
    pub(super) fn finish(mut self) -> Result<Tallied> {
        if let Some(e) = self.failed {
            return Err(e.context("cannot read the page ledger"));
        }
        if let Some(ended) = self.last {
            self.end_mapping(ended);
        }
        self.totals.stacks = self.by_stack;
        Ok(Tallied {
            totals: self.totals,
            bytes: self.bytes,
            unknown: self.unknown,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::collect::functions::FunctionTable;
    use crate::collect::resident::SpaceView;
    use crate::probe::event::StackSeen;
    use crate::probe::source::resident_pages::Chunk;
    use memprof_code::modules::ModuleTable;
    use memprof_profile::Outcome;
    use memprof_sys::ids::{Addr, MmId};
    use memprof_sys::residency::{PageKind, RangeMap, RangeSet, proc_maps};

    const PAGE: u64 = 4096;

    /// A ledger with the stack id of each page.
    pub struct Pages(pub BTreeMap<u64, u32>);

    impl PageLedger for Pages {
        fn chunk(&self, _: MmId, chunk: u64) -> Result<Option<Chunk>> {
            if self
                .0
                .range(chunk * 512..(chunk + 1) * 512)
                .next()
                .is_none()
            {
                return Ok(None);
            }
            Ok(Some(std::array::from_fn(|at| {
                let page = chunk * 512 + at as u64;
                self.0.get(&page).copied().unwrap_or(0)
            })))
        }
    }

    fn arrived(stacks: &mut StackTable, id: u32) {
        let seen = StackSeen {
            id: StackId(id),
            mm: MmId(1),
            pid: None,
            outcome: Outcome::Complete,
            before: 0,
            last: true,
            unmerged: 0,
            by_order: false,
            frames: Vec::new(),
        };
        stacks.insert(
            seen,
            None,
            &FunctionTable::default(),
            &mut ModuleTable::new(),
        );
    }

    #[test]
    fn stacks_without_frames_are_known_by_mapping() {
        let maps = b"10000-14000 rw-p 00000000 00:00 0\n20000-24000 rw-p 00000000 00:00 0\n";
        let vmas = proc_maps::parse(maps).unwrap();
        let ledger = Pages([(0x10, 20), (0x11, 21), (0x20, 21), (0x21, 22)].into());
        let mut stacks = StackTable::default();
        arrived(&mut stacks, 20);
        let (ranges, before) = (RangeMap::new(8), RangeSet::new(8));
        let space = SpaceView {
            mm: MmId(1),
            ancestors: &[],
            ranges: &ranges,
            before: &before,
            page_size: PAGE,
            sampled: false,
        };
        let mut tally = Tally::new(Join::new(&ledger, space), &vmas, &stacks);
        for (index, start) in [(0, 0x10), (1, 0x20)] {
            let run = PageRun {
                start: Addr(start * PAGE),
                end: Addr((start + 3) * PAGE),
                kind: PageKind::Anon,
                huge: false,
                maps: None,
            };
            tally.add(index, run);
        }
        let Tallied {
            totals,
            mut bytes,
            unknown,
        } = tally.finish().unwrap();
        let by_stack: BTreeMap<u32, u64> = totals
            .stacks
            .iter()
            .map(|(id, amounts)| (id.0, amounts.usage.anon / PAGE))
            .collect();
        assert_eq!(by_stack, BTreeMap::from([(20, 1), (21, 2), (22, 1)]));
        let pages = |bytes: &MappedBytes| {
            [bytes.attributed, bytes.not_observed].map(|usage| usage.anon / PAGE)
        };
        assert_eq!([pages(&bytes[0]), pages(&bytes[1])], [[2, 1], [2, 1]]);
        // The frames of 22 arrive after the scan; those of 21 never.
        arrived(&mut stacks, 22);
        for lost in unknown.iter().filter(|u| stacks.get(u.stack).is_none()) {
            assert_eq!(lost.stack, StackId(21));
            bytes[lost.mapping as usize].lose(lost.usage);
        }
        assert_eq!(unknown.len(), 3);
        assert_eq!([pages(&bytes[0]), pages(&bytes[1])], [[1, 2], [1, 2]]);
    }
}
