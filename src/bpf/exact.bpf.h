/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Every allocation (--heap=exact): uprobes on the functions of the process's allocators, for a bounded time. User space
 * finds the functions (src/exact/) and attaches these programs. The cookie of each link names the registers with the
 * arguments.
 *
 * The programs add figures up by stack. A row contains only counted calls; everything that does not fit has a counter
 * of its own.
 *
 * An allocation function that calls another one counts once: the outermost call of a thread is noted until it returns.
 */
#ifndef MEMPROF_EXACT_H
#define MEMPROF_EXACT_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "exact_sums.bpf.h"
#include "follow.bpf.h"
#include "returns.bpf.h"
#include "unwind.bpf.h"

/* Which calls are counted. User space sets these before it loads the programs. */
__u64 exact_min = 0;
__u64 exact_max = ~0ull;
__u64 exact_skip = 0;

/* Counters of calls. */
struct exact_seen exact_seen;

/* The outermost call of an allocation function in a thread, until it returns. */
struct exact_call {
	__u64 sp; /* at the function's entry; 0: none */
	__u64 to; /* the return address, for calls with EXACT_EXITS */
	__u64 size;
	__u64 pointer; /* the resized block, or the address that receives the result; see exact_flag */
	__u32 flags;
	__u32 stack; /* STACK_NONE: not counted */
	struct exact_block old; /* the resized block; `at` is 0 if there is none */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct exact_call);
} exact_calls SEC(".maps");

struct no_programs after_call SEC(".maps");

static __always_inline void count_seen(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static __always_inline __u64 register_at(struct pt_regs *ctx, __u32 index)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)ctx + (index & 0xff) * sizeof(value));
	return value;
}

/*
 * Whether the noted call is still on the stack. A frame may be left without a return, by longjmp or an exception. Then
 * the stack pointer is above the frame, or the word there is no longer the return address that the kernel wrote.
 */
static __always_inline int is_on_stack(struct exact_call *call, __u64 sp)
{
#if defined(bpf_target_x86)
	__u64 to = 0;

	if (sp > call->sp || bpf_probe_read_user(&to, sizeof(to), (void *)call->sp))
		return 0;
	if (call->flags & EXACT_EXITS)
		return to == call->to;
	return may_be_probed(to) && probed_return(call->sp);
#else
	return sp < call->sp;
#endif
}

/* Whether the call comes from within another allocation function. Counts such a call. */
static __always_inline int is_nested(struct exact_call *call, __u64 sp)
{
	if (!call->sp)
		return 0;
	if (is_on_stack(call, sp)) {
		count_seen(&exact_seen.nested);
		return 1;
	}
	call->sp = 0;
	count_loss(LOSS_EXACT_RETURN);
	return 0;
}

/* Adds a counted allocation that has succeeded; its address is 0 if unknown. */
static __noinline int block_allocated(struct exact_call *call, __u32 mm_id, __u64 address)
{
	struct exact_block block = { .stack = call->stack, .size = call->size, .at = bpf_ktime_get_ns() }, old;
	struct exact_key key = { .address = address, .mm_id = mm_id };
	struct exact_sum *sum = find_sum(&block.stack);
	__u64 weight = exact_every;

	if (!sum)
		return 0;
	__sync_fetch_and_add(&sum->objects, weight);
	__sync_fetch_and_add(&sum->bytes, weight * block.size);
	__sync_fetch_and_add(&sum->sizes[size_class(block.size) & (SIZE_CLASSES - 1)], weight);
	if (!address) {
		count_loss(LOSS_EXACT_OPERATORS);
		return 0;
	}
	if (insert_block(&key, &block)) {
		/* A function without a probe has freed the block at this address. */
		if (remove_block(&key, &old) == 0) {
			count_loss(LOSS_EXACT_FREE);
			block_freed(&old);
		}
		if (insert_block(&key, &block)) {
			count_loss(LOSS_EXACT_BLOCKS);
			return 0;
		}
	}
	__sync_fetch_and_add(&sum->live_objects, weight);
	__sync_fetch_and_add(&sum->live_bytes, weight * block.size);
	return 0;
}

/* Whether a call with this size is counted. */
static __always_inline int is_counted(__u64 size)
{
	if (exact_skip && __sync_fetch_and_add(&exact_seen.calls, 1) < exact_skip)
		return 0;
	if (!exact_skip)
		count_seen(&exact_seen.calls);
	if (size < exact_min || size > exact_max) {
		count_seen(&exact_seen.filtered);
		return 0;
	}
	return exact_every <= 1 || bpf_get_prandom_u32() % exact_every == 0;
}

/* Notes a call, and removes the block that it resizes from the live blocks. Returns 1 if the call needs a stack. */
static __noinline int note_call(struct pt_regs *ctx, __u32 mm_id)
{
	__u64 cookie = bpf_get_attach_cookie(ctx), sp = PT_REGS_SP(ctx), size;
	struct exact_call *call = bpf_task_storage_get(&exact_calls, bpf_get_current_task_btf(), NULL,
						       BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct exact_key key = { .mm_id = mm_id };
	__u32 flags = cookie >> 24 & 0xff;

	if (!call) {
		count_loss(LOSS_TASK_STATE);
		return 0;
	}
	if (is_nested(call, sp))
		return 0;
	size = register_at(ctx, cookie);
	if ((cookie >> 8 & 0xff) != EXACT_NO_REGISTER)
		size *= register_at(ctx, cookie >> 8);
	call->size = size;
	call->flags = flags;
	call->stack = STACK_NONE;
	call->old.at = 0;
	if (flags & (EXACT_RESIZES | EXACT_STORES))
		call->pointer = register_at(ctx, cookie >> 16);
	if (flags & EXACT_RESIZES) {
		/* Remove it now, not at the return: by then, another thread may own its address. */
		key.address = call->pointer;
		if (remove_block(&key, &call->old))
			call->old.at = 0;
	}
	call->to = 0;
	if (flags & EXACT_EXITS)
		bpf_probe_read_user(&call->to, sizeof(call->to), (void *)sp);
	if (!(flags & EXACT_NO_RETURN))
		call->sp = sp;
	else if (call->old.at)
		block_freed(&call->old);
	if (!is_counted(size))
		return 0;
	/*
	 * No address space is that large: the call fails. Count the failure here, because the return may have no probe.
	 */
	if (size >> 47) {
		count_seen(&exact_seen.failed);
		return 0;
	}
	return 1;
}

static __noinline int note_stack(__u32 mm_id, __u32 stack)
{
	struct exact_call *call = bpf_task_storage_get(&exact_calls, bpf_get_current_task_btf(), NULL, 0);

	if (!call) {
		count_loss(LOSS_TASK_STATE);
		return 0;
	}
	call->stack = stack;
	count_activity();
	if (call->flags & EXACT_NO_RETURN)
		block_allocated(call, mm_id, 0);
	return 0;
}

REENTRANT("uprobe", call_begins, after_call)
{
	struct task_state *st = followed_state(bpf_get_current_task_btf());

	/* With `own`, each address space has its own stack ids, so the sums by stack are also sums by process. */
	if (st && note_call(ctx, st->mm_id) == 1)
		note_stack(st->mm_id, stack_id(st, 1));
}

/* Handles the return of a noted call. */
static __noinline int finish_call(struct pt_regs *ctx, __u32 mm_id, struct exact_call *call)
{
	struct exact_key key = { .address = call->pointer, .mm_id = mm_id };
	__u64 result = PT_REGS_RC(ctx);

	if (call->flags & EXACT_STORES) {
		__u64 stored = 0;

		if ((__u32)result == 0)
			bpf_probe_read_user(&stored, sizeof(stored), (void *)call->pointer);
		result = stored;
	}
	if (call->old.at) {
		/* A failed call leaves the old block in place. With a size of 0, the call was a free. */
		if (result || !call->size || call->flags & EXACT_FREES)
			block_freed(&call->old);
		else if (insert_block(&key, &call->old))
			count_loss(LOSS_EXACT_BLOCKS);
	}
	if (call->stack == STACK_NONE)
		return 0;
	if (result)
		block_allocated(call, mm_id, result);
	else if (!(call->flags & EXACT_RESIZES && !call->size)) /* a size of 0 is a free, not a failure */
		count_seen(&exact_seen.failed);
	return 0;
}

/* Handles the return of a call whose return address was at `sp`. */
static __always_inline void finish_at(struct pt_regs *ctx, __u64 sp)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed_state(task);
	struct exact_call *call = bpf_task_storage_get(&exact_calls, task, NULL, 0);

	/* A nested call returns with another stack pointer. */
	if (!st || !call || !call->sp || call->sp != sp)
		return;
	call->sp = 0;
	finish_call(ctx, st->mm_id, call);
}

/* At a return with a probe. */
REENTRANT("uprobe", call_ends, after_call)
{
#if defined(bpf_target_x86)
	finish_at(ctx, PT_REGS_SP((struct pt_regs *)ctx) - sizeof(__u64)); /* the return address has been popped */
#else
	finish_at(ctx, PT_REGS_SP((struct pt_regs *)ctx));
#endif
}

/* At a `ret` instruction, which other calls may execute, too. */
REENTRANT("uprobe", call_exits, after_call)
{
	finish_at(ctx, PT_REGS_SP((struct pt_regs *)ctx));
}

/* The noted call ends by an exception: it has failed. */
static __noinline int fail_call(struct exact_call *call, __u32 mm_id)
{
	struct exact_key key = { .address = call->pointer, .mm_id = mm_id };

	call->sp = 0;
	if (call->old.at && insert_block(&key, &call->old))
		count_loss(LOSS_EXACT_BLOCKS);
	if (call->stack != STACK_NONE)
		count_seen(&exact_seen.failed);
	return 0;
}

/* At the start of an exception. */
REENTRANT("uprobe", call_throws, after_call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed_state(task);
	struct exact_call *call = bpf_task_storage_get(&exact_calls, task, NULL, 0);

	if (st && call && call->sp && call->flags & EXACT_EXITS)
		fail_call(call, st->mm_id);
}

static __noinline int free_begins(struct pt_regs *ctx, __u32 mm_id)
{
	struct exact_call *call = bpf_task_storage_get(&exact_calls, bpf_get_current_task_btf(), NULL, 0);
	struct exact_key key = { .mm_id = mm_id };
	struct exact_block block;

	if (call && is_nested(call, PT_REGS_SP(ctx)))
		return 0;
	key.address = register_at(ctx, bpf_get_attach_cookie(ctx) >> 16);
	if (!key.address || remove_block(&key, &block))
		return 0;
	count_activity();
	return block_freed(&block);
}

REENTRANT("uprobe", free_called, after_call)
{
	struct task_state *st = followed_state(bpf_get_current_task_btf());

	if (st)
		free_begins(ctx, st->mm_id);
}

#endif
