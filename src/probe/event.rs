//! Domain types: what the probe saw, independent of BPF and HTTP.

use memprof_code::interpreter::Kind;
use memprof_code::jit::NamesWritten;
use memprof_code::modules::FileNumber;
use memprof_profile::Outcome;
use memprof_sys::ids::{Addr, FileKey, MmId, Pid, StackId};

/// The position of a frame's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// An address in the process.
    Address(Addr),
    /// An address in a file, the same in every process.
    InFile(FileNumber, u64),
    /// An instruction of an interpreted function: its distance from the function's first one, in bytes, if it is known.
    Interpreted(FunctionNumber, Option<u32>),
    /// No frame: the next one is that of an interpreter's evaluator, which runs one function.
    Evaluator,
}

/// A function of an interpreted program, by the number that the probe gave it in its address space. 0 stands for frames that
/// were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionNumber(pub u32);

/// The probe's name of a function of an interpreted program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionKey {
    /// The address space.
    pub mm: MmId,
    /// Address of its code object.
    pub code: Addr,
    /// Distinguishes code objects that have the same address one after the other.
    pub check: u32,
}

/// A function's table of lines, in the interpreter's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// The table.
    Sent(Box<[u8]>),
    /// The address of the object that contains it: it was too long.
    At(Addr),
}

/// A function of an interpreted program, seen for the first time in an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSeen {
    /// Its number.
    pub number: FunctionNumber,
    /// The address space.
    pub mm: MmId,
    /// The process; `None` if it is not visible in memprof's pid namespace.
    pub pid: Option<Pid>,
    /// Address of its code object.
    pub code: Addr,
    /// Distinguishes code objects that have the same address one after the other.
    pub check: u32,
    /// The interpreter that runs it.
    pub interpreter: Kind,
    /// Minor version of the interpreter.
    pub version: u16,
    /// Its table of lines.
    pub lines: LineTable,
    /// Its first line, counted from 1.
    pub first_line: u32,
    /// Its name, qualified if the interpreter has qualified names; cut at the end with `…` if it is long.
    pub name: String,
    /// The file of its source; cut at the beginning with `…` if it is long.
    pub file: String,
}

/// What the probe reports through the ring buffer, in order of occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A stack seen for the first time.
    Stack(StackSeen),
    /// A followed process started, changed its address space, or ended.
    Process(ProcessEvent),
    /// A followed address space changed.
    Range(RangeEvent),
    /// Code was mapped from a file that has no number or no table yet.
    Code(CodeSeen),
    /// A function of an interpreted program was seen for the first time.
    Function(FunctionSeen),
    /// A runtime has written names of code that it has made.
    Names(NamesWritten),
    /// A sampler has sampled an allocation.
    Allocation(SampledAllocation),
    /// A sampled allocation is about to be freed.
    Free(SampleFreed),
    /// The program has set a mark.
    Mark(MarkSet),
    /// The kernel's out-of-memory killer has chosen a followed process.
    OomKill(OomVictim),
}

/// A sampled allocation, as the process's sampler describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledAllocation {
    /// The address space.
    pub mm: MmId,
    /// The stack that made it.
    pub stack: StackId,
    /// The thread that made it, by its id in the initial pid namespace.
    pub thread: u32,
    /// Its address.
    pub address: Addr,
    /// The bytes that the program asked for.
    pub size: u64,
    /// The bytes for which it stands: its size divided by the probability of being sampled.
    pub weight: u64,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// The free of a sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleFreed {
    /// The address space.
    pub mm: MmId,
    /// The address of the allocation.
    pub address: Addr,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// A mark that the program has set by the probe `memprof:mark`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkSet {
    /// The address space.
    pub mm: MmId,
    /// Its name, cut to 63 bytes; `None` if it is empty or could not be read.
    pub name: Option<String>,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// A process that the kernel's out-of-memory killer has chosen. It ends in a moment, if it has not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomVictim {
    /// The process.
    pub pid: Pid,
    /// Its address space.
    pub mm: MmId,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// Code that the probe cannot bind to a file's table by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSeen {
    /// The followed address space; `None` for a process that is only inspected.
    pub mm: Option<MmId>,
    /// The process; `None` if it is not visible in memprof's pid namespace.
    pub pid: Option<Pid>,
    /// Whether it is bound to the file's number; the table is not published yet.
    pub bound: bool,
    /// First address of the mapping.
    pub start: Addr,
    /// The file; `None` if it lies in memory without a file.
    pub file: Option<FileKey>,
}

/// A new stack, or one part of a stack that is too deep for one record; later events carry only its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSeen {
    /// The id that the ledgers hold.
    pub id: StackId,
    /// The address space to which the frames' addresses belong.
    pub mm: MmId,
    /// The process that was running; `None` if it is not visible in memprof's pid namespace.
    pub pid: Option<Pid>,
    /// How the walk ended; valid in the last part.
    pub outcome: Outcome,
    /// Number of frames of the same stack in earlier parts.
    pub before: usize,
    /// Whether this part contains the outermost frame.
    pub last: bool,
    /// Frames of an interpreter that were left out because no evaluator of theirs is on the stack; valid in the last part.
    pub unmerged: u32,
    /// Whether an interpreter's frames have their place by order: they are the last ones, and their evaluators are marked
    /// ([`Place::Evaluator`]).
    pub by_order: bool,
    /// Instruction addresses, innermost first; for callers, the last byte of the call instruction.
    pub frames: Vec<Place>,
}

/// A change in the life of a followed process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// The process.
    pub pid: Pid,
    /// Its address space after the change.
    pub mm: MmId,
    /// Its name.
    pub comm: String,
    /// What happened.
    pub change: ProcessChange,
}

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// It was running before memprof attached to it.
    Found,
    /// It took the awaited name by `exec`.
    Matched,
    /// It was forked from a followed process.
    Forked {
        /// The parent's address space, whose records apply to pages shared since the fork.
        parent_mm: MmId,
        /// The parent.
        parent: Pid,
    },
    /// It has a new address space by `exec`.
    Execed {
        /// The address space left behind.
        left: MmId,
    },
    /// It ended.
    Exited {
        /// Bytes of page tables at its end; meaningless unless its memory is kept ([`Kept`](memprof_sys::residency::Kept)).
        page_tables: u64,
    },
}

/// A change of an address range in a followed address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeEvent {
    /// The address space.
    pub mm: MmId,
    /// First byte, page aligned.
    pub start: Addr,
    /// End, exclusive, page aligned.
    pub end: Addr,
    /// What happened.
    pub change: RangeChange,
}

/// What happened to an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// Mapped by `mmap`, `brk` or a growing `mremap`.
    Mapped {
        /// The caller's stack.
        stack: StackId,
        /// The kernel filled it without faults (`MAP_POPULATE`, `MAP_LOCKED`, `mlockall`).
        populated: bool,
        /// It is executable: the process's modules may have changed.
        code: bool,
    },
    /// Filled without faults by `mlock` or `MADV_POPULATE_*`.
    Populated {
        /// The caller's stack.
        stack: StackId,
    },
    /// No longer mapped: `munmap`, `brk` shrinking, `MAP_FIXED` or `mremap` over it.
    Unmapped,
    /// Still mapped, its contents dropped: `MADV_DONTNEED`, `MADV_REMOVE`.
    Emptied,
    /// It became code by `mprotect`; nothing else changed.
    Executable,
    /// Moved here from another address.
    Moved {
        /// First byte of the previous range.
        from: Addr,
    },
}
