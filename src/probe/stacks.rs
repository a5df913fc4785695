//! The probe's table of stacks, shared with user space, and how slots that nothing refers to are freed.
//!
//! The steps: a new epoch begins; wait until every running program has ended; mark all stacks that are referred to
//! (by the ledgers, and by the aggregator, which received the ring buffer's events); free the slots that were not
//! used since the epoch began and are not marked. A program that uses a slot in between first writes the epoch into
//! it, so that user space's compare-and-swap fails. See stacks.bpf.h for the other side.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use nix::sys::mman::{MapFlags as Mapping, ProtFlags, mmap, munmap};

use super::{Probe, shared};
use crate::probe::source::ReadLedger;
use crate::probe::wire::{
    BUCKET_SLOTS, MemprofSkel, SLOT_LEAVING, STACK_FIRST, stack_bucket, stack_of_record,
};
use memprof_sys::ids::StackId;

/// A slot, modified by both sides: `struct stack_slot`.
#[repr(C)]
struct Slot {
    key: AtomicU64,
    check: AtomicU32,
    state: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() * BUCKET_SLOTS as usize == size_of::<stack_bucket>());

/// The set of stacks that are referred to, by slot.
#[derive(Debug)]
pub struct UsedStacks(Vec<u64>);

impl UsedStacks {
    fn new(slots: usize) -> UsedStacks {
        UsedStacks(vec![0; slots.div_ceil(64)])
    }

    /// Adds a stack. Ignores ids that name no stack.
    pub fn insert(&mut self, id: StackId) {
        if let Some(slot) = id.0.checked_sub(STACK_FIRST)
            && let Some(word) = self.0.get_mut(slot as usize / 64)
        {
            *word |= 1 << (slot % 64);
        }
    }

    fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }
}

impl Probe {
    /// Number of known stacks, and the capacity.
    pub fn stacks_known(&self) -> (usize, usize) {
        (
            self.bss(|b| &raw const b.known_stacks) as usize,
            self.slots.len(),
        )
    }

    /// Begins a search for stacks that nothing refers to: programs that start from now on mark the stacks that they
    /// use. All earlier events are in the ring buffer when this returns.
    ///
    /// # Errors
    /// If the kernel does not report that the running programs have ended.
    pub fn begin_collection(&mut self) -> Result<UsedStacks> {
        self.set_collecting(true);
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            shared(&mut data.stack_epoch).fetch_add(1, SeqCst);
        }
        self.slots.wait_for_programs()?;
        Ok(self.slots.nothing_used())
    }

    /// Marks the stacks that the ledgers refer to.
    ///
    /// # Errors
    /// If a ledger cannot be read.
    pub fn mark_used(&self, used: &mut UsedStacks) -> Result<()> {
        for ledger in self.sources.iter().filter_map(|source| source.ledger) {
            self.read(ledger, &mut |_, value| {
                let mut last = [0; 4];
                let ids = value.get(ledger.stacks.clone()).unwrap_or_default();
                for id in ids.chunks_exact(4).filter_map(|id| id.first_chunk()) {
                    if *id != last {
                        // (The other ledgers have ids alone.)
                        used.insert(StackId(stack_of_record(u32::from_ne_bytes(*id))));
                        last = *id;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Ends a search that [`Probe::begin_collection`] began: frees the stacks that nothing refers to, and calls
    /// `forget` for each before its id can name another stack. With `None`, frees nothing.
    pub fn end_collection(&mut self, used: Option<&UsedStacks>, forget: impl FnMut(StackId)) {
        let epoch = match self.skel.maps.data_data.as_deref_mut() {
            Some(data) => shared(&mut data.stack_epoch).load(SeqCst),
            None => return,
        };
        let freed = used.map_or(0, |used| self.slots.free(epoch, used, forget));
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.known_stacks).fetch_sub(freed, SeqCst);
        }
        self.set_collecting(false);
    }

    fn set_collecting(&mut self, collecting: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            shared(&mut bss.stacks_collected).store(collecting.into(), SeqCst);
        }
    }
}

/// The table of stacks.
pub(super) struct StackSlots {
    at: NonNull<Slot>,
    slots: usize,
    bytes: NonZeroUsize,
    /// A map of maps: an update waits for a grace period.
    grace: MapHandle,
    inner: MapHandle,
}

impl StackSlots {
    pub(super) fn new(skel: &MemprofSkel<'static>) -> Result<StackSlots> {
        let map = MapHandle::try_from(&skel.maps.stacks)
            .context("cannot get a handle to the BPF map of stacks")?;
        let slots = map.max_entries() as usize * BUCKET_SLOTS as usize;
        let bytes = NonZeroUsize::new(slots * size_of::<Slot>())
            .context("the BPF map of stacks is empty")?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of the map's whole value, at an address that the kernel chooses.
        let at = unsafe { mmap(None, bytes, both, Mapping::MAP_SHARED, &map, 0) };
        let at = at.context("cannot map the table of stacks into memory")?;
        let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let inner = MapHandle::create(MapType::Array, Some("memprof_grace"), 4, 4, 1, &opts)
            .context("cannot create the BPF map that waits for running programs")?;
        Ok(StackSlots {
            at: at.cast(),
            slots,
            bytes,
            grace: MapHandle::try_from(&skel.maps.grace)
                .context("cannot get a handle to the BPF map of maps")?,
            inner,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.slots
    }

    /// Waits until every running program has ended.
    pub(super) fn wait_for_programs(&self) -> Result<()> {
        use std::os::fd::{AsFd, AsRawFd};
        let fd = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.grace
            .update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .context("cannot wait for running BPF programs to end")
    }

    pub(super) fn nothing_used(&self) -> UsedStacks {
        UsedStacks::new(self.slots)
    }

    /// Frees the slots that were not used in this epoch and that nothing refers to; calls `forget` for each before
    /// another stack can take it. Returns their number.
    pub(super) fn free(
        &self,
        epoch: u32,
        used: &UsedStacks,
        mut forget: impl FnMut(StackId),
    ) -> u32 {
        // SAFETY: the mapping holds `self.slots` slots and lives as long as `self`; both sides modify them only by
        // atomic operations.
        let slots = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.slots) };
        let mut freed = 0;
        for (index, slot) in slots.iter().enumerate() {
            let state = slot.state.load(SeqCst);
            // 0: the slot is free, or a program is claiming it.
            if state == 0 || state == SLOT_LEAVING || state >> 1 == epoch || used.contains(index) {
                continue;
            }
            let leaves = slot
                .state
                .compare_exchange(state, SLOT_LEAVING, SeqCst, SeqCst);
            if leaves.is_ok() {
                forget(StackId(STACK_FIRST + index as u32));
                slot.check.store(0, SeqCst);
                slot.key.store(0, SeqCst);
                slot.state.store(0, SeqCst);
                freed += 1;
            }
        }
        freed
    }
}

impl Drop for StackSlots {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing refers to it any more.
        let _ = unsafe { munmap(self.at.cast(), self.bytes.get()) };
    }
}
