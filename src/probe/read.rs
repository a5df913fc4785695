//! Reading the ledgers of the event sources.

use anyhow::{Context, Result, anyhow};
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags};

use super::Probe;
use super::batch::each_entry;
use crate::probe::source::resident_pages::{Chunk, PageLedger};
use crate::probe::source::{Ledger, ReadLedger, Source};
use crate::probe::wire::{self, page_chunk};
use memprof_profile::MapUsage;
use memprof_sys::ids::MmId;

impl ReadLedger for Probe {
    fn read(&self, ledger: &Ledger, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        // The kernel walks all buckets, of an empty map, too: of the page cache's, one for each 64 KiB of the machine's memory.
        if self.bss(ledger.entries) == 0 {
            return Ok(());
        }
        let map = self.map_of(ledger);
        let map = map.ok_or_else(|| anyhow!("memprof has no BPF map {}", ledger.map))?;
        each_entry(&map, ledger.batch, each)
            .with_context(|| format!("cannot read the BPF map {}", ledger.map))
    }
}

impl PageLedger for Probe {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        let key = chunk_key(mm, chunk).to_ne_bytes();
        let bytes = self.skel.maps.pages.lookup(&key, MapFlags::ANY)?;
        let chunk =
            bytes.and_then(|b| wire::read_record::<page_chunk>(&b, size_of::<page_chunk>()).ok());
        Ok(chunk.map(|c| c.stack))
    }
}

/// The key of a chunk of the page ledger.
pub(super) fn chunk_key(mm: MmId, chunk: u64) -> u64 {
    (u64::from(mm.0) << wire::REGION_BITS) | chunk
}

impl Probe {
    fn map_of(&self, ledger: &Ledger) -> Option<impl MapCore> {
        let mut maps = self.skel.object().maps();
        maps.find(|map| map.name() == ledger.map)
    }

    /// Numbers of entries and capacities of the ledgers and tables.
    pub fn tables(&self) -> Vec<MapUsage> {
        let maps = &self.skel.maps;
        let fill = |name, entries, map: &dyn MapCore| MapUsage {
            name,
            entries,
            capacity: u64::from(map.max_entries()),
        };
        let ledger = |source: &&Source| {
            let ledger = source.ledger?;
            let map = self.map_of(ledger)?;
            Some(fill(ledger.map, self.bss(ledger.entries), &map))
        };
        let (always, optional): (Vec<&Source>, Vec<&Source>) = self
            .sources
            .iter()
            .partition(|source| source.measure.option.is_none());
        let mut tables: Vec<MapUsage> = always.iter().filter_map(ledger).collect();
        tables.extend([
            MapUsage {
                name: "stacks",
                entries: u64::from(self.bss(|b| &raw const b.known_stacks)),
                capacity: u64::from(maps.stacks.max_entries()) * wire::BUCKET_SLOTS,
            },
            fill("unwind_pages", self.table_pages.get(), &maps.unwind_pages),
            fill(
                "procs",
                self.bss(|b| &raw const b.followed_processes),
                &maps.procs,
            ),
        ]);
        tables.extend(optional.iter().filter_map(ledger));
        tables
    }
}
