/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How a program takes the current stack without containing the walk: a tail call of take_stack(), in memprof.bpf.c.
 */
#ifndef MEMPROF_TAKE_H
#define MEMPROF_TAKE_H

#include "base.bpf.h"
#include "counters.bpf.h"

/*
 * The stack walk is long: verifying it takes more than ten milliseconds in each program that contains it. So all but
 * the most frequent events note what they want (struct taking) and tail-call take_stack(), which contains the walk.
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
	/* (A tail call returns only if it fails.) */
	count_loss(LOSS_STACK_TABLE);
}

#endif
