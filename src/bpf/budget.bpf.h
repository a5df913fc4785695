/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The CPU budget of stack walks (--stacks auto): walks may take a share of the CPU time of followed threads. Each walk
 * is timed by the program that does it. The interval between walks follows from the cost of the last walks, the number
 * of faults, and the CPU time of the threads. One budget serves all processes, without a loop in user space.
 */
#ifndef MEMPROF_BUDGET_H
#define MEMPROF_BUDGET_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "thread.bpf.h"

/* Share of CPU time for walks, in millionths. */
volatile __u32 walk_budget = 20000;

#define MILLION 1000000ull
#define SECOND 1000000000ull

/*
 * Recompute the interval after WINDOW_NS of CPU time, which is a few ticks: the kernel accounts CPU time by ticks.
 * Recompute it also after PAUSE_TICKS (25 to 250 ms), because faults may have become rare.
 */
#define WINDOW_NS 10000000ull
#define PAUSE_TICKS 25

/* Maximum balance: the budget of SAVED_NS of CPU time, saved or owed. */
#define SAVED_NS SECOND

/* A balance is spent or paid back over 8 windows. A shift, because BPF has signed division only since 6.6. */
#define BALANCE_SHIFT 3

/* Maximum duration of a walk. A longer walk was interrupted. */
#define MAX_WALK_NS 20000u

/* Walks after which a processor adds its figures to the sums of all processors. */
#define WALKS_AT_ONCE 64

#define MAX_INTERVAL_BITS 16
#define MAX_INTERVAL (1u << MAX_INTERVAL_BITS)

/* Sums of all processors in the current window. */
struct {
	__u64 ran; /* ns of CPU time */
	__u64 faults;
	__u64 walks;
	__u64 spent; /* ns of walks */
	__u32 begun; /* in ticks */
} window_sum;

/* Unspent budget, in ns of walks; negative if walks have taken too much. */
__s64 walk_credit;

/* Starts the timer of the next walk, which represents `weight` walks. */
static __always_inline void start_timer(struct cpu_state *c, __u32 weight)
{
	c->timer_weight = weight;
	c->timer = bpf_ktime_get_ns();
}

/* Restarts the timer: the walk begins only now. */
static __always_inline void restart_timer(struct cpu_state *c)
{
	if (c->timer)
		c->timer = bpf_ktime_get_ns();
}

/* Adds the cost of the finished walk, and the CPU time of the thread since its previous walk. */
static __always_inline void charge_walk(struct cpu_state *c, struct task_state *st)
{
	__u64 ran = bpf_get_current_task_btf()->se.sum_exec_runtime, more = ran - st->ran, took;

	st->ran = ran;
	/* A thread may have run for long before its first walk: limit its CPU time to what can be saved. */
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

/* Computes the interval at which walks cost `afford` ns, if `walks` walks have cost `spent` ns. */
static __always_inline __u32 affordable_interval(__s64 afford, __u64 faults, __u64 walks, __u64 spent)
{
	__u64 interval = MAX_INTERVAL;

	if (!walks || !spent)
		return 1;
	/* Equals faults * (spent / walks) / afford, without the rounding error of small costs. */
	if (afford > 0)
		interval = (faults * spent / walks + afford - 1) / afford;
	/* Walk at least a few faults of each window. */
	if (interval > faults / 4)
		interval = faults / 4;
	if (interval > MAX_INTERVAL)
		interval = MAX_INTERVAL;
	/* Records store five bits of the interval (share_code() in sampling.bpf.h): round up. */
#pragma unroll
	for (__u32 bits = MAX_INTERVAL_BITS - 4; bits; bits--) {
		if (interval >> (bits + 4))
			return (interval + (1u << bits) - 1) >> bits << bits;
	}
	return interval ? interval : 1;
}

/* Adds a processor's figures to the sums of all processors. Returns the new interval, or 0 if it does not change. */
static __always_inline __u32 settle(struct cpu_state *c)
{
	__s64 share, credit, max = SAVED_NS / MILLION * walk_budget;
	__u64 ran, faults, walks, spent;

	__sync_fetch_and_add(&window_sum.faults, faults_of(c) - c->settled_faults);
	__sync_fetch_and_add(&window_sum.walks, c->walks);
	__sync_fetch_and_add(&window_sum.spent, c->spent);
	if (__sync_fetch_and_add(&window_sum.ran, c->ran) + c->ran < WINDOW_NS &&
	    c->walked_at - window_sum.begun < PAUSE_TICKS)
		return 0;
	window_sum.begun = c->walked_at;
	/*
	 * If two processors reach this line at once, the second one finds little to settle, and the next window
	 * compensates.
	 */
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
