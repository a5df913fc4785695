// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The probe. Read memprof.h first, then this file: the way of a page fault is fault_enter(),
 * page_allocated(), fault_end(). The other hooks are in the headers included below.
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

#define GFP_MOVABLE 0x08u
/* Words of user stack read at once: a read that is longer fails more often at the stack's end. */
#define WINDOW_WORDS 128
/* Words of stack that a remembered walk may have read. */
#define MEMO_WORDS 256

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 page_shift = 12;
/* memprof's pid namespace: pids in records are seen from there. */
const volatile __u32 view_ns = 0;
/* Bytes waiting in the ring buffer that are worth waking user space for. */
const volatile __u32 wake_bytes = 65536;

__u64 losses[LOSS_NR];
/* Changes whenever memory of a followed process changed: no need to scan again while it has not. */
__u64 activity = 0;
__u64 faults = 0;
__u32 next_mm_id = 1;
/* Changes whenever an address space is followed or no longer: what threads remember of it is stale. */
__u32 follow_generation = 1;
__u32 next_stack_id = STACK_FIRST;

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
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct mm_info);
} mms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct proc_info);
} procs SEC(".maps");

/* Two independent hashes of a stack, taken while it is walked: the table's key and its check. */
struct stack_hash {
	__u64 key;
	__u64 check;
};

/* A walk by tables under way; see tables.bpf.h. */
struct table_walk {
	__u64 ip; /* the frame's registers */
	__u64 sp;
	__u64 fp;
	__u64 start; /* the mapping that the last frame was in */
	__u64 end;
	__u64 bias;
	__u64 window_base; /* address of what is in `window` */
	struct stack_hash hash;
	__u32 window_words;
	__u32 table; /* of that mapping */
	__u32 call; /* 1: ip is a return address, the call lies before it */
	__u32 assisted; /* a frame pointer helped */
	__u32 noted; /* words in the memo */
	__u32 nr; /* frames found */
	__u32 outcome;
	__u32 pad;
};

/* What memprof knows of one thread of a followed process. */
struct task_state {
	__u64 fault; /* address of the fault being handled; 0 outside one */
	__u64 fault_ip; /* user registers at its begin */
	__u64 fault_sp;
	__u64 brk; /* the heap's end when brk was entered */
	__u64 mm; /* the address space that mm_id names */
	__u32 mm_id; /* 0: not followed */
	__u32 generation; /* of mm_id */
	__u64 page; /* the page allocated last in this fault */
	__u32 pages; /* in the folio allocated for this fault; 0 for none */
	__u32 pages_before; /* `pages` before that allocation */
	__u8 perf_seen; /* its page-fault perf events reach us */
	__u8 walking; /* its stack is being read */
	__u16 pad;
	/* The stack found last, by its hash. */
	__u64 last_key;
	struct seen_stack last;
	/*
	 * The walk remembered: the registers it began with, the words it read (with their distance
	 * from the stack pointer, in words), and the stack it found. 0: none.
	 */
	__u32 memo_id;
	__u32 memo_mm_id;
	__u32 memo_generation;
	__u32 memo_words;
	__u64 memo_ip;
	__u64 memo_sp;
	__u64 memo_bp;
	__u64 memo_word[MEMO_WORDS];
	__u16 memo_at[MEMO_WORDS];
	struct table_walk t;
	/* Scratch space of the walk: a window on the stack, and the record that is sent. */
	__u64 window[WINDOW_WORDS];
	struct stack_event walk;
};

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
#define INDEX(i, n)                                                      \
	({                                                               \
		__u64 _index = (i);                                      \
		asm volatile("%0 &= %1" : "+r"(_index) : "i"((n) - 1));  \
		_index;                                                  \
	})

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

/* Whether the task may be in a followed address space: one load for most that are not. */
static __always_inline int maybe_followed(struct task_struct *task)
{
	struct mm_struct *mm = task->mm;

	return mm && mm_filter[mm_slot(mm)];
}

/* The state of a thread whose address space is followed, or NULL. Its mm_id is up to date. */
static __always_inline struct task_state *followed(struct task_struct *task)
{
	struct task_state *st;
	struct mm_info *info;
	struct mm_struct *mm;

	if (!maybe_followed(task))
		return NULL;
	st = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return NULL;
	}
	mm = task->mm;
	if (st->mm != (__u64)mm || st->generation != follow_generation) {
		st->generation = follow_generation;
		st->mm = (__u64)mm;
		info = find_mm(mm);
		st->mm_id = info ? info->mm_id : 0;
	}
	return st->mm_id ? st : NULL;
}

/* The process's pid in memprof's own pid namespace; 0 if it has none there. */
static __noinline __u32 view_pid(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, group_leader, thread_pid);
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

#include "compat.bpf.h"
#include "ledger.bpf.h"
#include "unwind.bpf.h"
#include "lifecycle.bpf.h"
#include "space.bpf.h"
#include "cache.bpf.h"

/* Gives the page at `addr`, or the folio of `n` pages that it lies in, to the current stack. */
static __always_inline void record(struct task_struct *task, struct task_state *st, __u64 addr,
				   __u32 n, int keep_owner)
{
	__u64 vpage = addr >> page_shift;
	struct page_chunk *chunk = chunk_get(chunk_key(st->mm_id, vpage));

	count_activity();
	if (!chunk)
		return;
	if (keep_owner && chunk->stack[vpage & (CHUNK_PAGES - 1)] != STACK_NONE)
		return;
	if (n > CHUNK_PAGES)
		n = CHUNK_PAGES;
	if (n > 1)
		vpage &= ~(__u64)(n - 1);
	else
		n = 1;
	ledger_set(chunk, vpage, n, stack_id(st));
}

/*
 * A fault begins. What is allocated from here on, in this task, is for this fault.
 *
 * The record is made at the end, by the perf event, which comes only for a fault that succeeded.
 * A thread whose perf events have not reached us yet (memprof is just attaching, or a vfork child
 * shares the address space) is recorded here and at the allocation instead, page by page.
 */
static __always_inline int fault_enter(__u64 addr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed(task);
	struct user_regs regs;

	/* The stack walk reads user memory, and a read of a bad address raises a fault of its own. */
	if (!st || st->walking || addr < 65536 || addr >> 57)
		return 0;
	st->fault = addr;
	st->pages = 0;
	if (st->perf_seen)
		return 0;
	user_regs_of(task, &regs);
	st->fault_ip = regs.ip;
	st->fault_sp = regs.sp;
	record(task, st, addr, 1, 1);
	return 0;
}

/* An allocation while we do not learn when a fault ends: is it still the same one? */
static __always_inline void allocated_early(struct task_struct *task, struct task_state *st)
{
	struct user_regs regs;

	user_regs_of(task, &regs);
	if (regs.ip == st->fault_ip && regs.sp == st->fault_sp)
		record(task, st, st->fault, 1, 0);
	st->fault = 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_user, unsigned long address)
{
	return fault_enter(address);
}

/* The kernel's own accesses to user memory: read(2) into a fresh buffer. */
SEC("tp_btf/page_fault_kernel")
int BPF_PROG(fault_kernel, unsigned long address)
{
	return fault_enter(address);
}

SEC("tp_btf/mm_page_alloc")
int BPF_PROG(page_allocated, struct page *page, unsigned int order, gfp_t gfp)
{
	struct task_struct *task;
	struct task_state *st;

	/* User pages are movable; page tables and other kernel memory are not. */
	if (!(gfp & GFP_MOVABLE) || !page)
		return 0;
	task = bpf_get_current_task_btf();
	if (!maybe_followed(task))
		return 0;
	/* Only fault_enter() marks a fault, and only in a followed address space. */
	st = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!st || !st->fault)
		return 0;
	if (!st->perf_seen) {
		allocated_early(task, st);
		return 0;
	}
	/* The last one counts: a larger folio may have been tried before it. */
	st->page = (__u64)page;
	st->pages_before = st->pages;
	st->pages = order <= CHUNK_SHIFT ? 1u << order : 1;
	return 0;
}

static __always_inline int fault_end(struct bpf_perf_event_data *ctx, int major)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed(task);
	__u64 addr = ctx->addr;

	if (!st || addr < 65536 || addr >> 57)
		return 0;
	st->perf_seen = 1;
	if (st->fault != addr)
		st->pages = 0;
	st->fault = 0;
	faults++;
	/*
	 * Without an allocation the page was there before: a write to a page shared since fork, or
	 * a page mapped a second time. A major fault brings a page back. Neither changes its owner.
	 */
	record(task, st, addr, st->pages, major || !st->pages);
	return 0;
}

SEC("perf_event")
int fault_end_minor(struct bpf_perf_event_data *ctx)
{
	return fault_end(ctx, 0);
}

SEC("perf_event")
int fault_end_major(struct bpf_perf_event_data *ctx)
{
	return fault_end(ctx, 1);
}

/* Keeps the record types in the program's BTF, from which the skeleton makes the Rust types. */
struct stack_event _stack_event SEC(".rodata.types") = {};
struct process_event _process_event SEC(".rodata.types") = {};
struct range_event _range_event SEC(".rodata.types") = {};
