//! The events that the probe reports, as types independent of BPF and HTTP.

use std::ops::Range;

use memprof_code::interpreter::InterpreterKind;
use memprof_code::jit::NamesWritten;
use memprof_code::modules::FileNumber;
use memprof_profile::Outcome;
use memprof_sys::ids::{Addr, FileKey, MmId, Pid, StackId};

/// The position of a frame's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameLocation {
    /// An address in the process.
    Address(Addr),
    /// An address in a file, the same in every process.
    InFile(FileNumber, u64),
    /// An instruction of an interpreted function: its offset from the function's first instruction, in bytes, if it is known.
    Interpreted(FunctionNumber, Option<u32>),
    /// A marker, not a frame: the next frame is that of an interpreter's evaluator, which runs one function.
    Evaluator,
}

/// A function of an interpreted program, by the number that the probe assigned in its address space. 0 stands for omitted frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionNumber(pub u32);

/// The probe's key of a function of an interpreted program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionKey {
    /// The address space.
    pub mm: MmId,
    /// Address of its code object.
    pub code: Addr,
    /// Distinguishes code objects that had the same address one after the other.
    pub check: u32,
}

/// A function's line table, in the interpreter's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// The table.
    Sent(Box<[u8]>),
    /// The address of the object that contains the table, if the table is too long to send.
    At(Addr),
}

/// A function of an interpreted program, seen for the first time in an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSeen {
    /// The function's number.
    pub number: FunctionNumber,
    /// The address space.
    pub mm: MmId,
    /// The process; `None` if it is not visible in memprof's pid namespace.
    pub pid: Option<Pid>,
    /// Address of its code object.
    pub code: Addr,
    /// Distinguishes code objects that had the same address one after the other.
    pub check: u32,
    /// The interpreter that runs it.
    pub interpreter: InterpreterKind,
    /// Minor version of the interpreter.
    pub version: u16,
    /// The line table.
    pub lines: LineTable,
    /// The first line, counted from 1.
    pub first_line: u32,
    /// The name, qualified if the interpreter has qualified names; a long name is cut at the end with `…`.
    pub name: String,
    /// The source file; a long path is cut at the beginning with `…`.
    pub file: String,
}

/// An event in the ring buffer. Events come in order of occurrence.
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
    /// A runtime has written names of its JIT code.
    Names(NamesWritten),
    /// A sampler has sampled an allocation.
    Allocation(SampledAllocation),
    /// A sampled allocation is about to be freed.
    Free(SampleFreed),
    /// The program has set a mark.
    Mark(MarkSet),
    /// The kernel's out-of-memory killer has chosen a followed process.
    OomKill(OomVictim),
    /// A process is about to drop memory after a new peak.
    Peak(PeakSeen),
}

impl Event {
    /// The address space in which the event may have mapped code that was not there before.
    pub fn maps_code_in(&self) -> Option<MmId> {
        match self {
            Event::Process(e) => Some(e.mm),
            Event::Range(e) => match e.change {
                RangeChange::Mapped { code: true, .. } | RangeChange::Executable => Some(e.mm),
                _ => None,
            },
            _ => None,
        }
    }
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
    /// The address of the allocation.
    pub address: Addr,
    /// The requested size, in bytes.
    pub size: u64,
    /// The bytes that the sample represents: its size divided by its sampling probability.
    pub weight: u64,
    /// Time of the allocation, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// The free of a sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleFreed {
    /// The address space.
    pub mm: MmId,
    /// The address of the allocation.
    pub address: Addr,
    /// Time of the free, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// A mark that the program has set with the probe `memprof:mark`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkSet {
    /// The address space.
    pub mm: MmId,
    /// The mark's name, cut to 63 bytes; `None` if it is empty or could not be read.
    pub name: Option<String>,
    /// Time of the mark, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// A process that the kernel's out-of-memory killer has chosen. It ends soon or has already ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomVictim {
    /// The process.
    pub pid: Pid,
    /// The process's address space.
    pub mm: MmId,
    /// Time of the choice, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// The memory of a process just before a call that drops some of it, when there was more than ever before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakSeen {
    /// The address space.
    pub mm: MmId,
    /// The copy of its page records at that moment, as if it were another address space.
    pub copy: MmId,
    /// Whether the copy lacks records.
    pub incomplete: bool,
    /// The addresses that the call drops, page aligned; all of them when a process ends or executes a program.
    pub dropped: Range<u64>,
    /// The moment, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The kernel's counter of pages of files.
    pub file: u64,
    /// The kernel's counter of anonymous pages.
    pub anon: u64,
    /// The kernel's counter of shared pages.
    pub shmem: u64,
    /// The kernel's counter of swapped-out pages.
    pub swap: u64,
    /// The highest number of resident pages before that moment.
    pub highest_before: u64,
    /// The resident pages of all other followed processes at that moment.
    pub others: u64,
}

impl PeakSeen {
    /// Number of resident pages.
    pub fn rss(&self) -> u64 {
        self.file + self.anon + self.shmem
    }

    /// Whether the process is about to lose all of its memory.
    pub fn drops_all(&self) -> bool {
        self.dropped.start == 0
    }

    /// The highest number of resident pages until then.
    pub fn highest(&self) -> u64 {
        self.rss().max(self.highest_before)
    }
}

/// Code that the probe cannot bind to a file's table by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSeen {
    /// The followed address space; `None` for a process that is only inspected.
    pub mm: Option<MmId>,
    /// The process; `None` if it is not visible in memprof's pid namespace.
    pub pid: Option<Pid>,
    /// Whether the code is bound to the file's number although the table is not published yet.
    pub bound: bool,
    /// First address of the mapping.
    pub start: Addr,
    /// The file; `None` for memory without a file.
    pub file: Option<FileKey>,
}

/// A new stack, or one part of a stack that is too deep for one record. Later events carry only its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSeen {
    /// The stack's id in the ledgers.
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
    /// Number of interpreter frames omitted because their evaluator is not on the stack; valid in the last part.
    pub unmerged: u32,
    /// Whether interpreter frames are placed by order: they are the last frames, and their evaluators are marked
    /// ([`FrameLocation::Evaluator`]).
    pub by_order: bool,
    /// Instruction addresses, innermost first; for callers, the last byte of the call instruction.
    pub frames: Vec<FrameLocation>,
}

/// A followed process, and the change in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// The process.
    pub pid: Pid,
    /// The process's address space after the change.
    pub mm: MmId,
    /// The process's name.
    pub comm: String,
    /// The change.
    pub change: ProcessChange,
}

/// A change in the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// The process was running before memprof attached to it.
    Found,
    /// The process took the awaited name by `exec`.
    Matched,
    /// The process was forked from a followed process.
    Forked {
        /// The parent's address space, whose records apply to pages shared since the fork.
        parent_mm: MmId,
        /// The parent.
        parent: Pid,
    },
    /// The process has a new address space by `exec`.
    Execed {
        /// The address space left behind.
        left: MmId,
    },
    /// The process ended.
    Exited {
        /// Whether the process still had its memory (Linux 6.16). If not, and if its memory is not kept
        /// ([`ExitMemory`](memprof_sys::residency::ExitMemory)), the other figures are meaningless.
        has_memory: bool,
        /// Size of the page tables at its end, in bytes.
        page_tables: u64,
        /// The highest number of resident pages.
        highest_rss: u64,
    },
}

/// An address range in a followed address space, and its change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeEvent {
    /// The address space.
    pub mm: MmId,
    /// First byte, page aligned.
    pub start: Addr,
    /// End, exclusive, page aligned.
    pub end: Addr,
    /// The change.
    pub change: RangeChange,
}

/// A change of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// Mapped by `mmap`, `brk` or a growing `mremap`.
    Mapped {
        /// The caller's stack.
        stack: StackId,
        /// Whether the kernel filled the range without faults (`MAP_POPULATE`, `MAP_LOCKED`, `mlockall`).
        populated: bool,
        /// Whether the range is executable: the process's modules may have changed.
        code: bool,
    },
    /// Filled without faults by `mlock` or `MADV_POPULATE_*`.
    Populated {
        /// The caller's stack.
        stack: StackId,
    },
    /// No longer mapped: `munmap`, `brk` shrinking, `MAP_FIXED` or `mremap` over it.
    Unmapped,
    /// Mapped as before, with its contents dropped: `MADV_DONTNEED`, `MADV_REMOVE`.
    Emptied,
    /// Made executable by `mprotect`; nothing else changed.
    Executable,
    /// Moved here from another address.
    Moved {
        /// First byte of the previous range.
        from: Addr,
    },
}
