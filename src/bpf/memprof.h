/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Records and constants shared between the BPF program and user space. Fixed-width fields, no
 * padding, no bool. User space gets these types from the generated skeleton, never by hand.
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
	/* Buckets of the table of known stacks, and slots in one, which is a cache line. */
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
	/* At most this many children copy records before the parent changes shared pages; see cow_children.bpf.h. */
	MAX_COW_CHILDREN = 16,
	/* Processors whose events are counted apart. */
	MAX_CPUS = 1024,
	/* Faults whose stack is walked in any case. */
	WALK_FIRST = 16384,
	/* Maximum number of frames in one record, with those of an interpreter. */
	MAX_SENT_FRAMES = 248,
	/* Bytes of a function's name and of its file's name that are sent. */
	MAX_NAME = 128,
	MAX_FILE_NAME = 256,
	/* Bytes of a function's table of lines that are sent. */
	MAX_LINES = 1024,
	/* Code made at run time has a generation for each so many bytes, in so many counters; see code.bpf.h. */
	CODE_GRANULE_BITS = 7,
	CODE_GENERATION_BITS = 12,
	/* Maximum number of generations of fork through which a record is looked up. */
	MAX_ANCESTORS = 8,
	/* Arguments of a sampler's probe, and the probes that memprof listens to. */
	SAMPLE_ARGUMENTS = 3,
	MARK_NAME = 64,
	SAMPLE_PROBES = 1024,
	/* Classes of sizes, by their number of bits: a power of two. */
	SIZE_CLASSES = 64,
};

/* Stack ids. A ledger entry of 0 means "no record". */
enum stack_ids {
	STACK_NONE = 0,
	STACK_LOST = 1, /* the stack of an event could not be kept; see enum loss */
	STACK_UNWALKED = 2, /* the page was copied by a fault whose stack was not walked: its former owner is not the copy's */
	STACK_UNRECORDED = 3, /* the page was shared with a parent that has replaced its own: the parent's records no longer apply */
	STACK_FIRST = 16, /* ids below it are reserved */
};

/*
 * An entry of the page ledger: a stack id; the share of the faults that were walked when the page came in, see
 * share_code() in sampling.bpf.h; and flags.
 */
enum page_record {
	RECORD_STACK_BITS = 20,
	RECORD_SHARE_BITS = 8,
	/* The page came in by a neighbour's fault: a huge page, or a large folio. */
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
};

enum outcome {
	OUTCOME_COMPLETE = 0,
	OUTCOME_UNREADABLE = 1,
	OUTCOME_NO_FRAME_POINTER = 2, /* the next frame pointer is invalid: code built without them */
	OUTCOME_DEPTH_LIMIT = 3,
	OUTCOME_NOT_TAKEN = 4,
	OUTCOME_ASSISTED = 5, /* complete, with frame pointers where there was no table */
	OUTCOME_NO_MAPPING = 6, /* code in no known mapping: JIT, or mapped a moment ago */
	OUTCOME_NO_TABLE = 7, /* a known file that has no table (yet), or no entry for the address */
	OUTCOME_UNSUPPORTED = 8, /* a rule that the walk cannot follow */
};

/* How stacks are walked. */
enum unwind_mode {
	UNWIND_OFF = 0,
	UNWIND_FP = 1, /* frame pointers only */
	UNWIND_TABLES = 2, /* tables only */
	UNWIND_AUTO = 3, /* tables; frame pointers where there is none */
};

/* Which page faults have their stack walked. */
enum walk_mode {
	WALK_ALL = 0,
	WALK_SHARE = 1, /* one of so many */
	WALK_BUDGET = 2, /* as many as fit into a share of the CPU time */
};

enum process_change {
	PROCESS_FOUND = 1, /* by the task iterator: ran before memprof attached */
	PROCESS_MATCHED = 2, /* an exec gave a process the wanted name */
	PROCESS_FORKED = 3,
	PROCESS_EXECED = 4, /* a followed process has a new address space */
	PROCESS_EXITED = 5,
};

enum range_change {
	RANGE_MAPPED = 1,
	RANGE_POPULATED = 2, /* mlock, MADV_POPULATE: filled without faults */
	RANGE_UNMAPPED = 3, /* munmap, brk shrink, MAP_FIXED or mremap over it */
	RANGE_MOVED = 4,
	RANGE_EMPTIED = 5, /* MADV_DONTNEED, MADV_REMOVE: contents dropped, still mapped */
	RANGE_EXECUTABLE = 6, /* mprotect: became code; nothing else changed */
};

enum range_flag {
	RANGE_FLAG_POPULATE = 1, /* filled without faults (MAP_POPULATE, MAP_LOCKED, mlockall) */
	RANGE_FLAG_CODE = 2, /* executable: the process's modules may have changed */
};

/*
 * A new stack, or one part of a stack that has more than MAX_FRAMES frames. The parts arrive in order, but other
 * records may lie between them. Only the first `nr` frames are sent.
 */
struct stack_event {
	__u32 kind;
	__u32 mm_id;
	__u32 stack_id;
	__u32 pid; /* in memprof's pid namespace; 0 if it has none there */
	__u32 nr;
	__u32 outcome; /* valid in the last part */
	__u32 before; /* how many of the stack's frames the earlier parts hold */
	__u32 last;
	__u32 unmerged; /* interpreters' frames that no place on the stack was found for; of all parts */
	__u32 by_order; /* evaluators are marked (FRAME_EVALUATOR), and the frames that they run are the last ones */
	__u64 frames[MAX_SENT_FRAMES]; /* innermost first; return addresses minus one; see FRAME_IN_FILE */
};

/*
 * A frame in a numbered file is a place in that file, the same in every process:
 * `FRAME_IN_FILE | number << FRAME_FILE_SHIFT | address in the file`. A frame of an interpreter is
 * `FRAME_INTERPRETED | function << FRAME_FUNCTION_SHIFT | instruction`, where the function has come in a function_event
 * of the same address space (0: frames that were left out), and the instruction is its distance from the code's start
 * in bytes (FRAME_NO_INSTRUCTION: not known); of Ruby it is the line. The frame of the interpreter's own code that runs
 * such frames follows them; behind the end of a native walk that was cut off they are without it. Any other frame is an
 * address.
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
/* No frame: the next one is that of an evaluator, and which frames it runs is only known by its order. */
#define FRAME_EVALUATOR (FRAME_INTERPRETED | 1ull << FRAME_EVALUATOR_BIT)

struct process_event {
	__u32 kind;
	__u32 change;
	__u32 pid; /* in memprof's pid namespace */
	__u32 mm_id;
	__u32 parent_mm_id; /* forked: the parent's; execed: the previous one; else 0 */
	__u32 parent_pid; /* forked: the parent's */
	__u64 page_tables; /* exited: bytes of page tables; junk unless the address space is kept */
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
	__u64 from; /* moved: where the range was */
};

/* A file that code is mapped from. `dev` is the kernel's s_dev; `stat` may show another one (overlayfs, btrfs). */
struct file_key {
	__u64 ino;
	__u64 modified; /* ns; a file that is modified in place becomes another file */
	__u64 size; /* bytes */
	__u32 dev; /* 0: the vDSO, `size` is that of its mapping */
	__u32 pad;
};

/*
 * Code was mapped from a file that has no number or is not ready, or without a file (`file` is then all 0): user space has to
 * look at it.
 */
struct code_event {
	__u32 kind;
	__u32 mm_id; /* 0: not followed, requested by user space */
	__u32 pid; /* in memprof's pid namespace */
	__u32 bound; /* it has the file's number; its table is not published yet */
	__u64 start; /* bytes */
	struct file_key file;
};

/* A process has written to a file of the name of a perf map: names of code made at run time. */
struct names_event {
	__u32 kind;
	__u32 mm_id;
	__u64 ino;
	__u64 end; /* of what was written, in the file, bytes */
};

/* A sampled allocation, or the free of one (EVENT_FREE: without stack, size and weight). */
struct sample_event {
	__u32 kind;
	__u32 mm_id;
	__u32 tid; /* in the initial pid namespace */
	__u32 stack_id;
	__u64 address;
	__u64 size; /* bytes requested */
	__u64 weight; /* bytes that it stands for */
	__u64 at; /* ns, CLOCK_MONOTONIC */
};

/* A mark that the program has made. */
struct mark_event {
	__u32 kind;
	__u32 mm_id;
	__u64 at; /* ns, CLOCK_MONOTONIC */
	__u32 unused;
	__u32 length; /* of the name, bytes; 0 if it could not be read */
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

/* Where an argument of a probe is, as its USDT note says. */
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
	__u64 value; /* the constant, or what is added to the register */
};

/* A probe: address, size and weight of an allocation, or the address alone of one or of the name of a mark. */
struct sample_probe {
	struct probe_argument argument[SAMPLE_ARGUMENTS];
};

/*
 * The cookie of a probe of an allocation function: the registers that contain size, count and pointer, each as the index
 * of a word in struct pt_regs, 8 bits each, and enum exact_flag.
 */
enum exact_flag {
	EXACT_RESIZES = 1, /* the pointer is that of the block that is resized */
	EXACT_STORES = 2, /* the result is stored where the pointer points to, and the function returns 0 */
	EXACT_NO_RETURN = 4, /* its return has no probe */
	EXACT_FREES = 8, /* the block that is resized is freed if that fails */
	EXACT_EXITS = 16, /* its return is seen at its `ret` instructions */
	EXACT_NO_REGISTER = 0xff,
};

/* What a stack has allocated. Each call stands for `weight` calls. */
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

/* A block that was counted and not freed. */
struct exact_block {
	__u32 stack;
	__u32 pad;
	__u64 size; /* bytes requested */
	__u64 at; /* ns, CLOCK_MONOTONIC */
};

/* Calls of allocation functions. */
struct exact_seen {
	__u64 calls; /* outermost ones */
	__u64 nested; /* within another one: not counted */
	__u64 filtered; /* not counted because of their size */
	__u64 failed; /* that would have been counted */
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
_Static_assert(sizeof(struct process_event) == 48, "process_event");
_Static_assert(sizeof(struct range_event) == 48, "range_event");

/*
 * One chunk of the page ledger, keyed by `mm_id << REGION_BITS | page number >> CHUNK_SHIFT`: an entry for each page, see
 * enum page_record.
 */
struct page_chunk {
	__u32 stack[CHUNK_PAGES];
};

/* One chunk of the page-cache ledger. `live` counts entries that are not 0. */
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
 * Tables built from .eh_frame. Looking up an address takes four steps: the address space's mappings give the file's
 * table and the address in the file; the table has pages of 64 KiB; a page has rows, each valid from its pc to the
 * next row's; the row names a rule.
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
	CFA_GO_CALL = 10, /* the goroutine in the frame, less the depth in the frame; see other_stack() */
	CFA_GO_STOPPED = 11, /* the stack pointer of the thread's goroutine; see other_stack() */
};

/* How the caller's frame pointer is found. */
enum fp_kind {
	FP_SAME = 0,
	FP_AT_CFA = 1, /* *(CFA + offset) */
	FP_AT_FP = 2, /* *(fp + offset) */
	FP_LOST = 3,
};

/*
 * Flags of a rule. The upper byte is an addend, in bytes, for a CFA that was read from memory. Those in RULE_NEEDS
 * say which registers the rule needs; in a walk, which registers are known.
 */
enum rule_flag {
	RULE_RA_IN_LINK_REGISTER = 0x01,
	RULE_NEEDS_FP = 0x10,
	RULE_NEEDS_BX = 0x20,
	RULE_NEEDS = RULE_RA_IN_LINK_REGISTER | RULE_NEEDS_FP | RULE_NEEDS_BX,
	RULE_BX_KEPT = 0x02, /* x86-64: rbx is still the caller's */
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
	__s32 ra_offset; /* the return address is at CFA + this; 0 with CFA_GO_STOPPED: the goroutine has it */
};

/* Rows of many tables. A row is `rule << 16 | pc & 0xffff`. */
struct unwind_rows {
	__u32 row[UNWIND_ROWS];
};

struct unwind_page_key {
	__u32 table;
	__u32 page; /* address in the file >> 16 */
};

struct unwind_page {
	__u32 chunk; /* index of the row array */
	__u32 first; /* index of the first row in it */
	__u32 count;
	__u32 rules; /* index of the table's first rule */
};

/* A segment of a file that the loader maps as code (from its program headers). */
struct code_segment {
	__u64 offset; /* in the file, bytes */
	__u64 size;
	__u64 address; /* in the file's own addresses */
};

/* What is known about a file that code is mapped from. */
struct code_file {
	__u32 table; /* its number; 0: not an ELF file */
	__u8 ready; /* user space has nothing to do when it is mapped again */
	__u8 nr; /* segments */
	__u16 pad;
	struct code_segment segment[MAX_SEGMENTS];
};

/* Where the code in a mapping comes from. */
enum code_origin {
	CODE_OF_FILE = 0,
	CODE_OF_NO_FILE = 1, /* anonymous memory */
	CODE_IN_PLACE = 2, /* anonymous memory where a file's code was: perhaps the program moves its code there */
	CODE_MOVED = 3, /* a file's code in other memory, at the addresses that it had in the file's mapping */
};

struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 bias; /* address - bias = address in the file */
	__u32 table; /* the file's number, 0: none; its table may not be published yet */
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

/* The executable mappings of an address space, by address. */
struct unwind_space {
	__u32 nr;
	__u32 version; /* odd while it is being changed */
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
	__u64 parent; /* the address space it was forked from, if that is followed too */
	__u32 cow_children[MAX_COW_CHILDREN]; /* 0: none */
	__u32 ancestors[MAX_ANCESTORS]; /* nearest first */
	__u32 snapshots; /* copy-on-write children of heap snapshots that live */
};

/* A followed process, by its pid in the initial namespace. */
struct proc_info {
	__u64 mm;
	__u32 mm_id;
	__u32 pid; /* in memprof's pid namespace */
};

/* A known stack. Its id is STACK_FIRST plus the index of its slot. */
struct stack_slot {
	__u64 key; /* the stack's hash; 0: the slot is free */
	__u32 check; /* a second hash, which distinguishes stacks with the same key; 0: not written yet */
	__u32 state; /* `epoch of its last use << 1 | sent to user space`; 0: not written yet */
};

enum slot_state {
	SLOT_SENT = 1,
	SLOT_LEAVING = 0xffffffff, /* user space is about to free it */
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

/* Counters of what could not be kept. User space names each one; both sides share the order. */
enum loss {
	LOSS_RING_STACK, /* stack events that did not fit the ring buffer; retried at the next event */
	LOSS_RING_PROCESS,
	LOSS_RING_RANGE,
	LOSS_STACK_TABLE, /* the table of known stacks is full, or the stack could not be taken */
	LOSS_STACK_COLLISION,
	LOSS_PAGE_LEDGER, /* the page ledger is full */
	LOSS_CACHE_LEDGER, /* the page-cache ledger is full */
	LOSS_CACHE_RACE, /* a chunk was removed during each attempt to write to it */
	LOSS_TASK_STATE, /* no memory for a thread's state */
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
	LOSS_EXACT_STACKS, /* allocations without their own row: too many stacks */
	LOSS_EXACT_BLOCKS, /* allocations that are not in the live heap: too many blocks */
	LOSS_EXACT_FREE, /* blocks at whose address another one was allocated */
	LOSS_EXACT_RETURN, /* calls whose return was not seen */
	LOSS_EXACT_OPERATORS, /* allocations by functions whose return has no probe */
	LOSS_NR,
};

#endif
