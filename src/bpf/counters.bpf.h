/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counters that user space reads, and what each processor keeps by itself.
 */
#ifndef MEMPROF_COUNTERS_H
#define MEMPROF_COUNTERS_H

#include "base.bpf.h"

__u64 losses[LOSS_NR];

/*
 * What each processor counts and notes by itself, in cache lines of its own: words that all processors wrote would
 * travel between their caches, together with whatever lies beside them. User space adds the counters up. (With more
 * than MAX_CPUS processors some share a line. A program may be interrupted by another one: a note may be overwritten.)
 */
struct cpu_state {
	__u64 faults; /* page faults of followed processes; exact */
	__u64 unwalked; /* those of them whose stack was not walked (walk_interval) */
	__u64 changes; /* other changes of their memory: while nothing changes, no new scan is needed */
	__u64 mm; /* the address space of the last fault of a followed process */
	__u64 plain; /* the thread whose fault under way needs no look at its page's allocation, see note_plain_fault() */
	__u32 plain_migrations; /* of that thread, at the fault */
	__u32 generation; /* follow_generation at that last fault */
	__u32 walk_in; /* faults before the next walk; see decide_walk() */
	__u32 walked_at; /* when the last walk ended, in ticks */
	__u8 plain_any_order; /* that thread's fault was not walked */
	__u8 walk_in_share; /* the share of the faults that is walked while `walk_in` counts down, see share_code() */
	__u8 pad[6];
	/* Since the figures were last added to those of all processors; see budget.bpf.h. */
	__u64 settled_faults; /* `faults` then */
	__u64 ran; /* CPU time of the threads that faulted, ns */
	__u64 spent; /* on walks, ns */
	__u64 timer; /* when the walk that is timed began, or 0 */
	__u32 timer_weight; /* for how many walks it stands */
	__u32 walks;
	/* With events: the last fault, and the event that reported it; see is_counted_twice(). */
	__u64 reported_fault;
	__u64 reported_event;
	__u64 unused;
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct cpu_state) == 128, "cpu_state");

struct cpu_state cpus[MAX_CPUS];

static __always_inline struct cpu_state *own_cpu(void)
{
	return &cpus[INDEX(bpf_get_smp_processor_id(), MAX_CPUS)];
}

static __always_inline void count_loss(__u32 which)
{
	__sync_fetch_and_add(&losses[which], 1);
}

static __always_inline void count_activity(void)
{
	__sync_fetch_and_add(&own_cpu()->changes, 1);
}

#endif
