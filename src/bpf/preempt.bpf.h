/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Programs at tracepoints are not preempted.
 *
 * Up to Linux 6.19, the kernel disables preemption around them itself. From 7.0 on (a46023d5616e "tracing: Guard
 * __DECLARE_TRACE() use of __DO_TRACE_CALL() with SRCU-fast"), it may preempt one, and until that one goes on, it skips the
 * program for every other task on the processor: what these do is missed, for a time slice and longer. Also, what a program
 * keeps by processor (own_cpu()) would be another task's when it goes on. bpf_preempt_disable() is there from 6.10 on
 * (fc7566ad0a82 "bpf: Introduce bpf_preempt_[disable,enable] kfuncs").
 */
#ifndef MEMPROF_PREEMPT_H
#define MEMPROF_PREEMPT_H

#include "base.bpf.h"

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;
extern int LINUX_KERNEL_VERSION __kconfig;

#define IS_PREEMPTED (LINUX_KERNEL_VERSION >= KERNEL_VERSION(7, 0, 0) && bpf_ksym_exists(bpf_preempt_disable))

/* What a program does: an expression of type int. (A tail call is not possible in it.) */
#define UNPREEMPTED(work)                       \
	({                                      \
		int _result;                    \
		if (IS_PREEMPTED)               \
			bpf_preempt_disable();  \
		_result = (work);               \
		if (IS_PREEMPTED)               \
			bpf_preempt_enable();   \
		_result;                        \
	})

#endif
