/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Walks of the current stack for programs that do not contain the walk: a tail call of the program in `walker`.
 */
#ifndef MEMPROF_PENDING_H
#define MEMPROF_PENDING_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"

/*
 * The stack walk is long: its verification takes more than ten milliseconds in each program that contains it. So all
 * but the most frequent events describe their work in struct pending and tail-call a program that contains the walk.
 * User space writes that program into this map: fault_user() if it is loaded, else walk_pending().
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} walker SEC(".maps");

static __always_inline void tail_walk_pending(void *ctx)
{
	bpf_tail_call(ctx, &walker, 0);
	/* A tail call returns only if it fails. */
	count_loss(LOSS_STACK_TABLE);
}

struct no_programs after_stack SEC(".maps");

/* Does the work that the caller of tail_walk_pending() has left; see memprof.bpf.c. */
static void do_pending(void);

#endif
