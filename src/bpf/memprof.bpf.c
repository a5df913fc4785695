// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The probe. Read memprof.h first, then this file: the way of a page fault is fault_begins(),
 * page_allocated(). The other hooks are in the headers included below.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "memprof.h"

#ifndef NULL
#define NULL ((void *)0)
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

/* The same bits from 6.1 on at least (___GFP_*). */
#define GFP_MOVABLE 0x08u /* user pages; page tables and other kernel memory are not */
#define GFP_ZERO 0x100u /* a fresh anonymous page, neither copied nor read back from swap */
#define GFP_IO 0x40u
#define GFP_FS 0x80u
#define GFP_DIRECT_RECLAIM 0x400u /* may wait for memory */
#define GFP_NOMEMALLOC 0x80000u /* with an order: a huge page or folio of user memory, see large() */
/* Bit of a page fault's error code: the page was there, the access was not allowed. */
#define FAULT_PRESENT 1ul

/* Words of user stack read at once. A read costs some 150 ns, however short it is. */
#define WINDOW_WORDS 256
/* How many of them lie below the word that is wanted: a frame's words are not read in order. */
#define WINDOW_SLACK 8
/* Words of stack that a remembered walk may have read. */
#define MEMO_WORDS 128

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 page_shift = 12;
/* memprof's pid namespace: pids in records are seen from there. */
const volatile __u32 view_ns = 0;
/* Bytes waiting in the ring buffer that are worth waking user space for. */
const volatile __u32 wake_bytes = 65536;

__u64 losses[LOSS_NR];
/* Changes whenever memory of a followed process changed: no need to scan again while it has not. */
__u64 activity = 0;
__u64 faults = 0; /* of followed processes, each one counted */
__u32 next_mm_id = 1;
/* Changes whenever an address space is followed or no longer: what threads remember of it is stale. */
__u32 follow_generation = 1;
__u32 known_stacks; /* slots taken in `stacks` */
__u64 followed_processes; /* in `procs` */

/* Followed address spaces per hash of their mmap_base: lets an unrelated process's event end at one
 * load. (The verifier permits no arithmetic on the mm pointer itself; mmap_base is random per exec,
 * and where it is not, a false match costs one lookup.) */
#define MM_FILTER_BITS 10
__u32 mm_filter[1 << MM_FILTER_BITS];

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096); /* set by user space */
	__type(key, __u64);
	__type(value, struct mm_info);
} mms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096); /* set by user space */
	__type(key, __u32);
	__type(value, struct proc_info);
} procs SEC(".maps");

/* Two independent hashes of a stack: the table's key and its check. */
struct stack_hash {
	__u64 key;
	__u32 check;
	__u32 pad;
};

/* A frame of a walk by tables, as the walk came to it; see remembered.bpf.h. */
struct frame {
	__u64 ip; /* return addresses less one */
	__u64 key; /* hash of the frames from the outermost one to this; while the walk lasts, place_in_file() */
	__u32 check; /* the other hash */
	__u32 sp; /* a place, as in struct noted_word */
	__u32 fp; /* where the frame pointer register is saved, if it is (FRAME_FP_SAVED): a place too */
	__u16 words; /* words of stack read for the same frames; while it lasts, read before this one */
	__u16 flags;
};

/* A word of the stack that a walk has read. */
struct noted_word {
	__u32 at; /* its place: in words from `base` */
	__u32 low; /* what it was */
	__u32 high;
};

/* A walk under way. What no comment calls otherwise is of the frame that it has come to. */
struct walk {
	__u64 ip;
	__u64 sp;
	__u64 fp; /* or where it is saved (FRAME_FP_SAVED) */
	__u64 bx;
	__u64 lr;
	struct stack_hash hash;
	__u64 start; /* the mapping that the last frame was in */
	__u64 end;
	__u64 bias;
	__u64 window_base; /* address of what is in `window` */
	__u32 window_words;
	__u32 table; /* of that mapping */
	__u32 flags; /* of the frame, see struct frame; RULE_NEEDS among them: what is known */
	__u32 noted; /* words */
	__u32 nr; /* frames found; once it has ended, with the remembered ones that it shares */
	__u32 innermost; /* which of the thread's frames it is; the others are before it */
	__u32 left; /* frames of the remembered walk that this one may still meet */
	__u32 same; /* words of it, from the outermost frame on, that are not known to differ */
	__u32 met; /* the frames that it shares with the remembered walk */
	__u32 outcome;
	__u32 sending; /* the stack whose frames are sent where there is no room for them all; else 0 */
	__u32 pad;
};

/* What take_stack() is to do. */
enum take {
	TAKE_NOTHING = 0,
	TAKE_FAULT = 1,
	TAKE_ALLOCATION = 2,
	TAKE_RANGE = 3,
};

struct taking {
	__u32 what;
	__u32 change; /* of a range */
	union {
		__u32 flags; /* of a range */
		__u32 gfp; /* of an allocation */
	};
	__u32 order;
	__u64 start; /* of a range */
	__u64 end;
};

/* What memprof knows of one thread of a followed process. */
struct task_state {
	struct taking taking;
	__u64 fault; /* address of the last fault, until its page was allocated; else 0 */
	__u64 fault_ip; /* user registers at its begin */
	__u64 fault_sp;
	__u64 brk; /* the heap's end when brk was entered */
	__u64 mm; /* the address space that mm_id names */
	__u32 mm_id; /* 0: not followed */
	__u32 generation; /* of mm_id */
	__u32 fault_stack; /* recorded at its begin; STACK_NONE if the page had an owner already */
	__u8 fault_present; /* a write to a page that may only be read: copy on write */
	__u8 walking; /* its stack is being read */
	__u16 pad;
	__u32 pid; /* its process's, see view_pid(); 0 until a stack is sent */
	__u32 epoch; /* of last_id and memo_id */
	/* The stack found last, by its hash. */
	__u64 last_key;
	__u32 last_id;
	__u32 last_check;
	/* The walk remembered: the stack it found, and how much of `frames` and `words` is of it. */
	__u32 memo_id; /* 0: not known */
	__u32 memo_mm_id;
	__u32 memo_generation;
	__u32 memo_nr;
	__u32 memo_words;
	__u32 memo_outcome;
	__u64 memo_fp; /* the frame pointer register that it began with */
	__u64 base; /* stack address that places are counted from */
	struct walk t;
	/*
	 * Frames, and words of the stack that they have read, with those of the outermost frame first. A
	 * walk fills both from the end on, up to what it may still meet of the remembered one.
	 */
	struct frame frames[MAX_FRAMES];
	struct noted_word words[MEMO_WORDS];
	/* Scratch space: a window on the stack, then the record that is sent. */
	union {
		__u64 window[WINDOW_WORDS];
		struct stack_event event;
	};
};

/*
 * From 6.19 on (f484f4a3e058 "bpf: Replace bpf memory allocator with kmalloc_nolock() in local storage")
 * one piece of it holds 8 KiB at most, of which the kernel itself needs some 100 bytes.
 */
_Static_assert(sizeof(struct task_state) <= 8192 - 128, "task_state");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/*
 * An index below `n`, a power of two. The compiler drops a mask that it can prove useless, and then
 * the verifier, which cannot prove that, refuses the access: so the mask is hidden from it.
 */
#if defined(__bpf__)
#define INDEX(i, n)                                                      \
	({                                                               \
		__u64 _index = (i);                                      \
		asm volatile("%0 &= %1" : "+r"(_index) : "i"((n) - 1));  \
		_index;                                                  \
	})
#else /* compiled for user space, by a test */
#define INDEX(i, n) ((__u64)(i) & ((n) - 1))
#endif

static __always_inline void count_loss(__u32 which)
{
	__sync_fetch_and_add(&losses[which], 1);
}

static __always_inline void count_activity(void)
{
	activity++; /* a lost increment does no harm: only "has it changed" is asked */
}

/* Sends a record and wakes user space. */
static __always_inline int emit_now(void *record, __u64 size)
{
	return bpf_ringbuf_output(&events, record, size, BPF_RB_FORCE_WAKEUP);
}

/* Sends a record; user space is woken once enough of them wait. */
static __always_inline int emit(void *record, __u64 size)
{
	__u64 flags = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_bytes ?
			      BPF_RB_FORCE_WAKEUP :
			      BPF_RB_NO_WAKEUP;

	return bpf_ringbuf_output(&events, record, size, flags);
}

static __always_inline __u32 mm_slot(struct mm_struct *mm)
{
	return ((mm->mmap_base * 0x9e3779b97f4a7c15ull) >> (64 - MM_FILTER_BITS)) & ((1 << MM_FILTER_BITS) - 1);
}

static __always_inline struct mm_info *find_mm(struct mm_struct *mm)
{
	return bpf_map_lookup_elem(&mms, &mm);
}

/* Whether an address space may be followed: one load for most that are not. */
static __always_inline int maybe_followed_mm(struct mm_struct *mm)
{
	return mm && mm_filter[mm_slot(mm)];
}

static __always_inline int maybe_followed(struct task_struct *task)
{
	return maybe_followed_mm(task->mm);
}

/*
 * The state of a thread whose address space is followed, or NULL. Its mm_id is up to date. (`mm` is the task's:
 * each time it is loaded the verifier searches the kernel's types for half a millisecond.)
 */
static __always_inline struct task_state *followed_mm(struct task_struct *task, struct mm_struct *mm)
{
	struct task_state *st;
	struct mm_info *info;

	if (!maybe_followed_mm(mm))
		return NULL;
	st = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return NULL;
	}
	if (st->mm != (__u64)mm || st->generation != follow_generation) {
		st->generation = follow_generation;
		st->mm = (__u64)mm;
		info = find_mm(mm);
		st->mm_id = info ? info->mm_id : 0;
	}
	return st->mm_id ? st : NULL;
}

static __always_inline struct task_state *followed(struct task_struct *task)
{
	return followed_mm(task, task->mm);
}

/* The number that a struct pid has in memprof's own pid namespace; 0 if it has none there. (Global: checked once.) */
__noinline __u32 pid_in_view(__u64 of)
{
	struct pid *pid = (void *)of;
	__u32 level = BPF_CORE_READ(pid, level);

	for (__u32 i = 0; i < 32; i++) {
		struct upid upid;
		struct upid *at = &pid->numbers[0];

		if (i > level)
			break;
		/* struct upid has had the same two fields since 2.6.24. */
		bpf_probe_read_kernel(&upid, sizeof(upid), (void *)at + i * sizeof(upid));
		if (BPF_CORE_READ(upid.ns, ns.inum) == view_ns)
			return upid.nr;
	}
	return 0;
}

/* The process's pid in memprof's own pid namespace; 0 if it has none there. */
static __always_inline __u32 view_pid(struct task_struct *task)
{
	return pid_in_view((__u64)BPF_CORE_READ(task, group_leader, thread_pid));
}

/*
 * The stack walk is long, and verifying it takes the kernel more than ten milliseconds in each program that
 * has it. So what is not the most frequent event notes what it wants (struct taking) and goes over to take_stack(),
 * which has the walk.
 */
int take_stack(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} walker SEC(".maps") = {
	.values = { (void *)&take_stack },
};

static __always_inline void tail_take_stack(void *ctx)
{
	bpf_tail_call(ctx, &walker, 0);
	/* (It returns where there is no such program.) */
	count_loss(LOSS_STACK_TABLE);
}

#include "compat.bpf.h"
#include "unwind.bpf.h"
#include "directory.bpf.h"
#include "ledger.bpf.h"
#include "heirs.bpf.h"
#include "lifecycle.bpf.h"
#include "space.bpf.h"
#include "cache.bpf.h"
#include "kernel.bpf.h"

/*
 * A fault begins: the page takes the current stack, unless it has an owner already. What is recorded
 * for a fault that then fails does no harm: it counts only where the kernel says that a page is.
 *
 * (There is a hook for a fault's end too, the perf event of a successful fault. It would cost the
 * target as much again as everything here, and every process a part of that.)
 *
 * Returns the page's entry in the ledger if it has no owner, else NULL.
 */
static __always_inline __u32 *fault_begins(struct task_state *st, __u64 addr, __u64 error_code)
{
	__u64 vpage = addr >> page_shift;
	struct page_chunk *chunk;
	struct user_regs regs;
	__u32 *owner;

	/* The stack walk reads user memory, and a read of a bad address raises a fault of its own. */
	if (!st || st->walking || addr < 65536 || addr >> 57)
		return NULL;
	__sync_fetch_and_add(&faults, 1);
	count_activity();
	chunk = chunk_get(chunk_key(st->mm_id, vpage));
	if (!chunk)
		return NULL;
	user_regs_of(bpf_get_current_task_btf(), &regs);
	st->fault = addr;
	st->fault_ip = regs.ip;
	st->fault_sp = regs.sp;
	st->fault_present = error_code & FAULT_PRESENT;
	st->fault_stack = STACK_NONE;
	owner = &chunk->stack[vpage & (CHUNK_PAGES - 1)];
	return *owner == STACK_NONE ? owner : NULL;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_user, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	struct task_state *st = followed(bpf_get_current_task_btf());
	__u32 *owner = fault_begins(st, address, error_code);

	if (st && owner)
		*owner = st->fault_stack = stack_id(st, 0);
	return 0;
}

/* The kernel's own accesses to user memory: read(2) into a fresh buffer. */
SEC("raw_tp/page_fault_kernel")
int fault_kernel(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_state *st = followed(bpf_get_current_task_btf());

	if (!fault_begins(st, ctx->args[0], ctx->args[2]) || !st)
		return 0;
	st->taking.what = TAKE_FAULT;
	tail_take_stack(ctx);
	return 0;
}

static __always_inline void take_fault(struct task_state *st)
{
	__u64 vpage = st->fault >> page_shift;
	struct page_chunk *chunk = chunk_find(chunk_key(st->mm_id, vpage));

	if (chunk)
		chunk->stack[vpage & (CHUNK_PAGES - 1)] = st->fault_stack = stack_id(st, 0);
}

/*
 * Whether an allocation is a huge page or a large folio of anonymous or shared memory. Their flags
 * come from GFP_TRANSHUGE_LIGHT; the folios that a fault reads into the page cache have none of it.
 */
static __always_inline int large(unsigned int order, gfp_t gfp)
{
	return order && order <= CHUNK_SHIFT && (gfp & GFP_NOMEMALLOC);
}

/*
 * A page is allocated in a fault. It changes the owner if it is a new one, or a copy that this write
 * made; a page that comes back from swap or from a file keeps the one it had. Where it is larger
 * than the faulting page, its other pages, which have no owner, take this one.
 */
static __always_inline int allocated_in_fault(struct task_state *st, unsigned int order, gfp_t gfp)
{
	__u64 addr = st->fault, vpage = addr >> page_shift;
	__u32 stack = st->fault_stack;
	struct page_chunk *chunk;
	struct user_regs regs;

	/* Is it still that fault, or something later in this thread? */
	user_regs_of(bpf_get_current_task_btf(), &regs);
	if (regs.ip != st->fault_ip || regs.sp != st->fault_sp)
		return 0;
	chunk = chunk_get(chunk_key(st->mm_id, vpage));
	if (!chunk)
		return 0;
	if (st->fault_present && !order)
		page_to_heirs(vpage, stack ? STACK_NONE : chunk->stack[vpage & (CHUNK_PAGES - 1)]);
	/* (Of an epoch that has ended, it may have been given away meanwhile.) */
	if (stack == STACK_NONE || st->epoch != stack_epoch)
		stack = stack_id(st, 0);
	if (large(order, gfp)) {
		__u32 first = vpage & (CHUNK_PAGES - 1) & ~((1u << order) - 1);

		/* In place of the huge zero page: who looked at it owns nothing. */
		if (st->fault_present)
			chunk_fill(chunk, first, 1u << order, stack);
		else
			chunk_fill_empty(chunk, first, 1u << order, stack);
	}
	if (st->fault_present || (gfp & GFP_ZERO))
		chunk->stack[vpage & (CHUNK_PAGES - 1)] = stack;
	return 0;
}

SEC("raw_tp/mm_page_alloc")
int page_allocated(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 page = ctx->args[0];
	__u32 order = ctx->args[1];
	gfp_t gfp = ctx->args[2];
	struct task_struct *task;
	struct task_state *st;
	int wanted;

	if (!(gfp & GFP_MOVABLE) || !page)
		return 0;
	task = bpf_get_current_task_btf();
	if (!maybe_followed(task))
		return 0;
	/* Only fault_begins() marks a fault, and only in a followed address space. */
	st = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!st || !st->fault)
		return 0;
	wanted = large(order, gfp) || st->fault_present || (!st->fault_stack && (gfp & GFP_ZERO));
	if (wanted) {
		st->taking.what = TAKE_ALLOCATION;
		st->taking.order = order;
		st->taking.gfp = gfp;
		tail_take_stack(ctx);
	} else if (!order) {
		st->fault = 0;
	}
	return 0;
}

/* The stack that another program wants: see struct taking. */
SEC("raw_tp")
int take_stack(void *ctx)
{
	struct task_state *st = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	__u32 what;

	if (!st)
		return 0;
	what = st->taking.what;
	st->taking.what = TAKE_NOTHING;
	if (what == TAKE_FAULT) {
		take_fault(st);
	} else if (what == TAKE_RANGE) {
		take_range(st);
	} else if (what == TAKE_ALLOCATION) {
		allocated_in_fault(st, st->taking.order, st->taking.gfp);
		if (!st->taking.order)
			st->fault = 0;
	}
	return 0;
}

/* Keeps the record types in the program's BTF, from which the skeleton makes the Rust types. */
struct stack_event _stack_event SEC(".rodata.types") = {};
struct process_event _process_event SEC(".rodata.types") = {};
struct range_event _range_event SEC(".rodata.types") = {};
struct code_event _code_event SEC(".rodata.types") = {};
