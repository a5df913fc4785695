/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Which page faults have their stack walked (--stacks). The sums do not depend on it: they come from the kernel's page
 * tables.
 */
#ifndef MEMPROF_SAMPLING_H
#define MEMPROF_SAMPLING_H

#include "base.bpf.h"
#include "counters.bpf.h"

/* Of so many faults, one is walked; 1: every fault. Written by user space. */
volatile __u32 walk_interval = 1;

/* How many more faults are walked in any case, so that the stacks of a small program are complete. */
__s32 walk_first = WALK_FIRST;

/*
 * Whether to walk the stack of this fault: the one at a random place in each run of `walk_interval` faults on this
 * processor. So each fault has the same chance, and no loop falls into step with the interval.
 */
static __always_inline int is_walked(struct cpu_state *c)
{
	__u32 interval = walk_interval, before = c->walk_in, place;

	if (interval <= 1)
		return 1;
	if (walk_first > 0) {
		__sync_fetch_and_sub(&walk_first, 1);
		return 1;
	}
	if (before) {
		c->walk_in = before - 1;
		return 0;
	}
	place = bpf_get_prandom_u32() % interval;
	/* The rest of this run, then the faults before that place in the next one. */
	c->walk_in = c->run_left + place;
	c->run_left = interval - 1 - place;
	if (c->in_runs)
		return 1;
	/* The first run begins with this fault. */
	c->in_runs = 1;
	if (!place)
		return 1;
	c->walk_in = place - 1;
	return 0;
}

/*
 * Notes that the thread's fault needs nothing of the allocation of its page: it is no copy-on-write, and its stack is
 * recorded, which still leaves large folios, or is not walked. Without the thread's state, which is dear to find,
 * page_allocated() can then end at once. If the thread moves to another processor in between, the note does not hold.
 */
static __always_inline void plain_fault(struct cpu_state *c, struct task_struct *task, __u8 any_order)
{
	c->plain_migrations = task->se.nr_migrations;
	c->plain_any_order = any_order;
	c->plain = (__u64)task;
}

/* Whether the allocation belongs to such a fault, or follows it: the next fault ends the note. */
static __always_inline int is_plain_allocation(struct task_struct *task, __u32 order)
{
	struct cpu_state *c = own_cpu();

	return c->plain == (__u64)task && c->plain_migrations == (__u32)task->se.nr_migrations &&
	       (!order || c->plain_any_order);
}

#endif
