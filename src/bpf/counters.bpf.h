/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counters that user space reads.
 */
#ifndef MEMPROF_COUNTERS_H
#define MEMPROF_COUNTERS_H

#include "base.bpf.h"

__u64 losses[LOSS_NR];

/*
 * What is counted on every event, on each processor by itself: words that all processors wrote would travel between
 * their caches, together with whatever lies beside them. User space adds them up. (With more than MAX_CPUS processors
 * some share a line.)
 */
struct cpu_counters {
	__u64 faults; /* page faults of followed processes; exact */
	__u64 unwalked; /* those of them whose stack was not walked (walk_interval) */
	__u64 changes; /* other changes of their memory: while nothing changes, no new scan is needed */
	__u64 pad[5];
} __attribute__((aligned(64)));

struct cpu_counters cpu_counters[MAX_CPUS];

static __always_inline struct cpu_counters *own_counters(void)
{
	return &cpu_counters[INDEX(bpf_get_smp_processor_id(), MAX_CPUS)];
}

/* Returns the counters, for counting more about the fault. (A program may be interrupted by another one.) */
static __always_inline struct cpu_counters *count_fault(void)
{
	struct cpu_counters *c = own_counters();

	__sync_fetch_and_add(&c->faults, 1);
	return c;
}

static __always_inline void count_loss(__u32 which)
{
	__sync_fetch_and_add(&losses[which], 1);
}

static __always_inline void count_activity(void)
{
	own_counters()->changes++; /* a lost increment is harmless: user space only compares it with the last value */
}

#endif
