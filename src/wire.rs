//! Bytes from the ring buffer → [`Event`]s. The home of the generated skeleton and of the `unsafe`
//! that reads kernel records.

#[allow(
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    non_camel_case_types,
    non_snake_case
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/memprof.skel.rs"));
}

pub(crate) use skel::types::{
    bss as Bss, cache_chunk, cache_key, code_file, code_segment, file_key, kernel_page, page_chunk,
    proc_info, stack_bucket, unwind_mapping, unwind_page, unwind_page_key, unwind_rule,
    unwind_space,
};
pub(crate) use skel::{MemprofSkel, MemprofSkelBuilder, OpenMemprofSkel};

use skel::types::{code_event, process_event, range_event, stack_event};

use crate::event::{
    Addr, CodeSeen, Event, FileKey, FileNumber, MmId, Outcome, PartialReason, Pid, Place,
    ProcessChange, ProcessEvent, RangeChange, RangeEvent, StackId, StackSeen,
};
use crate::profile::Losses;

// Values of the enums in memprof.h, which the skeleton does not carry (they are unused as types).
const EVENT_STACK: u32 = 1;
const EVENT_PROCESS: u32 = 2;
const EVENT_RANGE: u32 = 3;
const EVENT_CODE: u32 = 4;
const FRAME_IN_FILE: u64 = 1 << 63;
const FRAME_FILE_SHIFT: u32 = 40;
const FRAME_FILE_BITS: u32 = 23;
const RANGE_FLAG_POPULATE: u32 = 1;
const RANGE_FLAG_CODE: u32 = 2;

/// Pages in one ledger chunk.
pub(crate) const CHUNK_PAGES: usize = 512;
/// `MAX_MAPPINGS` of memprof.h.
pub(crate) const MAX_MAPPINGS: usize = 512;
/// Address bits of a chunk number in a page-ledger key.
pub(crate) const REGION_BITS: u32 = 36;
/// `BUCKET_SLOTS` of memprof.h.
pub(crate) const BUCKET_SLOTS: u64 = 4;
/// `MAX_SEGMENTS` of memprof.h.
pub(crate) const MAX_SEGMENTS: usize = 8;
/// Ids below this one name no stack.
pub(crate) const STACK_FIRST: u32 = 16;
/// The state of a stack's slot that is about to be freed.
pub(crate) const SLOT_LEAVING: u32 = u32::MAX;
/// A ledger entry that holds no record.
pub(crate) const STACK_NONE: u32 = 0;
/// A ledger entry whose stack was lost.
pub(crate) const STACK_LOST: u32 = 1;

const _: () = {
    assert!(size_of::<stack_event>() == 32 + 8 * 128);
    assert!(size_of::<process_event>() == 48);
    assert!(size_of::<range_event>() == 48);
    assert!(size_of::<page_chunk>() == 4 * CHUNK_PAGES);
    assert!(size_of::<cache_chunk>() == 8 + 4 * CHUNK_PAGES);
    assert!(size_of::<unwind_space>() == 8 + size_of::<unwind_mapping>() * MAX_MAPPINGS);
    assert!(size_of::<cache_key>() == 16);
    assert!(size_of::<kernel_page>() == 8);
    assert!(size_of::<proc_info>() == 16);
    assert!(size_of::<unwind_rule>() == 16);
    assert!(size_of::<unwind_page>() == 16);
    assert!(size_of::<unwind_mapping>() == 32);
    assert!(size_of::<file_key>() == 32);
    assert!(size_of::<code_event>() == 56);
    assert!(size_of::<code_file>() == 8 + size_of::<code_segment>() * MAX_SEGMENTS);
    assert!(size_of::<stack_bucket>() == 16 * BUCKET_SLOTS as usize);
};

/// Names of the probe's loss counters, in the order of `enum loss` in memprof.h.
pub(crate) const LOSS_NAMES: [&str; 16] = [
    "stack records not sent: ring buffer full (retried at the next event)",
    "process events not sent: ring buffer full",
    "address-space events not sent: ring buffer full",
    "events whose stack was not kept: stack table full",
    "events whose stack was not kept: hash collision",
    "page faults not recorded: page ledger full",
    "cached pages not recorded: cache ledger full",
    "cached pages not recorded: chunk removed meanwhile",
    "events not recorded: no memory for thread state",
    Losses::NOT_FOLLOWED,
    "children too many for one parent: pages shared with it may show its later stacks",
    "block-device cache pages (file-system metadata) not counted",
    "kernel pages not recorded: table full",
    "code mappings unknown to the unwinder: too many in one process, or mapped at the same moment",
    "code mappings unknown to the unwinder: ring buffer full",
    "processes whose code is unknown to the unwinder: table full (counted at each try)",
];

/// Index of the loss counter of processes' changes.
pub(crate) const LOSS_RING_PROCESS: usize = 1;
/// Index of the address-space loss counter: after such a loss the range books cannot be trusted.
pub(crate) const LOSS_RING_RANGE: usize = 2;

/// Why bytes from the ring buffer are not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than the record's fixed part.
    Short,
    /// A kind or enum value that this version does not know.
    Unknown,
}

/// A record of memprof.h: `repr(C)`, integers only.
///
/// # Safety
/// Implementers must be valid for every bit pattern.
pub(crate) unsafe trait Record: Copy + Default {}

// SAFETY: generated from memprof.h, where all fields are fixed-width integers without padding.
unsafe impl Record for stack_event {}
// SAFETY: as above.
unsafe impl Record for process_event {}
// SAFETY: as above.
unsafe impl Record for range_event {}
// SAFETY: as above.
unsafe impl Record for page_chunk {}
// SAFETY: as above.
unsafe impl Record for cache_chunk {}
// SAFETY: as above.
unsafe impl Record for cache_key {}
// SAFETY: as above.
unsafe impl Record for kernel_page {}
// SAFETY: as above.
unsafe impl Record for proc_info {}

/// Copies the bytes into a record; what they do not reach stays zero.
pub(crate) fn read_record<T: Record>(bytes: &[u8], at_least: usize) -> Result<T, Malformed> {
    if bytes.len() < at_least {
        return Err(Malformed::Short);
    }
    let mut record = T::default();
    let n = bytes.len().min(size_of::<T>());
    // SAFETY: both sides are `n` bytes long at least, do not overlap, and `T: Record` is valid for
    // every bit pattern.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut record).cast::<u8>(), n);
    }
    Ok(record)
}

// SAFETY: as above.
unsafe impl Record for unwind_rule {}
// SAFETY: as above.
unsafe impl Record for unwind_page {}
// SAFETY: as above.
unsafe impl Record for unwind_page_key {}
// SAFETY: as above.
unsafe impl Record for unwind_space {}
// SAFETY: as above.
unsafe impl Record for code_event {}
// SAFETY: as above.
unsafe impl Record for code_file {}
// SAFETY: as above.
unsafe impl Record for file_key {}

/// The bytes of a record.
pub(crate) fn record_bytes<T: Record>(record: &T) -> &[u8] {
    // SAFETY: `T: Record` has no padding, so that all its bytes are initialised.
    unsafe { std::slice::from_raw_parts((&raw const *record).cast::<u8>(), size_of::<T>()) }
}

/// Decodes one ring-buffer record.
///
/// # Errors
/// [`Malformed`] for bytes that no record of this version consists of; nothing is guessed.
pub fn decode(bytes: &[u8]) -> Result<Event, Malformed> {
    let kind = bytes.first_chunk().ok_or(Malformed::Short)?;
    match u32::from_ne_bytes(*kind) {
        EVENT_STACK => decode_stack(bytes).map(Event::Stack),
        EVENT_PROCESS => decode_process(bytes).map(Event::Process),
        EVENT_RANGE => decode_range(bytes).map(Event::Range),
        EVENT_CODE => decode_code(bytes).map(Event::Code),
        _ => Err(Malformed::Unknown),
    }
}

fn decode_stack(bytes: &[u8]) -> Result<StackSeen, Malformed> {
    const FIXED: usize = std::mem::offset_of!(stack_event, frames);
    let e: stack_event = read_record(bytes, FIXED)?;
    let nr = e.nr as usize;
    if nr > e.frames.len() || bytes.len() < FIXED + 8 * nr {
        return Err(Malformed::Short);
    }
    Ok(StackSeen {
        id: StackId(e.stack_id),
        mm: MmId(e.mm_id),
        pid: (e.pid != 0).then_some(Pid(e.pid)),
        outcome: decode_outcome(e.outcome)?,
        before: e.before as usize,
        last: e.last != 0,
        frames: e.frames[..nr].iter().map(|&f| decode_place(f)).collect(),
    })
}

fn decode_place(frame: u64) -> Place {
    if frame & FRAME_IN_FILE == 0 {
        return Place::Address(Addr(frame));
    }
    let number = frame >> FRAME_FILE_SHIFT & ((1 << FRAME_FILE_BITS) - 1);
    let address = frame & ((1 << FRAME_FILE_SHIFT) - 1);
    Place::InFile(FileNumber(number as u32), address)
}

fn decode_code(bytes: &[u8]) -> Result<CodeSeen, Malformed> {
    let e: code_event = read_record(bytes, size_of::<code_event>())?;
    Ok(CodeSeen {
        mm: (e.mm_id != 0).then_some(MmId(e.mm_id)),
        pid: (e.pid != 0).then_some(Pid(e.pid)),
        bound: e.bound != 0,
        start: Addr(e.start),
        file: FileKey {
            dev: e.file.dev,
            ino: e.file.ino,
            modified: e.file.modified,
            size: e.file.size,
        },
    })
}

fn decode_outcome(outcome: u32) -> Result<Outcome, Malformed> {
    Ok(match outcome {
        0 => Outcome::Complete,
        1 => Outcome::Partial(PartialReason::UnreadableStack),
        2 => Outcome::Partial(PartialReason::NoFramePointer),
        3 => Outcome::Partial(PartialReason::DepthLimit),
        4 => Outcome::NotTaken,
        5 => Outcome::Assisted,
        6 => Outcome::Partial(PartialReason::NoMapping),
        7 => Outcome::Partial(PartialReason::NoTable),
        8 => Outcome::Partial(PartialReason::UnsupportedRule),
        _ => return Err(Malformed::Unknown),
    })
}

fn decode_process(bytes: &[u8]) -> Result<ProcessEvent, Malformed> {
    let e: process_event = read_record(bytes, size_of::<process_event>())?;
    let change = match e.change {
        1 => ProcessChange::Found,
        2 => ProcessChange::Matched,
        3 => ProcessChange::Forked {
            parent_mm: MmId(e.parent_mm_id),
            parent: Pid(e.parent_pid),
        },
        4 => ProcessChange::Execed {
            left: MmId(e.parent_mm_id),
        },
        5 => ProcessChange::Exited {
            page_tables: e.page_tables,
        },
        _ => return Err(Malformed::Unknown),
    };
    let name = e.comm.split(|&b| b == 0).next().unwrap_or_default();
    Ok(ProcessEvent {
        pid: Pid(e.pid),
        mm: MmId(e.mm_id),
        comm: String::from_utf8_lossy(name).into_owned(),
        change,
    })
}

fn decode_range(bytes: &[u8]) -> Result<RangeEvent, Malformed> {
    let e: range_event = read_record(bytes, size_of::<range_event>())?;
    let stack = StackId(e.stack_id);
    let change = match e.change {
        1 => RangeChange::Mapped {
            stack,
            populated: e.flags & RANGE_FLAG_POPULATE != 0,
            code: e.flags & RANGE_FLAG_CODE != 0,
        },
        2 => RangeChange::Populated { stack },
        3 => RangeChange::Unmapped,
        4 => RangeChange::Moved { from: Addr(e.from) },
        5 => RangeChange::Emptied,
        6 => RangeChange::Executable,
        _ => return Err(Malformed::Unknown),
    };
    Ok(RangeEvent {
        mm: MmId(e.mm_id),
        start: Addr(e.start),
        end: Addr(e.end),
        change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stack_record(nr: u32, outcome: u32) -> stack_event {
        let mut e = stack_event {
            kind: EVENT_STACK,
            mm_id: 3,
            stack_id: 17,
            pid: 42,
            nr,
            outcome,
            last: 1,
            ..Default::default()
        };
        for (i, f) in e.frames.iter_mut().enumerate() {
            *f = 0x1000 + i as u64;
        }
        e.frames[1] = FRAME_IN_FILE | 7 << FRAME_FILE_SHIFT | 0x1234;
        e
    }

    #[test]
    fn a_stack_carries_only_its_frames() {
        let e = stack_record(2, 0);
        let bytes = &record_bytes(&e)[..32 + 16];
        let Ok(Event::Stack(s)) = decode(bytes) else {
            panic!("not a stack");
        };
        let in_file = Place::InFile(FileNumber(7), 0x1234);
        assert_eq!(s.frames, [Place::Address(Addr(0x1000)), in_file]);
        assert_eq!((s.id, s.mm, s.pid), (StackId(17), MmId(3), Some(Pid(42))));
        assert_eq!(s.outcome, Outcome::Complete);
        assert_eq!((s.before, s.last), (0, true));
    }

    #[test]
    fn a_cut_stack_is_refused() {
        let e = stack_record(3, 0);
        assert_eq!(decode(&record_bytes(&e)[..32 + 16]), Err(Malformed::Short));
        assert_eq!(
            decode(record_bytes(&stack_record(129, 0))),
            Err(Malformed::Short)
        );
        assert_eq!(
            decode(record_bytes(&stack_record(1, 99))),
            Err(Malformed::Unknown)
        );
    }

    #[test]
    fn a_process_event_has_its_name() {
        let mut e = process_event {
            kind: EVENT_PROCESS,
            change: 4,
            pid: 7,
            mm_id: 2,
            parent_mm_id: 1,
            ..Default::default()
        };
        e.comm[..4].copy_from_slice(b"node");
        let Ok(Event::Process(p)) = decode(record_bytes(&e)) else {
            panic!("not a process");
        };
        assert_eq!(p.comm, "node");
        assert_eq!(p.change, ProcessChange::Execed { left: MmId(1) });
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn known_kinds_with_any_rest_do_not_panic(
            kind in 0u32..6, rest in proptest::collection::vec(any::<u8>(), 0..1200),
        ) {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(rest);
            let _ = decode(&bytes);
        }
    }
}
