/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Hooks of the system calls that space.bpf.h handles. User space loads one of two sets (src/probe/hooks.rs):
 *
 *  - kprobe.multi at the functions of these calls. Other system calls cost nothing extra.
 *  - Tracepoints of all system calls. The kernel then takes the slow path into and out of every call of every process:
 *    240 instructions, 75 to 170 ns.
 *
 * A missed system call makes figures wrong, so these hooks are not used:
 *
 *  - fentry and fexit. A kernel that preempts its own code skips such a program if it has preempted another run of it
 *    on the same processor: eight threads lost nine calls of ten. Each function also needs its own program, which takes
 *    6 to 12 ms to attach and up to 150 ms to detach.
 *  - Single kretprobes. They track ten calls under way, or two for each processor: 100 threads lost two thirds of the
 *    returns.
 *
 * No hook of system calls sees the work that other kernel threads do for a process, such as io_uring's madvise.
 */
#ifndef MEMPROF_CALLS_H
#define MEMPROF_CALLS_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "follow.bpf.h"
#include "space.bpf.h"
#include "pending.bpf.h"
#include "thread.bpf.h"

/* ---- kprobe.multi: user space names the functions. ---- */

/* Like `walker`, for programs of another type. User space writes calls_take_range() into it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} range_walker SEC(".maps");

SEC("kprobe.multi")
int calls_begin(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 nr;

	if (!task_may_be_followed(task))
		return 0;
	nr = SYSCALL_NR((struct pt_regs *)bpf_task_pt_regs(task));
	return is_wanted(nr, ENTERS) ? syscall_begins(nr) : 0;
}

SEC("kretprobe.multi")
int calls_return(struct pt_regs *ctx)
{
	if (syscall_returns(PT_REGS_RC(ctx))) {
		bpf_tail_call(ctx, &range_walker, 0);
		/* A tail call returns only if it fails. */
		count_loss(LOSS_STACK_TABLE);
	}
	return 0;
}

struct no_programs after_range SEC(".maps");

/* Like do_pending(), for PENDING_RANGE, the only kind of pending work that system calls have. */
REENTRANT("kretprobe.multi", calls_take_range, after_range)
{
	struct task_state *st = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);

	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return;
	}
	st->pending.kind = PENDING_NONE;
	record_range(st);
}

/* ---- Tracepoints. ---- */

SEC("raw_tp/sys_enter")
int syscall_enter(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 nr = ctx->args[1];

	return is_wanted(nr, ENTERS) ? syscall_begins(nr) : 0;
}

SEC("raw_tp/sys_exit")
int syscall_exit(struct bpf_raw_tracepoint_args *ctx)
{
	if (syscall_returns(ctx->args[1]))
		tail_walk_pending(ctx);
	return 0;
}

#endif
