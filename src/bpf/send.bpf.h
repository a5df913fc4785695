/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sends a new stack to user space: its frames, as locations in files where the file is known.
 */
#ifndef MEMPROF_SEND_H
#define MEMPROF_SEND_H

#include "base.bpf.h"
#include "events.bpf.h"
#include "interpreter.bpf.h"
#include "unwind_tables.bpf.h"
#include "settings.bpf.h"
#include "thread.bpf.h"

/* Maximum number of records for MAX_FRAMES native frames and MAX_INTERPRETED interpreted frames. */
#define MAX_RECORDS 3

/* Whether frame `n` begins a new part of a stack. */
static __always_inline int is_part(__u64 n)
{
	return (n & (MAX_FRAMES - 1)) == 0;
}

/*
 * More steps would need more BPF stack. Eight nested calls use up to 480 of 512 bytes on 6.1, which rounds each call up
 * to 32 bytes.
 */
#define FILL_STEPS 2

static long fill_steps(__u64 i, struct fill_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < FILL_STEPS; k++) {
		__u64 to = i * FILL_STEPS + k, ip = st->frames[INDEX(st->t.innermost - to, MAX_FRAMES)].ip;

		if (to >= st->t.to_send)
			return 1;
		if (unwind_mode >= UNWIND_TABLES)
			find_code(st, ip);
		c->encoded[INDEX(to, MAX_FRAMES)] = encode_frame(st, ip);
	}
	return 0;
}

/*
 * Like send_frames(), with the interpreter's frames among the native frames; in several records if they are many.
 * Inlined, because calls nest at most eight deep.
 */
static __always_inline int send_merged(struct fill_ctx *c, __u32 last)
{
	struct task_state *st = c->st;
	struct interpreter_stack *is = c->is;
	struct stack_event *s;
	__u64 size;

	st->t.window_words = 0;
	is->native = is->marked = 0;
	is->above = last ? ~0ull : st->t.sp;
	is->rest = last && (is->by_order || st->t.outcome != OUTCOME_COMPLETE);
	s = &st->event;
	/* Not unrolled: that would need more BPF stack. */
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAX_RECORDS; i++) {
		is->out = 0;
		bpf_loop(MAX_SENT_FRAMES + 1 + MAX_EVALUATORS, merge_step, c, 0);
		s->kind = EVENT_STACK;
		s->mm_id = st->mm_id;
		s->stack_id = st->t.sending;
		s->pid = st->pid;
		s->nr = is->out;
		s->outcome = st->t.outcome;
		s->before = is->sent;
		s->last = last && is->native >= st->t.to_send && !has_rest(is);
		s->unmerged = s->by_order = 0;
		if (s->last)
			end_merged(is, s);
		is->sent += is->out;
		/* The mask gives 6.1's verifier the bound. */
		size = INDEX(offsetof(struct stack_event, frames) + is->out * 8, 2048);
		if (emit(s, size)) {
			st->t.sending = 0;
			return -1;
		}
		if (is->native >= st->t.to_send && !has_rest(is))
			return 0;
	}
	return -1;
}

/*
 * Sends `nr` frames of the stack with the id `sending`, from frame `before` on. More parts follow unless `last`.
 * Returns 0, or -1 and sets `sending` to 0. Global: verified once, for all callers.
 */
__noinline int send_frames(struct task_state *st, __u32 before, __u32 nr, __u32 last)
{
	struct interpreter_stack *is = NULL;
	struct fill_ctx c = { .st = st };
	struct stack_event *s;
	__u32 size;
	int failed;

	if (!st || nr > MAX_FRAMES)
		return -1;
	st->t.to_send = nr;
	if (st->interpreted)
		is = bpf_task_storage_get(&interpreter_stacks, bpf_get_current_task_btf(), NULL, 0);
	c.encoded = is ? is->encoded : st->event.frames;
	bpf_loop((nr + FILL_STEPS - 1) / FILL_STEPS, fill_steps, &c, 0);
	if (is) {
		c.is = is;
		return send_merged(&c, last);
	}
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
	s->unmerged = s->by_order = 0;
	/* The mask gives 6.1's verifier the bound. */
	size = INDEX(offsetof(struct stack_event, frames) + nr * 8, 2048);
	/* User space does not know this code yet: it must examine the code at once. */
	failed = last && s->outcome == OUTCOME_NO_MAPPING ? emit_now(s, size) : emit(s, size);
	if (failed)
		st->t.sending = 0;
	return failed ? -1 : 0;
}

/* Sends the frames before frame `n` during a walk, so that the walk can reuse their memory. */
static __always_inline int send_part(struct task_state *st, __u32 n)
{
	st->t.innermost = MAX_FRAMES - 1;
	return send_frames(st, n - MAX_FRAMES, MAX_FRAMES, 0);
}

#endif
