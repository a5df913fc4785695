//! The probe's loss counters.

use super::loss;
use memprof_profile::Losses;

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
        "events without a stack: stack table full",
    ),
    (
        loss::LOSS_STACK_COLLISION,
        "events without a stack: hash collision",
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
    (loss::LOSS_BLOCK_DEVICE, Losses::BLOCK_DEVICE),
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
    (
        loss::LOSS_RING_ALLOCATION,
        "sampled allocations not sent: ring buffer full",
    ),
    (
        loss::LOSS_RING_FREE,
        "frees of sampled allocations not sent: ring buffer full (they count as live)",
    ),
    (
        loss::LOSS_RING_MARK,
        "marks of the program not sent: ring buffer full",
    ),
    (
        loss::LOSS_RING_OOM_KILL,
        "kills by the out-of-memory killer not sent: ring buffer full",
    ),
    (loss::LOSS_RING_PEAK, "peaks not sent: ring buffer full"),
    (
        loss::LOSS_EXACT_STACKS,
        "allocations without their own stack: too many stacks",
    ),
    (
        loss::LOSS_EXACT_BLOCKS,
        "allocations that are not in the live heap: too many live ones",
    ),
    (
        loss::LOSS_EXACT_FREE,
        "allocations whose free was not seen, noticed when their address was used again",
    ),
    (
        loss::LOSS_EXACT_RETURN,
        "calls of allocation functions whose return was not seen: not counted",
    ),
    (
        loss::LOSS_EXACT_OPERATORS,
        "allocations by throwing C++ operators of an allocator: counted, but not in the live heap",
    ),
];

/// Number of loss counters.
pub(crate) const LOSS_COUNTERS: usize = loss::LOSS_NR.0 as usize;
