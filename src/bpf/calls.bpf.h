/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Hooks of the system calls that space.bpf.h handles. User space loads one of three sets (src/probe/hooks.rs):
 *
 *  - kprobe.multi at the functions of these calls. Other system calls cost nothing extra.
 *  - fentry and fexit (BPF trampolines) at the same functions. Other system calls cost nothing extra, and these calls
 *    cost less than with kprobe.multi. But each function needs its own programs, which take 6 to 12 ms to attach and up
 *    to 150 ms to detach. A kernel that preempts its own code skips such a program if it has preempted another run of it
 *    on the same processor: eight threads lost up to nine calls of ten. There, these hooks are not used.
 *  - Tracepoints of all system calls. The kernel then takes the slow path into and out of every call of every process:
 *    240 instructions, 75 to 170 ns.
 *
 * A missed system call makes figures wrong, so single kretprobes are not used. They track ten calls under way, or two
 * for each processor: 100 threads lost a third of the returns, which no counter shows. docs/costs.md lists more hooks.
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
struct no_programs range_walker SEC(".maps");

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

/* Like do_pending(), for PENDING_RANGE, the only kind of pending work that system calls have. */
static __always_inline void take_range(void)
{
	struct task_state *st = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);

	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return;
	}
	st->pending.kind = PENDING_NONE;
	record_range(st);
}

struct no_programs after_range SEC(".maps");

REENTRANT("kretprobe.multi", calls_take_range, after_range)
{
	take_range();
}

/* ---- fentry and fexit: one small program for each function, and a tail call for followed processes. ---- */

/* User space writes any_before(), any_after() and any_after_range() into these. A map for each attach type. */
struct no_programs before_followed SEC(".maps"), after_followed SEC(".maps"), after_range_walker SEC(".maps");

#define BEFORE(call)                                                          \
	SEC("fentry/" SYSCALL_FUNCTION #call)                                 \
	int before_##call(void *ctx)                                          \
	{                                                                     \
		if (task_may_be_followed(bpf_get_current_task_btf())) {       \
			bpf_tail_call(ctx, &before_followed, 0);              \
			count_loss(LOSS_RING_RANGE);                          \
		}                                                             \
		return 0;                                                     \
	}

#define AFTER(call)                                                           \
	SEC("fexit/" SYSCALL_FUNCTION #call)                                  \
	int after_##call(void *ctx)                                           \
	{                                                                     \
		if (task_may_be_followed(bpf_get_current_task_btf())) {       \
			bpf_tail_call(ctx, &after_followed, 0);               \
			count_loss(LOSS_RING_RANGE);                          \
		}                                                             \
		return 0;                                                     \
	}

BEFORE(mmap)
BEFORE(brk)
BEFORE(mremap)
BEFORE(madvise)
BEFORE(munmap)
BEFORE(execve)
BEFORE(execveat)
BEFORE(exit_group)
AFTER(mmap)
AFTER(brk)
AFTER(mremap)
AFTER(madvise)
AFTER(mprotect)
AFTER(pkey_mprotect)
AFTER(mlock)
AFTER(mlock2)
AFTER(mlockall)
AFTER(write)

struct no_programs before_nowhere SEC(".maps"), after_nowhere SEC(".maps");

/* Of any function in BEFORE: the kernel permits tail calls between functions of the same type. */
REENTRANT("fentry/" SYSCALL_FUNCTION "mmap", any_before, before_nowhere)
{
	syscall_begins(SYSCALL_NR((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf())));
}

/* Of any function in AFTER. The tail call rules out a private stack, as in REENTRANT. */
SEC("fexit/" SYSCALL_FUNCTION "mmap")
int any_after(__u64 *ctx)
{
	/* After the only argument, the function's value. */
	if (syscall_returns(ctx[1])) {
		bpf_tail_call(ctx, &after_range_walker, 0);
		count_loss(LOSS_STACK_TABLE);
	}
	return 0;
}

REENTRANT("fexit/" SYSCALL_FUNCTION "mmap", any_after_range, after_nowhere)
{
	take_range();
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
