/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counters that user space reads, and the state of each processor.
 */
#ifndef MEMPROF_COUNTERS_H
#define MEMPROF_COUNTERS_H

#include "base.bpf.h"

__u64 losses[LOSS_NR];

/*
 * Counters and notes of one processor, in their own cache lines. Words that all processors write would travel between
 * their caches, together with their neighbours. User space adds the counters up. Above MAX_CPUS processors, some share
 * a line. Another program may interrupt a program and overwrite a note.
 */
struct cpu_state {
	__u64 walked; /* page faults of followed processes whose stack was to be walked; exact */
	__u64 unwalked; /* and the others (walk_interval); exact */
	__u64 changes; /* other changes of followed memory; without a change, no new scan is needed */
	__u64 mm; /* address space of the last fault of a followed process */
	__u64 plain; /* the thread whose current fault needs nothing of its page's allocation, see note_plain_fault() */
	__u32 plain_migrations; /* migrations of that thread, at the fault */
	__u32 generation; /* follow_generation at the fault of `mm` */
	__u32 walk_in; /* faults before the next walk; see decide_walk() */
	__u32 walked_at; /* end of the last walk, in ticks */
	__u8 plain_any_order; /* the plain fault was not walked: allocations of any order are plain */
	__u8 walk_in_share; /* the share of faults that is walked while `walk_in` counts down, see share_code() */
	__u8 pad[6];
	/* Figures since the last addition to the sums of all processors; see budget.bpf.h. */
	__u64 settled_faults; /* all page faults at that addition */
	__u64 ran; /* CPU time of the threads with faults, ns */
	__u64 spent; /* time of walks, ns */
	__u64 timer; /* start of the walk that is timed, or 0 */
	__u32 timer_weight; /* number of walks that the timed walk represents */
	__u32 walks;
	/* The last fault that a perf event reported, and the event; see is_reported_twice(). */
	__u64 reported_fault;
	__u64 reported_event;
	__u64 reports; /* page faults that perf events reported, of any process; exact */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct cpu_state) == 128, "cpu_state");

struct cpu_state cpus[MAX_CPUS];

static __always_inline struct cpu_state *own_cpu(void)
{
	return &cpus[INDEX(bpf_get_smp_processor_id(), MAX_CPUS)];
}

static __always_inline __u64 faults_of(struct cpu_state *c)
{
	return c->walked + c->unwalked;
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
