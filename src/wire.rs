//! Decodes bytes from the ring buffer into [`Event`]s. Contains the generated skeleton and the `unsafe` code that
//! reads kernel records.

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

pub(crate) use skel::types::loss;
use skel::types::{self as abi, code_event, process_event, range_event, stack_event};

use crate::event::{
    Addr, CodeSeen, Event, FileKey, FileNumber, MmId, Outcome, PartialReason, Pid, Place,
    ProcessChange, ProcessEvent, RangeChange, RangeEvent, StackId, StackSeen,
};
use crate::probe::Unwind;
use crate::profile::Losses;
use crate::unwind::rule::{self, CfaKind, FpKind};

/// Pages in one ledger chunk.
pub(crate) const CHUNK_PAGES: usize = abi::limits::CHUNK_PAGES.0 as usize;
/// Maximum number of executable mappings that the probe knows of an address space.
pub(crate) const MAX_MAPPINGS: usize = abi::limits::MAX_MAPPINGS.0 as usize;
/// Address bits of a chunk number in a page-ledger key.
pub(crate) const REGION_BITS: u32 = abi::limits::REGION_BITS.0;
/// Slots in one bucket of the table of known stacks.
pub(crate) const BUCKET_SLOTS: u64 = abi::limits::BUCKET_SLOTS.0 as u64;
/// Maximum number of executable segments that the probe knows of a file.
pub(crate) const MAX_SEGMENTS: usize = abi::limits::MAX_SEGMENTS.0 as usize;
/// Ids below this one name no stack.
pub(crate) const STACK_FIRST: u32 = abi::stack_ids::STACK_FIRST.0;
/// The state of a stack's slot that is about to be freed.
pub(crate) const SLOT_LEAVING: u32 = abi::slot_state::SLOT_LEAVING.0;
/// A ledger entry that holds no record.
pub(crate) const STACK_NONE: u32 = abi::stack_ids::STACK_NONE.0;
/// A ledger entry whose stack was lost.
pub(crate) const STACK_LOST: u32 = abi::stack_ids::STACK_LOST.0;

const _: () = {
    assert!(size_of::<stack_event>() == 32 + 8 * abi::limits::MAX_FRAMES.0 as usize);
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

// The tables' rules are defined without the skeleton (fuzzing builds them alone): the values have to agree.
const _: () = {
    assert!(CfaKind::NotCovered as u32 == abi::cfa_kind::CFA_NOT_COVERED.0);
    assert!(CfaKind::Sp as u32 == abi::cfa_kind::CFA_SP.0);
    assert!(CfaKind::Fp as u32 == abi::cfa_kind::CFA_FP.0);
    assert!(CfaKind::Stop as u32 == abi::cfa_kind::CFA_STOP.0);
    assert!(CfaKind::Plt as u32 == abi::cfa_kind::CFA_PLT.0);
    assert!(CfaKind::DerefFp as u32 == abi::cfa_kind::CFA_DEREF_FP.0);
    assert!(CfaKind::DerefSp as u32 == abi::cfa_kind::CFA_DEREF_SP.0);
    assert!(CfaKind::Signal as u32 == abi::cfa_kind::CFA_SIGNAL.0);
    assert!(CfaKind::Unsupported as u32 == abi::cfa_kind::CFA_UNSUPPORTED.0);
    assert!(CfaKind::Bx as u32 == abi::cfa_kind::CFA_BX.0);
    assert!(FpKind::Same as u32 == abi::fp_kind::FP_SAME.0);
    assert!(FpKind::AtCfa as u32 == abi::fp_kind::FP_AT_CFA.0);
    assert!(FpKind::AtFp as u32 == abi::fp_kind::FP_AT_FP.0);
    assert!(FpKind::Lost as u32 == abi::fp_kind::FP_LOST.0);
    assert!(rule::RA_IN_LINK_REGISTER as u32 == abi::rule_flag::RULE_RA_IN_LINK_REGISTER.0);
    assert!(rule::BX_KEPT as u32 == abi::rule_flag::RULE_BX_KEPT.0);
    assert!(rule::BX_SAVED as u32 == abi::rule_flag::RULE_BX_SAVED.0);
    assert!(rule::NEEDS_FP as u32 == abi::rule_flag::RULE_NEEDS_FP.0);
    assert!(rule::NEEDS_BX as u32 == abi::rule_flag::RULE_NEEDS_BX.0);
    assert!(rule::ADDEND_SHIFT == abi::rule_flag::RULE_ADDEND_SHIFT.0);
    assert!(Unwind::Off as u32 == abi::unwind_mode::UNWIND_OFF.0);
    assert!(Unwind::FramePointers as u32 == abi::unwind_mode::UNWIND_FP.0);
    assert!(Unwind::Tables as u32 == abi::unwind_mode::UNWIND_TABLES.0);
    assert!(Unwind::Auto as u32 == abi::unwind_mode::UNWIND_AUTO.0);
};

/// The probe's loss counters, each with the name it has in reports.
pub(crate) const LOSSES: [(loss, &str); LOSS_COUNTERS] = [
    (
        loss::LOSS_RING_STACK,
        "stack records not sent: ring buffer full (retried at the next event)",
    ),
    (
        loss::LOSS_RING_PROCESS,
        "process events not sent: ring buffer full",
    ),
    (
        loss::LOSS_RING_RANGE,
        "address-space events not sent: ring buffer full",
    ),
    (
        loss::LOSS_STACK_TABLE,
        "events whose stack was not kept: stack table full",
    ),
    (
        loss::LOSS_STACK_COLLISION,
        "events whose stack was not kept: hash collision",
    ),
    (
        loss::LOSS_PAGE_LEDGER,
        "page faults not recorded: page ledger full",
    ),
    (
        loss::LOSS_CACHE_LEDGER,
        "cached pages not recorded: cache ledger full",
    ),
    (
        loss::LOSS_CACHE_RACE,
        "cached pages not recorded: chunk removed meanwhile",
    ),
    (
        loss::LOSS_TASK_STATE,
        "events not recorded: no memory for thread state",
    ),
    (loss::LOSS_PROCESS_TABLE, Losses::NOT_FOLLOWED),
    (
        loss::LOSS_COW_CHILDREN,
        "children too many for one parent: pages shared with it may show its later stacks",
    ),
    (
        loss::LOSS_BLOCK_DEVICE,
        "block-device cache pages (file-system metadata) not counted",
    ),
    (
        loss::LOSS_KERNEL_PAGES,
        "kernel pages not recorded: table full",
    ),
    (
        loss::LOSS_MAPPINGS,
        "code mappings unknown to the unwinder: too many in one process, or mapped at the same moment",
    ),
    (
        loss::LOSS_RING_CODE,
        "code mappings unknown to the unwinder: ring buffer full",
    ),
    (
        loss::LOSS_SPACES,
        "processes whose code is unknown to the unwinder: table full (counted at each try)",
    ),
];

/// Number of loss counters.
pub(crate) const LOSS_COUNTERS: usize = loss::LOSS_NR.0 as usize;

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

/// Copies bytes into a record; fields that the bytes do not reach stay zero. `at_least` is the minimum length.
pub(crate) fn read_record<T: Record>(bytes: &[u8], at_least: usize) -> Result<T, Malformed> {
    if bytes.len() < at_least {
        return Err(Malformed::Short);
    }
    let mut record = T::default();
    let n = bytes.len().min(size_of::<T>());
    // SAFETY: both sides are at least `n` bytes long and do not overlap, and `T: Record` is valid for every bit
    // pattern.
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
    // SAFETY: `T: Record` has no padding, so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts((&raw const *record).cast::<u8>(), size_of::<T>()) }
}

/// Decodes one ring-buffer record.
///
/// # Errors
/// [`Malformed`] if the bytes are not a record of this version; nothing is guessed.
pub fn decode(bytes: &[u8]) -> Result<Event, Malformed> {
    let kind = bytes.first_chunk().ok_or(Malformed::Short)?;
    match abi::event_kind(u32::from_ne_bytes(*kind)) {
        abi::event_kind::EVENT_STACK => decode_stack(bytes).map(Event::Stack),
        abi::event_kind::EVENT_PROCESS => decode_process(bytes).map(Event::Process),
        abi::event_kind::EVENT_RANGE => decode_range(bytes).map(Event::Range),
        abi::event_kind::EVENT_CODE => decode_code(bytes).map(Event::Code),
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

const FRAME_IN_FILE: u64 = 1 << abi::frame_bits::FRAME_IN_FILE_BIT.0;
const FRAME_FILE_SHIFT: u32 = abi::frame_bits::FRAME_FILE_SHIFT.0;

fn decode_place(frame: u64) -> Place {
    if frame & FRAME_IN_FILE == 0 {
        return Place::Address(Addr(frame));
    }
    let number = frame >> FRAME_FILE_SHIFT & ((1 << abi::frame_bits::FRAME_FILE_BITS.0) - 1);
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

fn decode_outcome(of: u32) -> Result<Outcome, Malformed> {
    Ok(match abi::outcome(of) {
        abi::outcome::OUTCOME_COMPLETE => Outcome::Complete,
        abi::outcome::OUTCOME_UNREADABLE => Outcome::Partial(PartialReason::UnreadableStack),
        abi::outcome::OUTCOME_NO_FRAME_POINTER => Outcome::Partial(PartialReason::NoFramePointer),
        abi::outcome::OUTCOME_DEPTH_LIMIT => Outcome::Partial(PartialReason::DepthLimit),
        abi::outcome::OUTCOME_NOT_TAKEN => Outcome::NotTaken,
        abi::outcome::OUTCOME_ASSISTED => Outcome::Assisted,
        abi::outcome::OUTCOME_NO_MAPPING => Outcome::Partial(PartialReason::NoMapping),
        abi::outcome::OUTCOME_NO_TABLE => Outcome::Partial(PartialReason::NoTable),
        abi::outcome::OUTCOME_UNSUPPORTED => Outcome::Partial(PartialReason::UnsupportedRule),
        _ => return Err(Malformed::Unknown),
    })
}

fn decode_process(bytes: &[u8]) -> Result<ProcessEvent, Malformed> {
    let e: process_event = read_record(bytes, size_of::<process_event>())?;
    let change = match abi::process_change(e.change) {
        abi::process_change::PROCESS_FOUND => ProcessChange::Found,
        abi::process_change::PROCESS_MATCHED => ProcessChange::Matched,
        abi::process_change::PROCESS_FORKED => ProcessChange::Forked {
            parent_mm: MmId(e.parent_mm_id),
            parent: Pid(e.parent_pid),
        },
        abi::process_change::PROCESS_EXECED => ProcessChange::Execed {
            left: MmId(e.parent_mm_id),
        },
        abi::process_change::PROCESS_EXITED => ProcessChange::Exited {
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
    let has = |flag: abi::range_flag| e.flags & flag.0 != 0;
    let change = match abi::range_change(e.change) {
        abi::range_change::RANGE_MAPPED => RangeChange::Mapped {
            stack,
            populated: has(abi::range_flag::RANGE_FLAG_POPULATE),
            code: has(abi::range_flag::RANGE_FLAG_CODE),
        },
        abi::range_change::RANGE_POPULATED => RangeChange::Populated { stack },
        abi::range_change::RANGE_UNMAPPED => RangeChange::Unmapped,
        abi::range_change::RANGE_MOVED => RangeChange::Moved { from: Addr(e.from) },
        abi::range_change::RANGE_EMPTIED => RangeChange::Emptied,
        abi::range_change::RANGE_EXECUTABLE => RangeChange::Executable,
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
            kind: abi::event_kind::EVENT_STACK.0,
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
            kind: abi::event_kind::EVENT_PROCESS.0,
            change: abi::process_change::PROCESS_EXECED.0,
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
