/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Records and constants shared between the BPF program and user space. Fixed-width fields, no padding, no bool. User
 * space gets these types from the generated skeleton, never by hand.
 */
#ifndef MEMPROF_H
#define MEMPROF_H

/* Sizes and limits. */
enum limits {
	/* Pages in one ledger chunk: 512 pages of 4 KiB, one x86-64 page-table page, 2 MiB. */
	CHUNK_SHIFT = 9,
	CHUNK_PAGES = 1 << CHUNK_SHIFT,
	/* Address bits of a chunk number in a ledger key: 57-bit addresses minus 12 and 9. */
	REGION_BITS = 36,
	/* Maximum number of frames in one record, and in the cached walk: a power of two. */
	MAX_FRAMES = 128,
	/* Buckets of the table of known stacks, and slots in a bucket, which is one cache line. */
	STACK_BUCKETS = 65536,
	BUCKET_SLOTS = 4,
	/* Maximum number of executable mappings of an address space. */
	MAX_MAPPINGS = 512,
	/* Maximum number of ranges of moved code that one run of the iterator binds. */
	MAX_MOVED = 16,
	/* Maximum number of executable segments of a file. */
	MAX_SEGMENTS = 8,
	/* Rows in one array of unwind_rows. */
	UNWIND_ROWS = 1 << 18,
	/* In place of a page's number: all pages of the table are there. */
	UNWIND_TABLE_END = 0xffffffff,
	/*
	 * Maximum number of children that copy records before the parent changes shared pages; see cow_children.bpf.h.
	 */
	MAX_COW_CHILDREN = 16,
	/* Processors with counters of their own. */
	MAX_CPUS = 1024,
	/* Number of first faults that are all walked. */
	WALK_FIRST = 16384,
	/* Maximum number of frames in one record, including those of an interpreter. */
	MAX_SENT_FRAMES = 248,
	/* Bytes sent of a function's name, and of the name of its file. */
	MAX_NAME = 128,
	MAX_FILE_NAME = 256,
	/* Bytes sent of a function's table of lines. */
	MAX_LINES = 1024,
	/*
	 * JIT code: log2 of the bytes in a granule of addresses, and of the number of generation counters; see
	 * code.bpf.h.
	 */
	CODE_GRANULE_BITS = 7,
	CODE_GENERATION_BITS = 12,
	/* Maximum number of generations of fork in the lookup of a record. */
	MAX_ANCESTORS = 8,
	/* Arguments of a sampler's probe, bytes of a mark's name, and maximum number of probes with a listener. */
	SAMPLE_ARGUMENTS = 3,
	MARK_NAME = 64,
	SAMPLE_PROBES = 1024,
	/* Size classes, by the number of bits of a size: a power of two. */
	SIZE_CLASSES = 64,
};

/* Stack ids. A ledger entry of 0 means "no record". */
enum stack_ids {
	STACK_NONE = 0,
	STACK_LOST = 1, /* the stack of an event is not known; see enum loss */
	STACK_UNWALKED = 2, /* a fault without a walk copied the page: the former owner does not own the copy */
	STACK_UNRECORDED = 3, /* the parent has replaced the shared page: its records no longer apply */
	STACK_FIRST = 16, /* lower ids are reserved */
};

/*
 * An entry of the page ledger: a stack id; the share of faults that were walked when the page came in, see share_code()
 * in sampling.bpf.h; and flags.
 */
enum page_record {
	RECORD_STACK_BITS = 20,
	RECORD_SHARE_BITS = 8,
	/* A neighbour's fault brought the page in: a huge page, or a large folio. */
	RECORD_FOLLOWS = 1 << (RECORD_STACK_BITS + RECORD_SHARE_BITS),
	/* The fault was a write, which maps no small pages around it. */
	RECORD_WRITE = RECORD_FOLLOWS << 1,
	/* The record is a copy of a parent's. */
	RECORD_INHERITED = RECORD_FOLLOWS << 2,
};

enum event_kind {
	EVENT_STACK = 1,
	EVENT_PROCESS = 2,
	EVENT_RANGE = 3,
	EVENT_CODE = 4,
	EVENT_FUNCTION = 5,
	EVENT_NAMES = 8,
	EVENT_ALLOCATION = 9,
	EVENT_FREE = 10,
	EVENT_MARK = 11,
	EVENT_OOM_KILL = 12,
	EVENT_PEAK = 13,
};

enum outcome {
	OUTCOME_COMPLETE = 0,
	OUTCOME_UNREADABLE = 1,
	OUTCOME_NO_FRAME_POINTER = 2, /* the next frame pointer is invalid: code built without them */
	OUTCOME_DEPTH_LIMIT = 3,
	OUTCOME_NOT_TAKEN = 4,
	OUTCOME_ASSISTED = 5, /* complete, but with frame pointers where there was no table */
	OUTCOME_NO_MAPPING = 6, /* code in no known mapping: JIT code, or mapped a moment ago */
	OUTCOME_NO_TABLE = 7, /* a known file without a table (so far), or without an entry for the address */
	OUTCOME_UNSUPPORTED = 8, /* a rule that the walk cannot follow */
};

/* How stacks are walked. */
enum unwind_mode {
	UNWIND_OFF = 0,
	UNWIND_FP = 1, /* frame pointers only */
	UNWIND_TABLES = 2, /* tables only */
	UNWIND_AUTO = 3, /* tables; frame pointers where a table is missing */
};

/* Which page faults have their stacks walked. */
enum walk_mode {
	WALK_ALL = 0,
	WALK_SHARE = 1, /* one fault of `walk_share` */
	WALK_BUDGET = 2, /* as many as fit into a share of the CPU time */
};

enum process_change {
	PROCESS_FOUND = 1, /* by the task iterator: older than memprof's attach */
	PROCESS_MATCHED = 2, /* an exec gave a process the awaited name */
	PROCESS_FORKED = 3,
	PROCESS_EXECED = 4, /* a followed process has a new address space */
	PROCESS_EXITED = 5,
};

enum range_change {
	RANGE_MAPPED = 1,
	RANGE_POPULATED = 2, /* mlock, MADV_POPULATE: filled without faults */
	RANGE_UNMAPPED = 3, /* munmap, brk shrink, MAP_FIXED or mremap over it */
	RANGE_MOVED = 4,
	RANGE_EMPTIED = 5, /* MADV_DONTNEED, MADV_REMOVE: contents dropped, but still mapped */
	RANGE_EXECUTABLE = 6, /* mprotect: became code; nothing else changed */
};

enum range_flag {
	RANGE_FLAG_POPULATE = 1, /* filled without faults (MAP_POPULATE, MAP_LOCKED, mlockall) */
	RANGE_FLAG_CODE = 2, /* executable: the process's modules may have changed */
};

/*
 * A new stack, or one part of a stack with more than MAX_FRAMES frames. Parts arrive in order, but other records may
 * lie between them. Only the first `nr` frames are sent.
 */
struct stack_event {
	__u32 kind;
	__u32 mm_id;
	__u32 stack_id;
	__u32 pid; /* in memprof's pid namespace; 0 if it has none there */
	__u32 nr;
	__u32 outcome; /* valid in the last part */
	__u32 before; /* number of the stack's frames in earlier parts */
	__u32 last;
	__u32 unmerged; /* interpreters' frames without a position on the stack, in all parts */
	__u32 by_order; /* evaluators are marked (FRAME_EVALUATOR), and the frames that they run come last */
	__u64 frames[MAX_SENT_FRAMES]; /* innermost first; return addresses minus one; see FRAME_IN_FILE */
};

/*
 * A native frame in a numbered file is a location in that file, the same in every process: `FRAME_IN_FILE | number <<
 * FRAME_FILE_SHIFT | address in the file`. A native frame elsewhere is an address.
 *
 * An interpreter's frame is `FRAME_INTERPRETED | function << FRAME_FUNCTION_SHIFT | instruction`. An earlier
 * function_event of the same address space describes the function; function 0 stands for omitted frames. The
 * instruction is the distance from the start of the code in bytes, in Ruby the line; FRAME_NO_INSTRUCTION if unknown.
 * The native frame of the evaluator that runs interpreted frames follows them. After the end of a native walk that was
 * cut off, they have no evaluator.
 */
enum frame_bits {
	FRAME_FILE_SHIFT = 40,
	FRAME_FILE_BITS = 23,
	FRAME_IN_FILE_BIT = FRAME_FILE_SHIFT + FRAME_FILE_BITS,
	FRAME_INTERPRETED_BIT = 62,
	FRAME_EVALUATOR_BIT = 61,
	FRAME_FUNCTION_SHIFT = 24,
	FRAME_NO_INSTRUCTION = (1 << FRAME_FUNCTION_SHIFT) - 1,
};
#define FRAME_IN_FILE (1ull << FRAME_IN_FILE_BIT)
#define FRAME_INTERPRETED (1ull << FRAME_INTERPRETED_BIT)
/* Not a frame: the next frame is an evaluator's. Only the order of evaluators determines which frames it runs. */
#define FRAME_EVALUATOR (FRAME_INTERPRETED | 1ull << FRAME_EVALUATOR_BIT)

struct process_event {
	__u32 kind;
	__u32 change;
	__u32 pid; /* in memprof's pid namespace */
	__u32 mm_id;
	/* forked: the parent's; execed: the previous address space; exited: mm_id if the process still has it; else 0 */
	__u32 parent_mm_id;
	__u32 parent_pid; /* forked: the parent's */
	/*
	 * exited: bytes of page tables, and the highest RSS in pages. If the process no longer has the address space, and
	 * nothing else holds a reference to it, they are junk.
	 */
	__u64 page_tables;
	__u64 highest_rss;
	__u8 comm[16];
};

struct range_event {
	__u32 kind;
	__u32 change;
	__u32 mm_id;
	__u32 stack_id;
	__u32 flags;
	__u32 pad;
	__u64 start; /* bytes, page aligned */
	__u64 end;
	__u64 from; /* moved: the former start of the range */
};

/* The RSS counters of an address space, with the kernel's numbers. */
enum rss_counter {
	RSS_FILE = 0,
	RSS_ANON = 1,
	RSS_SWAP = 2, /* in no sum */
	RSS_SHMEM = 3,
	RSS_COUNTERS = 4,
};

/* A call is about to drop memory after a new peak; see peak.bpf.h. */
struct peak_event {
	__u32 kind;
	__u32 mm_id;
	__u32 copy_id; /* the copy of the address space's records, in the page ledger */
	__u32 incomplete; /* the copy lacks records */
	__u64 start; /* the range that the call drops: bytes, page aligned */
	__u64 end;
	__u64 at; /* ns, CLOCK_MONOTONIC */
	__u64 rss[RSS_COUNTERS]; /* pages, before the call */
	__u64 highest_rss; /* pages; VmHWM is this or the sum of the counters, whichever is greater */
	__u64 others; /* pages of all other followed address spaces at that moment */
};

/* A file with mapped code. `dev` is the kernel's s_dev; `stat` may show another device (overlayfs, btrfs). */
struct file_key {
	__u64 ino;
	__u64 modified; /* ns; a file that is modified in place becomes another file */
	__u64 size; /* bytes */
	__u32 dev; /* 0: the vDSO; `size` is then the size of its mapping */
	__u32 pad;
};

/*
 * User space must examine code: it was mapped from a file that has no number or is not ready, or without a file (`file`
 * is then all 0).
 */
struct code_event {
	__u32 kind;
	__u32 mm_id; /* 0: not followed, user space requested the examination */
	__u32 pid; /* in memprof's pid namespace */
	__u32 bound; /* the mapping has the file's number; its table is not published yet */
	__u64 start; /* bytes */
	struct file_key file;
};

/* A process has written to a file with the name of a perf map or jitdump file: names of JIT code. */
struct names_event {
	__u32 kind;
	__u32 mm_id;
	__u64 ino;
	__u64 end; /* end of the written bytes in the file */
};

/* A sampled allocation, or the free of one. EVENT_FREE has no stack, size and weight. */
struct sample_event {
	__u32 kind;
	__u32 mm_id;
	__u32 tid; /* in the initial pid namespace */
	__u32 stack_id;
	__u64 address;
	__u64 size; /* bytes requested */
	__u64 weight; /* bytes that the sample represents */
	__u64 at; /* ns, CLOCK_MONOTONIC */
};

/* A mark that the program has set. */
struct mark_event {
	__u32 kind;
	__u32 mm_id;
	__u64 at; /* ns, CLOCK_MONOTONIC */
	__u32 unused;
	__u32 length; /* bytes of the name; 0 if it could not be read */
	__u8 name[MARK_NAME];
};

/* The kernel's out-of-memory killer has chosen a followed process. */
struct oom_event {
	__u32 kind;
	__u32 mm_id;
	__u32 pid; /* in memprof's pid namespace */
	__u32 unused;
	__u64 at; /* ns, CLOCK_MONOTONIC */
};

/* Where an argument of a probe is, according to its USDT note. */
enum argument_place {
	ARGUMENT_CONSTANT = 0,
	ARGUMENT_REGISTER = 1,
	ARGUMENT_MEMORY = 2, /* at the register's value plus `value` */
};

struct probe_argument {
	__u8 place;
	__u8 bits; /* of the value: 8, 16, 32, 64 */
	__u8 is_signed;
	__u8 pad;
	__u32 reg; /* offset in struct pt_regs, bytes */
	__u64 value; /* the constant, or the offset from the register */
};

/*
 * The arguments of a probe. For an allocation: address, size and weight. For a free: the address. For a mark: the
 * address of its name.
 */
struct sample_probe {
	struct probe_argument argument[SAMPLE_ARGUMENTS];
};

/*
 * The cookie of a probe of an allocation function: the registers that contain size, count and pointer, and enum
 * exact_flag. Each register is the index of a word in struct pt_regs, 8 bits long.
 */
enum exact_flag {
	EXACT_RESIZES = 1, /* the pointer argument is the resized block */
	EXACT_STORES = 2, /* the result is stored at the pointer argument, and the function returns 0 */
	EXACT_NO_RETURN = 4, /* no probe at the return */
	EXACT_FREES = 8, /* a failed resize frees the block */
	EXACT_EXITS = 16, /* the return is probed at the function's `ret` instructions */
	EXACT_NO_REGISTER = 0xff,
};

/* The allocations of a stack. Each counted call represents `weight` calls. */
struct exact_sum {
	__u32 stack;
	__u32 weight;
	__u64 objects;
	__u64 bytes;
	__u64 live_objects;
	__u64 live_bytes;
	__u64 temporary_objects;
	__u64 temporary_bytes;
	__u64 sizes[SIZE_CLASSES]; /* objects by the number of bits of their size */
};

struct exact_key {
	__u64 address;
	__u32 mm_id;
	__u32 pad;
};

/* A counted block that is not freed. */
struct exact_block {
	__u32 stack;
	__u32 pad;
	__u64 size; /* bytes requested */
	__u64 at; /* ns, CLOCK_MONOTONIC */
};

/* Numbers of calls of allocation functions. */
struct exact_seen {
	__u64 calls; /* outermost calls */
	__u64 nested; /* calls within another allocation function: not counted */
	__u64 filtered; /* calls that are not counted because of their size */
	__u64 failed; /* failed calls that would have been counted */
};

_Static_assert(sizeof(struct exact_sum) == 56 + 8 * SIZE_CLASSES, "exact_sum");
_Static_assert(sizeof(struct exact_key) == 16, "exact_key");
_Static_assert(sizeof(struct sample_event) == 48, "sample_event");
_Static_assert(sizeof(struct mark_event) == 24 + MARK_NAME, "mark_event");
_Static_assert(sizeof(struct oom_event) == 24, "oom_event");
_Static_assert(sizeof(struct sample_probe) == 48, "sample_probe");
_Static_assert(sizeof(struct names_event) == 24, "names_event");
_Static_assert(sizeof(struct file_key) == 32, "file_key");
_Static_assert(sizeof(struct code_event) == 56, "code_event");
_Static_assert(sizeof(struct stack_event) == 40 + 8 * MAX_SENT_FRAMES, "stack_event");
_Static_assert(sizeof(struct process_event) == 56, "process_event");
_Static_assert(sizeof(struct range_event) == 48, "range_event");
_Static_assert(sizeof(struct peak_event) == 88, "peak_event");

/*
 * One chunk of the page ledger, with the key `mm_id << REGION_BITS | page number >> CHUNK_SHIFT`. One entry per page,
 * see enum page_record.
 */
struct page_chunk {
	__u32 stack[CHUNK_PAGES];
};

/* One chunk of the page-cache ledger. `live` is the number of entries that are not 0. */
struct cache_chunk {
	__u32 live;
	__u32 pad;
	__u32 stack[CHUNK_PAGES];
};

struct cache_key {
	__u64 ino;
	__u32 dev;
	__u32 chunk; /* page index in the file >> CHUNK_SHIFT */
};

_Static_assert(sizeof(struct page_chunk) == 2048, "page_chunk");
_Static_assert(sizeof(struct cache_chunk) == 2056, "cache_chunk");
_Static_assert(sizeof(struct cache_key) == 16, "cache_key");

/*
 * Tables built from .eh_frame. The lookup of an address takes four steps:
 *
 *  - The mappings of the address space give the file's table and the address in the file.
 *  - The table has pages of 64 KiB.
 *  - A page has rows. Each row is valid from its pc to the next row's pc.
 *  - The row names a rule.
 */

/* How a frame's canonical frame address (CFA) is computed. */
enum cfa_kind {
	CFA_NOT_COVERED = 0, /* no entry covers the address */
	CFA_SP = 1, /* sp + offset */
	CFA_FP = 2, /* fp + offset */
	CFA_STOP = 3, /* the outermost frame */
	CFA_PLT = 4, /* sp + 8; sp + 16 from byte `offset` of a 16-byte PLT entry on */
	CFA_DEREF_FP = 5, /* *(fp + offset) */
	CFA_DEREF_SP = 6, /* *(sp + offset) */
	CFA_SIGNAL = 7, /* the registers are in the signal frame */
	CFA_UNSUPPORTED = 8,
	CFA_BX = 9, /* rbx + offset: the dynamic loader's resolver of lazy binding */
	CFA_GO_CALL = 10, /* value in the frame, minus the depth in the frame; see other_stack() */
	CFA_GO_STOPPED = 11, /* stack pointer of the thread's goroutine; see other_stack() */
};

/* How the caller's frame pointer is found. */
enum fp_kind {
	FP_SAME = 0,
	FP_AT_CFA = 1, /* *(CFA + offset) */
	FP_AT_FP = 2, /* *(fp + offset) */
	FP_LOST = 3,
};

/*
 * Flags of a rule. The upper byte is an addend, in bytes, for a CFA that was read from memory. The flags in RULE_NEEDS
 * are the registers that a rule needs, and, in a walk, the registers that are known.
 */
enum rule_flag {
	RULE_RA_IN_LINK_REGISTER = 0x01,
	RULE_NEEDS_FP = 0x10,
	RULE_NEEDS_BX = 0x20,
	RULE_NEEDS = RULE_RA_IN_LINK_REGISTER | RULE_NEEDS_FP | RULE_NEEDS_BX,
	RULE_BX_KEPT = 0x02, /* x86-64: the function has not changed the caller's rbx */
	RULE_BX_SAVED = 0x04, /* x86-64: rbx is saved at CFA + ra_offset, the return address at CFA - 8 */
	RULE_OTHER_STACK = 0x08, /* the caller may be on another stack, at any address */
	RULE_ADDEND_SHIFT = 8,
};

struct unwind_rule {
	__u8 cfa;
	__u8 fp;
	__u16 flags;
	__s32 cfa_offset;
	__s32 fp_offset;
	__s32 ra_offset; /* offset of the return address from the CFA; CFA_GO_STOPPED with 0: the goroutine has it */
};

/* Rows of many tables. A row is `rule << 16 | pc & 0xffff`. */
struct unwind_rows {
	__u32 row[UNWIND_ROWS];
};

struct unwind_page_key {
	__u32 table;
	__u32 page; /* address in the file >> 16, or UNWIND_TABLE_END */
};

struct unwind_page {
	__u32 chunk; /* index of the row array */
	__u32 first; /* index of the page's first row in it */
	__u32 count;
	__u32 rules; /* index of the table's first rule */
};

/* A segment of a file that the loader maps as code, from the program headers. */
struct code_segment {
	__u64 offset; /* in the file, bytes */
	__u64 size;
	__u64 address; /* in the file's own addresses */
};

/* The number and code segments of a file with mapped code. */
struct code_file {
	__u32 table; /* its number; 0: not an ELF file */
	__u8 ready; /* user space need not act when it is mapped again */
	__u8 nr; /* number of segments */
	__u16 pad;
	struct code_segment segment[MAX_SEGMENTS];
};

/* Where the code in a mapping comes from. */
enum code_origin {
	CODE_OF_FILE = 0,
	CODE_OF_NO_FILE = 1, /* anonymous memory */
	CODE_IN_PLACE = 2, /* anonymous memory that replaced a file's code: the program may move its code there */
	CODE_MOVED = 3, /* a file's code, moved to other memory, at the addresses of the file's mapping */
};

struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 bias; /* address - bias = address in the file */
	__u32 table; /* the file's number; 0: none; its table may not be published yet */
	__u32 origin; /* enum code_origin */
};

/* A range of code that was moved from a file's mapping to other memory. */
struct moved_code {
	__u64 start;
	__u64 end;
	__u64 bias; /* as in unwind_mapping */
	__u32 table; /* the file's number */
	__u32 pad;
};

/* The executable mappings of an address space, in address order. */
struct unwind_space {
	__u32 nr;
	__u32 version; /* odd during a change */
	struct unwind_mapping at[MAX_MAPPINGS];
};

_Static_assert(sizeof(struct unwind_rule) == 16, "unwind_rule");
_Static_assert(sizeof(struct unwind_page) == 16, "unwind_page");
_Static_assert(sizeof(struct unwind_mapping) == 32, "unwind_mapping");
_Static_assert(sizeof(struct moved_code) == 32, "moved_code");
_Static_assert(sizeof(struct code_file) == 8 + 24 * MAX_SEGMENTS, "code_file");

#include "interpreter.h"

/* A followed address space. */
struct mm_info {
	__u32 mm_id;
	__u32 users; /* followed processes that use it */
	__u32 slot; /* index in mm_filter */
	__u32 nr_cow_children;
	__u64 parent; /* the address space from which it was forked, if followed */
	__u32 cow_children[MAX_COW_CHILDREN]; /* 0: none */
	__u32 ancestors[MAX_ANCESTORS]; /* nearest first */
	__u32 snapshots; /* living copy-on-write children of heap snapshots */
	__u32 place; /* index in `listed_mms`; LISTED_MMS: none */
	__u64 peak_copied; /* the highest RSS of which the state was copied, in pages; see peak.bpf.h */
	__u64 peak_seen; /* the highest RSS that was seen before a drop, in pages */
};

/* A followed process, by its pid in the initial namespace. */
struct proc_info {
	__u64 mm;
	__u32 mm_id;
	__u32 pid; /* in memprof's pid namespace */
};

/* A known stack. The id is STACK_FIRST plus the index of its slot. */
struct stack_slot {
	__u64 key; /* the stack's hash; 0: the slot is free */
	__u32 check; /* a second hash, which distinguishes stacks with the same key; 0: not written yet */
	__u32 state; /* `epoch of its last use << 1 | sent to user space`; 0: not written yet */
};

enum slot_state {
	SLOT_SENT = 1,
	SLOT_LEAVING = 0xffffffff, /* user space is about to free the slot */
};

struct stack_bucket {
	struct stack_slot slot[BUCKET_SLOTS];
};

_Static_assert(STACK_FIRST + STACK_BUCKETS * BUCKET_SLOTS <= 1 << RECORD_STACK_BITS, "stack ids");

/* Kernel pages that a thread of a followed process allocated; see kernel.bpf.h. */
struct kernel_page {
	__u32 stack;
	__u32 pages; /* base pages */
};

_Static_assert(sizeof(struct kernel_page) == 8, "kernel_page");

/* Counters of losses. User space names each one; both sides share the order. */
enum loss {
	LOSS_RING_STACK, /* stack events that did not fit into the ring buffer; retried at the next event */
	LOSS_RING_PROCESS,
	LOSS_RING_RANGE,
	LOSS_STACK_TABLE, /* the table of known stacks is full, or the stack could not be walked */
	LOSS_STACK_COLLISION,
	LOSS_PAGE_LEDGER, /* the page ledger is full */
	LOSS_CACHE_LEDGER, /* the page-cache ledger is full */
	LOSS_CACHE_RACE, /* a chunk was removed during each attempt to write to it */
	LOSS_TASK_STATE, /* no memory for the state of a thread */
	LOSS_PROCESS_TABLE,
	LOSS_COW_CHILDREN, /* children beyond MAX_COW_CHILDREN */
	LOSS_BLOCK_DEVICE, /* not a loss: pages of block devices (file-system metadata), not counted */
	LOSS_KERNEL_PAGES, /* the table of kernel pages is full */
	LOSS_MAPPINGS, /* more than MAX_MAPPINGS in an address space, or the lock was busy at a fork */
	LOSS_RING_CODE,
	LOSS_SPACES, /* the table of address spaces' mappings is full */
	LOSS_RING_ALLOCATION,
	LOSS_RING_FREE,
	LOSS_RING_MARK,
	LOSS_RING_OOM_KILL,
	LOSS_RING_PEAK,
	LOSS_EXACT_STACKS, /* allocations without a row of their own: too many stacks */
	LOSS_EXACT_BLOCKS, /* allocations missing from the live heap: too many blocks */
	LOSS_EXACT_FREE, /* blocks at the address of a later allocation */
	LOSS_EXACT_RETURN, /* calls whose return was missed */
	LOSS_EXACT_OPERATORS, /* allocations by functions without a probe at the return */
	LOSS_NR,
};

#endif
