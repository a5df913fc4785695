/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How a program takes the current stack without containing the walk: a tail call of take_stack(), in memprof.bpf.c.
 */
#ifndef MEMPROF_TAKE_H
#define MEMPROF_TAKE_H

#include "base.bpf.h"
#include "counters.bpf.h"

/*
 * The stack walk is long, and verifying it takes the kernel more than ten milliseconds in each program that
 * has it. So what is not the most frequent event notes what it wants (struct taking) and goes over to take_stack(),
 * which has the walk.
 */
int take_stack(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} walker SEC(".maps") = {
	.values = { (void *)&take_stack },
};

static __always_inline void tail_take_stack(void *ctx)
{
	bpf_tail_call(ctx, &walker, 0);
	/* (It returns where there is no such program.) */
	count_loss(LOSS_STACK_TABLE);
}

#endif
