/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Which page faults have their stack walked (--stacks). The sums do not depend on it: they come from the kernel's page
 * tables.
 */
#ifndef MEMPROF_SAMPLING_H
#define MEMPROF_SAMPLING_H

#include "base.bpf.h"
#include "thread.bpf.h"

/* Of so many faults of a thread, one is walked; 1: every fault. Written by user space. */
volatile __u32 walk_interval = 1;

/* How many more faults are walked in any case, so that the stacks of a small program are complete. */
__s32 walk_first = WALK_FIRST;

/*
 * Whether to walk the stack of this fault: the one at a random place in each run of `walk_interval` faults of the
 * thread. So each fault has the same chance, and no loop falls into step with the interval.
 */
static __always_inline int is_walked(struct task_state *st)
{
	__u32 interval = walk_interval, place;

	if (interval <= 1)
		return 1;
	if (walk_first > 0) {
		__sync_fetch_and_sub(&walk_first, 1);
		return 1;
	}
	if (st->walk_in) {
		st->walk_in--;
		return 0;
	}
	place = bpf_get_prandom_u32() % interval;
	/* The rest of this run, then the faults before that place in the next one. */
	st->walk_in = st->run_left + place;
	st->run_left = interval - 1 - place;
	if (st->in_runs)
		return 1;
	/* The thread's first run begins with this fault. */
	st->in_runs = 1;
	if (!place)
		return 1;
	st->walk_in--;
	return 0;
}

#endif
