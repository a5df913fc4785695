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

/* ---- fentry and fexit: a small program for each function, and a tail call for followed processes. ---- */

/* `NAME_next` is for a program with the work; user space writes it. */
#define AT_FUNCTION(name, type, call)                                   \
	struct no_programs name##_next SEC(".maps");                    \
	SEC(type "/" SYSCALL_FUNCTION #call)                            \
	int name(void *ctx)                                             \
	{                                                               \
		if (task_may_be_followed(bpf_get_current_task_btf())) { \
			bpf_tail_call(ctx, &name##_next, 0);            \
			count_loss(LOSS_RING_RANGE);                    \
		}                                                       \
		return 0;                                               \
	}
#define BEFORE(call) AT_FUNCTION(before_##call, "fentry", call)
#define AFTER(call) AT_FUNCTION(after_##call, "fexit", call)

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

/*
 * The programs with the work. The kernel permits tail calls between functions of the same BTF prototype (28ead3eaabc1
 * "bpf: Prevent tail call between progs attached to different hooks", 6.12 and stable series). The prototypes of system
 * calls differ in the name of the parameter: `regs`, and `__unused` for calls without arguments and for some of those
 * that a configuration can omit. So there is one set for each.
 */
#define WORK(name, function)                                                                                    \
	struct no_programs name##_walk SEC(".maps"), name##_before_ends SEC(".maps"), name##_ends SEC(".maps"); \
	REENTRANT("fentry/" function, name##_before, name##_before_ends)                                        \
	{                                                                                                       \
		syscall_begins(SYSCALL_NR((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf())));     \
	}                                                                                                       \
	/* The tail call rules out a private stack, as in REENTRANT. */                                         \
	SEC("fexit/" function)                                                                                  \
	int name##_after(__u64 *ctx)                                                                            \
	{                                                                                                       \
		/* The value follows the only argument. */                                                      \
		if (syscall_returns(ctx[1])) {                                                                  \
			bpf_tail_call(ctx, &name##_walk, 0);                                                    \
			count_loss(LOSS_STACK_TABLE);                                                           \
		}                                                                                               \
		return 0;                                                                                       \
	}                                                                                                       \
	REENTRANT("fexit/" function, name##_after_range, name##_ends)                                           \
	{                                                                                                       \
		take_range();                                                                                   \
	}

WORK(regs, SYSCALL_FUNCTION "mmap")
WORK(unused, SYSCALL_FUNCTION_UNUSED)

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
