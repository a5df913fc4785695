/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * User registers of the current task.
 */
#ifndef MEMPROF_REGISTERS_H
#define MEMPROF_REGISTERS_H

#include "base.bpf.h"

struct user_regs {
	__u64 ip;
	__u64 sp;
	__u64 bp;
	/*
	 * One word for both: the BPF stack is short. The walk copies the word to both fields, and needs only one of
	 * them.
	 */
	union {
		__u64 bx; /* x86-64 only */
		__u64 lr; /* arm64 only */
	};
	__u64 in_syscall; /* ip is the address after a system call instruction */
};

/* Where the user registers are on a kernel stack: the same on all of them. 0 until is_user_regs() has found it. */
__u64 user_regs_offset;

/*
 * Whether this is the address of a task's user registers. A call of bpf_task_pt_regs() at each fault would be a large
 * part of the cost of a fault that is not walked.
 */
static __always_inline int is_user_regs(struct task_struct *task, __u64 address)
{
	__u64 stack = (__u64)task->stack;

	if (user_regs_offset)
		return address == stack + user_regs_offset;
	if (address != (__u64)bpf_task_pt_regs(task))
		return 0;
	user_regs_offset = address - stack;
	return 1;
}

static __always_inline void read_user_regs(struct task_struct *task, struct user_regs *out)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	/* Plain loads, because each PT_REGS_*_CORE() is a call. */
#if defined(bpf_target_x86)
	out->ip = regs->ip;
	out->sp = regs->sp;
	out->bp = regs->bp;
	out->bx = regs->bx;
	out->in_syscall = (long)regs->orig_ax >= 0;
#elif defined(bpf_target_arm64)
	out->ip = regs->pc;
	out->sp = regs->sp;
	out->bp = regs->regs[29];
	out->lr = regs->regs[30];
	out->in_syscall = regs->syscallno >= 0;
#endif
}

static __always_inline __u64 read_user_ip(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

#if defined(bpf_target_x86)
	return regs->ip;
#elif defined(bpf_target_arm64)
	return regs->pc;
#endif
}

/* The address of the current thread's struct pthread. */
static __always_inline __u64 thread_pointer(void)
{
#if defined(bpf_target_x86)
	return bpf_get_current_task_btf()->thread.fsbase;
#else
	return 0; /* not supported: user space does not search for interpreters there */
#endif
}

#endif
