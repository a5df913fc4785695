//! The interface between the BPF programs and user space: the generated skeleton, the records of memprof.h with the `unsafe` code
//! that reads and writes them, the events of the ring buffer, and the loss counters.

mod decode;
mod losses;
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
    bss as Bss, cache_chunk, cache_key, code_file, code_segment, cpu_state, exact_seen, exact_sum,
    file_key, function_key, interpreter_file, interpreter_kind, kernel_page, page_chunk,
    probe_argument, proc_info, python_layout, ruby_layout, sample_probe, stack_bucket,
    unwind_mapping, unwind_page, unwind_page_key, unwind_rule, unwind_space,
};
pub(crate) use skel::{MemprofSkel, MemprofSkelBuilder, OpenMemprofSkel};

use skel::types::{
    self as abi, code_event, function_event, mark_event, names_event, oom_event, peak_event,
    process_event, range_event, sample_event, stack_event,
};
pub(crate) use skel::types::{argument_place, loss, walk_mode as WalkMode};

pub use self::decode::decode;
pub(crate) use self::losses::{LOSS_COUNTERS, LOSSES};
use crate::probe::Unwind;
use memprof_code::allocators::flag;
use memprof_code::unwind::rule::{self, CfaKind, FpKind};

/// Pages in one ledger chunk.
pub(crate) const CHUNK_PAGES: usize = abi::limits::CHUNK_PAGES.0 as usize;
/// Maximum number of executable mappings per address space that the probe knows.
pub(crate) const MAX_MAPPINGS: usize = abi::limits::MAX_MAPPINGS.0 as usize;
/// Address bits of a chunk number in a page-ledger key.
pub(crate) const REGION_BITS: u32 = abi::limits::REGION_BITS.0;
/// Slots in one bucket of the table of known stacks.
pub(crate) const BUCKET_SLOTS: u64 = abi::limits::BUCKET_SLOTS.0 as u64;
/// Maximum number of executable segments per file that the probe knows.
pub(crate) const MAX_SEGMENTS: usize = abi::limits::MAX_SEGMENTS.0 as usize;
/// Maximum number of ranges of moved code that are bound at once.
pub(crate) const MAX_MOVED: usize = abi::limits::MAX_MOVED.0 as usize;
/// Key of the entry that a whole unwind table has in place of a page's number.
pub(crate) const UNWIND_TABLE_END: u32 = abi::limits::UNWIND_TABLE_END.0;
/// Ids below this one name no stack.
pub(crate) const STACK_FIRST: u32 = abi::stack_ids::STACK_FIRST.0;
/// The state of a stack's slot that is being freed.
pub(crate) const SLOT_LEAVING: u32 = abi::slot_state::SLOT_LEAVING.0;
/// A ledger entry without a record.
pub(crate) const STACK_NONE: u32 = abi::stack_ids::STACK_NONE.0;
/// A ledger entry whose stack was lost.
pub(crate) const STACK_LOST: u32 = abi::stack_ids::STACK_LOST.0;
/// A ledger entry of a page that was copied by a fault whose stack was not walked.
pub(crate) const STACK_UNWALKED: u32 = abi::stack_ids::STACK_UNWALKED.0;
/// A ledger entry of a page shared with a parent, to which the parent's records no longer apply.
pub(crate) const STACK_UNRECORDED: u32 = abi::stack_ids::STACK_UNRECORDED.0;
/// Bits of a page-ledger entry: the stack id, and the share of faults that were walked.
pub(crate) const RECORD_STACK_BITS: u32 = abi::page_record::RECORD_STACK_BITS.0;
pub(crate) const RECORD_SHARE_BITS: u32 = abi::page_record::RECORD_SHARE_BITS.0;

/// The stack id in an entry of the page ledger.
pub(crate) const fn stack_of_record(entry: u32) -> u32 {
    entry & ((1 << RECORD_STACK_BITS) - 1)
}

/// Bits of a page-ledger entry: the page came in by a neighbour's fault, and the fault was a write.
pub(crate) const RECORD_FOLLOWS: u32 = abi::page_record::RECORD_FOLLOWS.0;
pub(crate) const RECORD_WRITE: u32 = abi::page_record::RECORD_WRITE.0;
/// Bit of a page-ledger entry: the record is a copy of a parent's record.
pub(crate) const RECORD_INHERITED: u32 = abi::page_record::RECORD_INHERITED.0;
/// Bits of an address within a granule of JIT code, whose generation the probe counts.
pub(crate) const CODE_GRANULE_BITS: u32 = abi::limits::CODE_GRANULE_BITS.0;
/// Bits of the index of a generation counter.
pub(crate) const CODE_GENERATION_BITS: u32 = abi::limits::CODE_GENERATION_BITS.0;
/// Maximum number of different argument locations of samplers' probes, and maximum number of arguments.
pub(crate) const SAMPLE_PROBES: usize = abi::limits::SAMPLE_PROBES.0 as usize;
pub(crate) const SAMPLE_ARGUMENTS: usize = abi::limits::SAMPLE_ARGUMENTS.0 as usize;
/// Number of size classes of allocations.
pub(crate) const SIZE_CLASSES: usize = abi::limits::SIZE_CLASSES.0 as usize;
/// Maximum number of processors whose events are counted separately.
pub(crate) const MAX_CPUS: usize = abi::limits::MAX_CPUS.0 as usize;

const _: () = {
    assert!(size_of::<stack_event>() == 40 + 8 * abi::limits::MAX_SENT_FRAMES.0 as usize);
    assert!(size_of::<function_event>() == 104 + 128 + 256 + 1024);
    assert!(size_of::<interpreter_file>() == 112);
    assert!(size_of::<process_event>() == 56);
    assert!(size_of::<range_event>() == 48);
    assert!(size_of::<peak_event>() == 88);
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
    assert!(size_of::<names_event>() == 24);
    assert!(size_of::<sample_event>() == 48);
    assert!(size_of::<mark_event>() == 24 + abi::limits::MARK_NAME.0 as usize);
    assert!(size_of::<oom_event>() == 24);
    assert!(size_of::<sample_probe>() == 48);
    assert!(size_of::<exact_sum>() == 56 + 8 * SIZE_CLASSES);
    assert!(size_of::<code_file>() == 8 + size_of::<code_segment>() * MAX_SEGMENTS);
    assert!(size_of::<stack_bucket>() == 16 * BUCKET_SLOTS as usize);
};

// The unwind rules are defined without the skeleton, because fuzzing builds them alone. The values must agree.
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
    assert!(CfaKind::GoCall as u32 == abi::cfa_kind::CFA_GO_CALL.0);
    assert!(CfaKind::GoStopped as u32 == abi::cfa_kind::CFA_GO_STOPPED.0);
    assert!(FpKind::Same as u32 == abi::fp_kind::FP_SAME.0);
    assert!(FpKind::AtCfa as u32 == abi::fp_kind::FP_AT_CFA.0);
    assert!(FpKind::AtFp as u32 == abi::fp_kind::FP_AT_FP.0);
    assert!(FpKind::Lost as u32 == abi::fp_kind::FP_LOST.0);
    assert!(rule::RA_IN_LINK_REGISTER as u32 == abi::rule_flag::RULE_RA_IN_LINK_REGISTER.0);
    assert!(rule::BX_KEPT as u32 == abi::rule_flag::RULE_BX_KEPT.0);
    assert!(rule::BX_SAVED as u32 == abi::rule_flag::RULE_BX_SAVED.0);
    assert!(rule::OTHER_STACK as u32 == abi::rule_flag::RULE_OTHER_STACK.0);
    assert!(rule::NEEDS_FP as u32 == abi::rule_flag::RULE_NEEDS_FP.0);
    assert!(rule::NEEDS_BX as u32 == abi::rule_flag::RULE_NEEDS_BX.0);
    assert!(rule::ADDEND_SHIFT == abi::rule_flag::RULE_ADDEND_SHIFT.0);
    assert!(Unwind::Off as u32 == abi::unwind_mode::UNWIND_OFF.0);
    assert!(Unwind::FramePointers as u32 == abi::unwind_mode::UNWIND_FP.0);
    assert!(Unwind::Tables as u32 == abi::unwind_mode::UNWIND_TABLES.0);
    assert!(Unwind::Auto as u32 == abi::unwind_mode::UNWIND_AUTO.0);
};

// The flags in the cookies of allocation functions are also defined without the skeleton.
const _: () = {
    assert!(flag::RESIZES as u32 == abi::exact_flag::EXACT_RESIZES.0);
    assert!(flag::STORES as u32 == abi::exact_flag::EXACT_STORES.0);
    assert!(flag::NO_RETURN as u32 == abi::exact_flag::EXACT_NO_RETURN.0);
    assert!(flag::FREES as u32 == abi::exact_flag::EXACT_FREES.0);
    assert!(flag::EXITS as u32 == abi::exact_flag::EXACT_EXITS.0);
    assert!(flag::NO_REGISTER as u32 == abi::exact_flag::EXACT_NO_REGISTER.0);
};

/// Why bytes from the ring buffer could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than the record's fixed part.
    Short,
    /// A kind or enum value unknown to this version.
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
unsafe impl Record for names_event {}
// SAFETY: as above.
unsafe impl Record for sample_event {}
// SAFETY: as above.
unsafe impl Record for mark_event {}
// SAFETY: as above.
unsafe impl Record for oom_event {}
// SAFETY: as above.
unsafe impl Record for peak_event {}
// SAFETY: as above.
unsafe impl Record for sample_probe {}
// SAFETY: as above.
unsafe impl Record for exact_sum {}
// SAFETY: as above.
unsafe impl Record for code_file {}
// SAFETY: as above.
unsafe impl Record for file_key {}
// SAFETY: as above.
unsafe impl Record for function_event {}
// SAFETY: as above.
unsafe impl Record for interpreter_file {}
// SAFETY: as above.
unsafe impl Record for function_key {}

/// Copies bytes into a record. Fields beyond the end of `bytes` stay zero. `at_least` is the minimum length.
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

/// The bytes of a record.
pub(crate) fn record_bytes<T: Record>(record: &T) -> &[u8] {
    // SAFETY: `T: Record` has no padding, so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts((&raw const *record).cast::<u8>(), size_of::<T>()) }
}
