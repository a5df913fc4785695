/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counters that user space reads.
 */
#ifndef MEMPROF_COUNTERS_H
#define MEMPROF_COUNTERS_H

#include "base.bpf.h"

__u64 losses[LOSS_NR];
/* Changes whenever memory of a followed process changes; while it stays the same, no new scan is needed. */
__u64 activity = 0;
__u64 faults = 0; /* page faults of followed processes; exact */

static __always_inline void count_loss(__u32 which)
{
	__sync_fetch_and_add(&losses[which], 1);
}

static __always_inline void count_activity(void)
{
	activity++; /* a lost increment is harmless: user space only compares it with the last value */
}

#endif
