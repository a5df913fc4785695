/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sending a new stack to user space: its frames, each as a place in a file where that is known.
 */
#ifndef MEMPROF_SEND_H
#define MEMPROF_SEND_H

#include "base.bpf.h"
#include "events.bpf.h"
#include "rules.bpf.h"
#include "settings.bpf.h"
#include "thread.bpf.h"

/* Whether a part of a stack ends before frame `n`. */
static __always_inline int is_part(__u64 n)
{
	return (n & (MAX_FRAMES - 1)) == 0;
}

struct fill_ctx {
	struct task_state *st;
	__u32 from;
	__u32 nr;
};

/* (More steps need more BPF stack, of which eight nested calls leave none: 512 bytes on 6.1.) */
#define FILL_STEPS 2

static long fill_steps(__u64 i, struct fill_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < FILL_STEPS; k++) {
		__u64 to = i * FILL_STEPS + k, ip = st->frames[INDEX(c->from - to, MAX_FRAMES)].ip;

		if (to >= c->nr)
			return 1;
		if (unwind_mode >= UNWIND_TABLES)
			find_code(st, ip);
		st->event.frames[INDEX(to, MAX_FRAMES)] = place_in_file(st, ip);
	}
	return 0;
}

/*
 * Sends `nr` frames of the stack whose id is `sending`, from frame `before` on; unless `last`, more parts follow.
 * Returns 0, or -1 and sets `sending` to 0. (Global: verified once, for all callers.)
 */
__noinline int send_frames(struct task_state *st, __u32 before, __u32 nr, __u32 last)
{
	struct fill_ctx c = { .st = st, .nr = nr };
	struct stack_event *s;
	__u32 size;
	int failed;

	if (!st || nr > MAX_FRAMES)
		return -1;
	c.from = st->t.innermost;
	bpf_loop((nr + FILL_STEPS - 1) / FILL_STEPS, fill_steps, &c, 0);
	/* The record overwrites the window. */
	st->t.window_words = 0;
	s = &st->event;
	s->kind = EVENT_STACK;
	s->mm_id = st->mm_id;
	s->stack_id = st->t.sending;
	s->pid = st->pid;
	s->nr = nr;
	s->outcome = st->t.outcome;
	s->before = before;
	s->last = last;
	size = offsetof(struct stack_event, frames) + nr * 8;
	/* Code that user space does not know yet: it has to look at once. */
	failed = last && s->outcome == OUTCOME_NO_MAPPING ? emit_now(s, size) : emit(s, size);
	if (failed)
		st->t.sending = 0;
	return failed ? -1 : 0;
}

/* Sends the frames before frame `n` during a walk, to make room for more. */
static __always_inline int send_part(struct task_state *st, __u32 n)
{
	st->t.innermost = MAX_FRAMES - 1;
	return send_frames(st, n - MAX_FRAMES, MAX_FRAMES, 0);
}

#endif
