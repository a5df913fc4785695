/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The budget of stack walks (--stacks auto): they may take a share of the CPU time of the threads that are followed.
 * Walks are timed where they happen; the interval between them follows from what the last ones cost, how many faults
 * there were, and how long the threads ran. One budget serves all processes, and no user-space loop is involved.
 */
#ifndef MEMPROF_BUDGET_H
#define MEMPROF_BUDGET_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "thread.bpf.h"

/* The share of CPU time that walks may take, in millionths. */
volatile __u32 walk_budget = 20000;

#define MILLION 1000000ull
#define SECOND 1000000000ull

/*
 * The interval is computed anew after so much CPU time, a few ticks, by which the kernel counts it; or after so many ticks
 * (25 to 250 ms), because faults may have become rare.
 */
#define WINDOW_NS 10000000ull
#define PAUSE_TICKS 25

/* The budget of at most so much CPU time is saved for later, or owed. */
#define SAVED_NS SECOND

/* What is saved or owed is spent or paid back over 8 windows. (A shift: BPF has signed division since 6.6 only.) */
#define BALANCE_SHIFT 3

/* Maximum duration of a walk: what takes longer was interrupted. */
#define MAX_WALK_NS 20000u

/* A processor's figures are added to those of all after so many walks. */
#define WALKS_AT_ONCE 64

#define MAX_INTERVAL_BITS 16
#define MAX_INTERVAL (1u << MAX_INTERVAL_BITS)

/* The current window, of all processors. */
struct {
	__u64 ran; /* ns of CPU time */
	__u64 faults;
	__u64 walks;
	__u64 spent; /* ns of walks */
	__u32 begun; /* in ticks */
} window_sum;

/* Unspent budget: ns of walks; negative if too much was spent. */
__s64 walk_credit;

/* Times the walk that follows; it stands for `weight` walks. */
static __always_inline void start_timer(struct cpu_state *c, __u32 weight)
{
	c->timer_weight = weight;
	c->timer = bpf_ktime_get_ns();
}

/* The walk begins only now. */
static __always_inline void restart_timer(struct cpu_state *c)
{
	if (c->timer)
		c->timer = bpf_ktime_get_ns();
}

/* Adds the walk that just ended, and the thread's CPU time since the last one. */
static __always_inline void charge_walk(struct cpu_state *c, struct task_state *st)
{
	__u64 ran = bpf_get_current_task_btf()->se.sum_exec_runtime, more = ran - st->ran, took;

	st->ran = ran;
	/* A thread that has run long before it is seen would bring more than can be saved. */
	c->ran += more < SAVED_NS ? more : SAVED_NS;
	c->walked_at = bpf_jiffies64();
	if (!c->timer)
		return;
	took = bpf_ktime_get_ns() - c->timer;
	c->timer = 0;
	c->spent += (took < MAX_WALK_NS ? took : MAX_WALK_NS) * c->timer_weight;
}

static __always_inline __u64 drain_sum(__u64 *sum)
{
	__u64 had = *sum;

	__sync_fetch_and_sub(sum, had);
	return had;
}

/* The interval at which the walks cost `afford` ns, if `walks` of them cost `spent`. */
static __always_inline __u32 affordable_interval(__s64 afford, __u64 faults, __u64 walks, __u64 spent)
{
	__u64 interval = MAX_INTERVAL;

	if (!walks || !spent)
		return 1;
	/* The same as faults * (spent / walks) / afford, without the rounding of small costs. */
	if (afford > 0)
		interval = (faults * spent / walks + afford - 1) / afford;
	/* At least a few faults of each window are walked. */
	if (interval > faults / 4)
		interval = faults / 4;
	if (interval > MAX_INTERVAL)
		interval = MAX_INTERVAL;
	/* Records keep five bits of it (share_code() in sampling.bpf.h): rounded up. */
#pragma unroll
	for (__u32 bits = MAX_INTERVAL_BITS - 4; bits; bits--) {
		if (interval >> (bits + 4))
			return (interval + (1u << bits) - 1) >> bits << bits;
	}
	return interval ? interval : 1;
}

/* Adds a processor's figures to those of all. Returns the new interval, or 0 if it stays. */
static __always_inline __u32 settle(struct cpu_state *c)
{
	__s64 share, credit, max = SAVED_NS / MILLION * walk_budget;
	__u64 ran, faults, walks, spent;

	__sync_fetch_and_add(&window_sum.faults, c->faults - c->settled_faults);
	__sync_fetch_and_add(&window_sum.walks, c->walks);
	__sync_fetch_and_add(&window_sum.spent, c->spent);
	if (__sync_fetch_and_add(&window_sum.ran, c->ran) + c->ran < WINDOW_NS &&
	    c->walked_at - window_sum.begun < PAUSE_TICKS)
		return 0;
	window_sum.begun = c->walked_at;
	/* (If two processors are here at once, the second one finds little, and the next window makes up for it.) */
	ran = drain_sum(&window_sum.ran);
	faults = drain_sum(&window_sum.faults);
	walks = drain_sum(&window_sum.walks);
	spent = drain_sum(&window_sum.spent);
	share = ran * walk_budget / MILLION;
	credit = walk_credit + share - (__s64)spent;
	if (credit > max)
		credit = max;
	if (credit < -max)
		credit = -max;
	walk_credit = credit;
	return affordable_interval(share + (credit >> BALANCE_SHIFT), faults, walks, spent);
}

#endif
