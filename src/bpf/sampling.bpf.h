/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Chooses the page faults whose stacks are walked (--stacks). The sums do not depend on the choice: they come from the
 * kernel's page tables.
 */
#ifndef MEMPROF_SAMPLING_H
#define MEMPROF_SAMPLING_H

#include "base.bpf.h"
#include "budget.bpf.h"
#include "counters.bpf.h"

/*
 * Which faults are walked: enum walk_mode. Not a constant: the verifier would then remove calls, and 6.18 refuses to
 * compile functions that lost their callers ("verifier bug: No program to jit").
 */
volatile __u8 walk_mode = WALK_BUDGET;

/* With WALK_SHARE, after the first faults: one of `walk_share` faults is walked. */
volatile __u32 walk_share = 1;

/* One of `walk_interval` faults is walked now; 1: every fault is walked. */
volatile __u32 walk_interval = 1;

/* Whether the machine has swap space. User space updates it at each report. */
__u32 swap_on;

/* Number of first faults that are still walked without a choice, so that the stacks of a small program are complete. */
__s32 walk_first = WALK_FIRST;

/*
 * With WALK_BUDGET, while all faults are walked: one of TIMED_ONE_IN walks is timed. A prime, so that few loops
 * synchronize with it.
 */
#define TIMED_ONE_IN 17

static __always_inline int walks_all(void)
{
	return walk_mode == WALK_ALL;
}

/* Position of the highest bit. Arithmetic, because each branch would double the verifier's paths. */
static __always_inline __u32 highest_bit(__u32 word)
{
	__u64 left = word;
	__u32 bits = 0;

#pragma unroll
	for (__u32 step = 16; step; step >>= 1) {
		/* `step` if a bit is set from there on, else 0 */
		__u32 more = step & ((__s64)((1ull << step) - 1 - left) >> 63);

		left >>= more;
		bits += more;
	}
	return bits;
}

/*
 * Number of faults before the next walk. It is random, as if each fault had the chance 1/interval, independently of the
 * other faults. So no loop synchronizes with the interval, and each walked fault represents `interval` faults
 * (src/source/resident/sampled.rs). The number is ln(u) / ln(1 - 1/interval) for a random u in (0, 1], rounded down.
 * The divisor is approximated by -1 / (interval - 1/2 - 1/(9 * interval)), with an error of at most 0.2 %.
 */
static __always_inline __u32 random_gap(__u32 interval)
{
	__u32 u = bpf_get_prandom_u32() | 1, bits = highest_bit(u);
	__u64 f, log2;

	/* log2(1 + f), approximated by a parabola, in units of 2^-16: the error is at most 0.01. */
	f = ((__u64)u << (32 - bits) & 0xffffffff) >> 16;
	log2 = (32 - bits) * 65536 - (f + (f * (65536 - f) >> 16) * 22713 / 65536);
	return (log2 * 45426 >> 16) * (((__u64)interval << 8) - 128 - 28 / interval) >> 24;
}

/*
 * The share of faults that is walked, 1/interval, in the format of records. 0 is all faults. An interval below 32 is
 * stored as it is, a larger one as the position of its highest bit and the next four bits.
 */
static __always_inline __u32 share_code(__u32 interval)
{
	__u32 bits = highest_bit(interval | 16) - 4, code = (bits << 4) + (interval >> bits);

	if (interval <= 1)
		return 0;
	return code < 1 << RECORD_SHARE_BITS ? code : (1 << RECORD_SHARE_BITS) - 1;
}

/*
 * Whether the stack of a fault is walked. A walked fault has WALKED plus share_code() of the share of faults that was
 * walked: 1/interval, for the interval from which the current gap was drawn.
 */
enum walk_decision {
	FINISHED_UNWALKED = -2, /* not walked, and already counted: the program returns */
	UNDECIDED = -1, /* fault_begins() decides */
	NOT_WALKED = 0,
	WALKED = 1,
};

/*
 * Decides whether the stack of this fault is walked, and starts the timer of the walk. Returns NOT_WALKED, or WALKED
 * plus the share.
 */
static __always_inline int decide_walk(struct cpu_state *c)
{
	__u32 interval = walk_interval, share = c->walk_in_share, before = c->walk_in;

	if (interval <= 1) {
		/* A fault that then needs no stack leaves its timer to the next fault. */
		c->timer = 0;
		if (walk_mode == WALK_BUDGET && !(c->walked % TIMED_ONE_IN))
			start_timer(c, TIMED_ONE_IN);
		return WALKED;
	}
	if (walk_mode == WALK_BUDGET && (__u32)bpf_jiffies64() - c->walked_at >= PAUSE_TICKS) {
		/* After a pause the interval may be too long: walk the first fault. */
		share = 0;
	} else if (before) {
		c->walk_in = before - 1;
		return NOT_WALKED;
	}
	c->walk_in = random_gap(interval);
	c->walk_in_share = share_code(interval);
	if (walk_mode == WALK_BUDGET)
		start_timer(c, 1);
	return WALKED + (int)share;
}

/*
 * Counts the processor's walks as first faults, all of which are walked. Returns 0 after the first faults. With
 * WALK_SHARE, the interval begins then.
 */
static __always_inline int charge_first_walks(struct cpu_state *c)
{
	if (walk_first <= 0)
		return 0;
	if (__sync_fetch_and_sub(&walk_first, c->walks) <= (__s32)c->walks && walk_mode == WALK_SHARE)
		walk_interval = walk_share;
	return 1;
}

/* Notes the walk for a fault of the current thread. Not inline: its callers are short of stack, see README.md. */
static __noinline int note_walk(struct task_state *st)
{
	struct cpu_state *c = own_cpu();
	__u32 interval = walk_interval;

	if (walk_mode == WALK_SHARE && interval > 1)
		return 0;
	c->walks++;
	if (walk_mode == WALK_BUDGET)
		charge_walk(c, st);
	/* Words that all processors write are written rarely. */
	if (interval <= 1 && c->walks < WALKS_AT_ONCE)
		return 0;
	if (!charge_first_walks(c) && walk_mode == WALK_BUDGET) {
		interval = settle(c);
		if (interval)
			walk_interval = interval;
	}
	c->walks = 0;
	c->spent = 0;
	c->ran = 0;
	c->settled_faults = faults_of(c);
	return 0;
}

/*
 * Notes that the current fault needs nothing of the allocation of its page: the fault is no copy-on-write, and its
 * stack is recorded or not walked. With a recorded stack, only single pages are plain, because a large folio sets more
 * owners; without a walk, allocations of any order are. page_allocated() can then return early, without the expensive
 * lookup of the thread's state. If the thread moves to another processor in between, the note is void.
 */
static __always_inline void note_plain_fault(struct cpu_state *c, struct task_struct *task, __u8 any_order)
{
	c->plain_migrations = task->se.nr_migrations;
	c->plain_any_order = any_order;
	c->plain = (__u64)task;
}

/* Whether the allocation belongs to a plain fault, or follows it: the next fault clears the note. */
static __always_inline int is_plain_allocation(struct task_struct *task, __u32 order)
{
	struct cpu_state *c = own_cpu();

	return c->plain == (__u64)task && c->plain_migrations == (__u32)task->se.nr_migrations &&
	       (!order || c->plain_any_order);
}

#endif
