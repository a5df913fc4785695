/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The hooks of a page fault: the start of the fault (fault_begins()), and the allocation of its page
 * (record_allocation()).
 */
#ifndef MEMPROF_FAULT_H
#define MEMPROF_FAULT_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "cow_children.bpf.h"
#include "follow.bpf.h"
#include "gfp.bpf.h"
#include "ledger.bpf.h"
#include "sampling.bpf.h"
#include "snapshots.bpf.h"
#include "pending.bpf.h"
#include "thread.bpf.h"
#include "unwind.bpf.h"

/* Bits of a page fault's error code. */
#define FAULT_PRESENT 1ul /* the page was present, but the access was not allowed */
#define FAULT_WRITE 2ul /* the access was a write */

/* decide_walk() as a call. Not inline, for the same reason as finish_unwalked(). */
static __noinline int decide_walk_out_of_line(void)
{
	return decide_walk(own_cpu());
}

static __always_inline int can_be_user(__u64 address)
{
	return address >= 65536 && !(address >> 57);
}

static long note_anonymous(struct task_struct *task, struct vm_area_struct *vma, __u32 *anonymous)
{
	*anonymous = !BPF_CORE_READ(vma, vm_file);
	return 0;
}

/*
 * Whether the page of a fault may return from swap. Such a page had its first fault before, without a walk, so it gets
 * no owner now either. This matters only while a share of the faults is walked. A new page is zeroed when it is
 * allocated: record_allocation(). Global: verified once.
 */
__noinline int may_return_from_swap(__u64 address, int walked)
{
	__u32 anonymous = 0;

	if (!*(volatile __u32 *)&swap_on || walked <= WALKED)
		return 0;
	/* bpf_find_vma(): 5.17, 7c7e3d31e785 */
	bpf_find_vma(bpf_get_current_task_btf(), address, note_anonymous, &anonymous, 0);
	return anonymous;
}

/*
 * Notes the start of a fault. Callers record the current stack for the page unless it has an owner. A record of a fault
 * that fails later is harmless: reports count only pages that the kernel calls resident.
 *
 * The end of a fault also has a hook: the perf event of a successful fault. Using it would double the overhead for the
 * target, and cost every process a share of that.
 *
 * Returns the page's entry in the ledger if the page gets an owner now and the stack is to be walked, from `regs`; else NULL.
 */
static __always_inline __u32 *fault_begins(struct task_struct *task, struct task_state *st, int walked, __u64 address,
					   __u64 error_code, struct user_regs *regs)
{
	__u64 vpage = address >> page_shift;
	struct page_chunk *chunk;
	struct cpu_state *cpu;
	__u32 *owner;

	/* The stack walk reads user memory, and reading a bad address raises a fault within the walk. */
	if (!st || st->walking || !can_be_user(address))
		return NULL;
	cpu = own_cpu();
	cpu->plain = 0;
	cpu->mm = st->mm;
	cpu->generation = st->generation;
	if (walked == UNDECIDED)
		walked = walks_all() ? WALKED : decide_walk_out_of_line();
	if (walked) {
		__sync_fetch_and_add(&cpu->walked, 1);
		chunk = chunk_get(chunk_key(st->mm_id, vpage));
		if (!chunk)
			return NULL;
		st->fault_stack = STACK_NONE;
		st->fault_record = (walked - WALKED) << RECORD_STACK_BITS | (error_code & FAULT_WRITE ? RECORD_WRITE : 0);
	} else {
		__sync_fetch_and_add(&cpu->unwalked, 1);
		st->fault_address = 0;
		if (!(error_code & FAULT_PRESENT))
			return NULL;
		/* If the fault copies the page, the copy needs a record. */
		chunk = NULL;
		st->fault_stack = STACK_UNWALKED;
	}
	read_user_regs(task, regs);
	st->fault_address = address;
	st->fault_ip = regs->ip;
	st->fault_sp = regs->sp;
	st->fault_present = error_code & FAULT_PRESENT;
	/* A present page has an owner, or is older than memprof: only its copy gets an owner. */
	if (!chunk || st->fault_present)
		return NULL;
	owner = &chunk->stack[vpage & (CHUNK_PAGES - 1)];
	if (*owner != STACK_NONE || may_return_from_swap(address, walked))
		return NULL;
	return owner;
}

/* Whether this is the address space of the last fault on this processor, which is followed. */
static __always_inline int is_last_mm(struct cpu_state *cpu, struct mm_struct *mm)
{
	return mm && cpu->mm == (__u64)mm && cpu->generation == follow_generation;
}

/*
 * Finishes a fault that is not walked, if possible without the thread's state, whose lookup would double the cost of
 * the fault. Returns an enum walk_decision. Not inline: fault_user() has 32 bytes of stack left, see README.md.
 */
static __noinline int finish_unwalked(struct task_struct *task, struct mm_struct *mm, __u64 address, __u64 error_code)
{
	struct cpu_state *cpu = own_cpu();
	int walked;

	if (!is_last_mm(cpu, mm) || !can_be_user(address))
		return UNDECIDED;
	walked = decide_walk(cpu);
	if (walked)
		return walked;
	if (error_code & FAULT_PRESENT)
		return NOT_WALKED;
	__sync_fetch_and_add(&cpu->unwalked, 1);
	note_plain_fault(cpu, task, 1);
	return FINISHED_UNWALKED;
}

/* Handles a fault of the current thread in the programs that contain the walk. */
static __always_inline int handle_fault(struct task_struct *task, struct mm_struct *mm, __u64 address, __u64 error_code)
{
	int walked = UNDECIDED;
	struct task_state *st;
	struct user_regs regs;
	__u32 *owner;

	if (!walks_all())
		walked = finish_unwalked(task, mm, address, error_code);
	if (walked == FINISHED_UNWALKED)
		return 0;
	st = followed_state_with_mm(task, mm);
	owner = fault_begins(task, st, walked, address, error_code, &regs);
	if (!st || !owner)
		return 0;
	*owner = st->fault_stack = stack_id_from(st, &regs, 0) | st->fault_record;
	note_plain_fault(own_cpu(), task, 0);
	if (!walks_all())
		note_walk(st);
	return 0;
}

/* ---- Tracepoints: x86 only. ---- */

/*
 * Also does the pending work of other programs, which reach it by a tail call: so the walk is verified once for all of
 * them. The context is then theirs, and its second word is not the registers of the thread in user mode. For the other
 * tail call, which leads nowhere, see REENTRANT().
 */
SEC("raw_tp/page_fault_user")
int fault_user(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;

	/* Faults of all processes reach this line. */
	if (!mm_may_be_followed(mm))
		return 0;
	if (is_user_regs(task, ctx->args[1]))
		return handle_fault(task, mm, ctx->args[0], ctx->args[2]);
	bpf_tail_call(ctx, &after_stack, 0);
	do_pending();
	return 0;
}

/* Accesses of the kernel to user memory, such as read(2) into a fresh buffer. */
SEC("raw_tp/page_fault_kernel")
int fault_kernel(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed_state(task);
	struct user_regs regs;

	if (!fault_begins(task, st, UNDECIDED, ctx->args[0], ctx->args[2], &regs) || !st)
		return 0;
	st->pending.kind = PENDING_FAULT;
	tail_walk_pending(ctx);
	return 0;
}

/* ---- The software event of page faults, where these tracepoints do not exist (64-bit ARM). ---- */

/*
 * The kernel counts this event before it handles the fault, for every access to user memory. The event does not show
 * whether the page was present. If it was, the access was a write, and the page is readable. A read of an absent page
 * fails at once, because faults of programs are not handled. A read also fails if the processor cannot set the access
 * flag itself (before ARMv8.1) and the page is marked as not accessed, as fork() marks the pages of a child: such a
 * page seems to be new.
 */
struct bpf_perf_event_data_kern___event {
	void *event;
} __attribute__((preserve_access_index));

struct task_struct___faulting {
	__u64 start_time; /* since 5.5 */
	unsigned long min_flt;
	unsigned long maj_flt;
} __attribute__((preserve_access_index));

/*
 * Whether another event has reported this fault. A thread that starts while user space opens events for its process may
 * have two events, its own and an inherited one. The kernel reports the fault through both, one after the other, and
 * counts the fault afterwards: so only the first report counts. The event of a thread may change: if two threads with
 * the same events run one after the other, the kernel exchanges their events. Not inline: fault_event() has no stack
 * left, see README.md.
 */
static __noinline int is_reported_twice(struct bpf_perf_event_data *ctx, struct task_struct *task)
{
	struct task_struct___faulting *thread = (void *)task;
	__u64 fault = thread->start_time * 0x9e3779b97f4a7c15ull + (thread->min_flt + thread->maj_flt) * 0xff51afd7ed558ccdull;
	struct bpf_perf_event_data_kern___event *data = NULL;
	struct cpu_state *cpu = own_cpu();
	__u64 event = 0;

	fault ^= ctx->addr;
	bpf_probe_read_kernel(&event, sizeof(event), (void *)ctx + bpf_core_field_offset(data->event));
	if (cpu->reported_fault == fault && cpu->reported_event != event)
		return 1;
	cpu->reported_fault = fault;
	cpu->reported_event = event;
	return 0;
}

SEC("perf_event")
int fault_event(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;
	__u64 address = ctx->addr;
	__u8 byte;

	__sync_fetch_and_add(&own_cpu()->reports, 1);
	/* Faults of all processes reach this line. */
	if (!mm_may_be_followed(mm) || !can_be_user(address) || is_reported_twice(ctx, task))
		return 0;
	return handle_fault(task, mm, address,
			    bpf_probe_read_user(&byte, sizeof(byte), (void *)address) ? 0 : FAULT_PRESENT);
}

static __always_inline void record_fault(struct task_state *st)
{
	__u64 vpage = st->fault_address >> page_shift;
	struct page_chunk *chunk = chunk_find(chunk_key(st->mm_id, vpage));

	if (!chunk)
		return;
	st->fault_stack = stack_id(st, 0) | st->fault_record;
	chunk->stack[vpage & (CHUNK_PAGES - 1)] = st->fault_stack;
	if (!walks_all())
		note_walk(st);
}

/*
 * Whether the allocation is a huge page or large folio of anonymous or shared memory, with gfp flags from
 * GFP_TRANSHUGE_LIGHT. Folios that a fault reads into the page cache lack the __GFP_NOMEMALLOC in these flags.
 */
static __always_inline int is_large(unsigned int order, gfp_t gfp)
{
	return order && order <= CHUNK_SHIFT && (gfp & GFP_NOMEMALLOC);
}

/*
 * Sets the owner of the page that a fault allocated, and of those pages in a larger allocation that have none. Not
 * inline: the walk, which the caller calls first, leaves too little of the BPF stack for these variables.
 */
static __noinline int set_owners(struct task_state *st, struct page_chunk *chunk, __u32 stack)
{
	__u32 index = st->fault_address >> page_shift & (CHUNK_PAGES - 1), order = st->pending.order;
	__u32 replaces = st->fault_present || (st->pending.gfp & GFP_ZERO);
	__u32 *owner = &chunk->stack[index];

	if (is_large(order, st->pending.gfp)) {
		__u32 follows = stack == STACK_UNWALKED ? stack : stack | RECORD_FOLLOWS;
		__u32 first = index & ~((1u << order) - 1);

		/* The page replaces the huge zero page, whose readers own nothing. */
		if (st->fault_present)
			chunk_fill(chunk, first, 1u << order, follows);
		else
			chunk_fill_empty(chunk, first, 1u << order, follows);
		replaces |= *owner == follows;
	}
	if (replaces)
		*owner = stack;
	return 0;
}

/*
 * Records a page allocated during a fault. The current stack becomes the owner of a new page, and of the copy that a
 * write makes. A page that returns from swap or from a file keeps its owner. If the allocation is larger than the
 * faulting page, the stack also becomes the owner of the other pages that have none.
 */
static __always_inline void record_allocation(struct task_state *st)
{
	__u64 vpage = st->fault_address >> page_shift;
	__u32 stack = st->fault_stack, known = stack != STACK_NONE && stack != STACK_UNWALKED;
	struct page_chunk *chunk;
	struct user_regs regs;

	/* Continue only in the same fault, not later in this thread. */
	read_user_regs(bpf_get_current_task_btf(), &regs);
	if (regs.ip != st->fault_ip || regs.sp != st->fault_sp)
		return;
	chunk = chunk_get(chunk_key(st->mm_id, vpage));
	if (!chunk)
		return;
	if (st->fault_present && !st->pending.order) {
		copy_page_to_children(vpage, known ? STACK_NONE : chunk->stack[vpage & (CHUNK_PAGES - 1)]);
		if (!(st->pending.gfp & GFP_ZERO) && inherit_owner(vpage))
			return;
	}
	/* An id from an earlier epoch may already belong to another stack. */
	if (stack == STACK_NONE || (known && st->epoch != stack_epoch)) {
		restart_timer(own_cpu());
		stack = stack_id_from(st, &regs, 0) | st->fault_record;
		if (!walks_all())
			note_walk(st);
	}
	set_owners(st, chunk, stack);
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
	if (is_plain_allocation(task, order) || !task_may_be_followed(task))
		return 0;
	/* Only fault_begins() sets `fault_address`, and only in a followed address space. */
	st = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!st || !st->fault_address)
		return 0;
	wanted = is_large(order, gfp) || st->fault_present || (!st->fault_stack && (gfp & GFP_ZERO));
	if (wanted) {
		st->pending.kind = PENDING_ALLOCATION;
		st->pending.order = order;
		st->pending.gfp = gfp;
		tail_walk_pending(ctx);
	} else if (!order) {
		st->fault_address = 0;
	}
	return 0;
}

#endif
