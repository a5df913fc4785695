/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Walks of the current stack for programs that do not contain the walk: a tail call of walk_pending() in memprof.bpf.c.
 */
#ifndef MEMPROF_PENDING_H
#define MEMPROF_PENDING_H

#include "base.bpf.h"
#include "counters.bpf.h"

/*
 * The stack walk is long: its verification takes more than ten milliseconds in each program that contains it. So all
 * but the most frequent events describe their work in struct pending and tail-call walk_pending(), which contains the
 * walk.
 */
int walk_pending(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} walker SEC(".maps") = {
	.values = { (void *)&walk_pending },
};

static __always_inline void tail_walk_pending(void *ctx)
{
	bpf_tail_call(ctx, &walker, 0);
	/* A tail call returns only if it fails. */
	count_loss(LOSS_STACK_TABLE);
}

#endif
