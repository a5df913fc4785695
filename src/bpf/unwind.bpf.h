/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The user stack of the current task: its registers, its walk, and its id.
 */
#ifndef MEMPROF_UNWIND_H
#define MEMPROF_UNWIND_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "ends.bpf.h"
#include "follow.bpf.h"
#include "functions.bpf.h"
#include "interpreter.bpf.h"
#include "registers.bpf.h"
#include "send.bpf.h"
#include "stacks.bpf.h"
#include "thread.bpf.h"
#include "walk.bpf.h"
#include "window.bpf.h"

/*
 * Reads the two words at `addr` into the window. Returns the index of the first word, or WINDOW_WORDS if they cannot be
 * read. One long read serves many frames: a read costs several times as much as the rest of the work on a frame.
 */
static __always_inline __u32 window_at(struct task_state *st, __u64 addr)
{
	__u64 at = (addr - st->t.window_base) >> 3;

	if (addr >= st->t.window_base && at + 1 < st->t.window_words)
		return at;
	if (read_window(st, addr, 0, WINDOW_WORDS) || st->t.window_words < 2)
		return WINDOW_WORDS;
	return 0;
}

static __always_inline long walk_ends(struct task_state *st, __u32 outcome)
{
	st->t.outcome = outcome;
	return 1;
}

/* Notes a frame. Returns 0, or -1 if the earlier frames could not be sent. */
static __always_inline int note_frame(struct task_state *st, __u32 n, __u64 ip)
{
	if (n && is_part(n) && st->t.sending && send_part(st, n))
		return -1;
	st->frames[INDEX(MAX_FRAMES - 1 - n, MAX_FRAMES)].ip = ip;
	st->t.nr = n + 1;
	hash_word(&st->t.hash, ip ^ code_generation(st->mm_id, ip));
	return 0;
}

/*
 * Ends the walk at the end of the chain, which _start or clone has set. A frame without a call, such as the first one,
 * may have any value in the register.
 */
static __always_inline long chain_ends(struct task_state *st)
{
	return walk_ends(st, was_called(st) ? OUTCOME_COMPLETE : OUTCOME_NO_FRAME_POINTER);
}

/* One step: from a frame pointer to the caller's frame pointer and return address. */
static __always_inline long walk_step(struct task_state *st, __u32 n)
{
	__u64 fp = st->t.fp, ret;
	__u32 at;

	if (n >= max_frames)
		return walk_ends(st, OUTCOME_DEPTH_LIMIT);
	if (fp == 0)
		return chain_ends(st);
	/* The stack pointer is the lower bound of the frame pointer, unless the code switched stacks. */
	if ((fp < st->t.sp && st->t.sp - fp < OTHER_STACK_BYTES) || (fp & 7))
		return walk_ends(st, OUTCOME_NO_FRAME_POINTER);
	at = window_at(st, fp);
	if (at >= WINDOW_WORDS - 1)
		return walk_ends(st, OUTCOME_UNREADABLE);
	ret = st->window[INDEX(at + 1, WINDOW_WORDS)];
	if (ret == 0)
		return chain_ends(st);
	if (ret < 4096 || ret >> 56 || (fp < st->t.sp && follows_call(ret) != 1))
		return walk_ends(st, OUTCOME_NO_FRAME_POINTER);
	st->t.sp = fp + 16;
	st->t.fp = st->window[INDEX(at, WINDOW_WORDS)];
	st->t.ip = ret;
	st->t.flags |= FRAME_CALL;
	return note_frame(st, n, ret - 1) ? 1 : 0;
}

/* Steps per call: a call for each step would cost as much as the step. */
#define STEPS 4

static long walk_steps(__u64 i, struct walk_ctx *c)
{
	long end = 0;

#pragma unroll
	for (__u32 k = 0; k < STEPS; k++) {
		end = walk_step(c->st, 1 + i * STEPS + k);
		if (end)
			break;
	}
	return end;
}

/* Follows the chain of frame pointers, from the registers on. */
static __always_inline void follow_frame_pointers(struct task_state *st)
{
	struct walk_ctx c = { .st = st };

	note_frame(st, 0, st->t.ip - (st->t.flags & FRAME_CALL ? 1 : 0));
	/*
	 * bpf_loop() (5.17, e6f2dd0f8067): the verifier checks one iteration. An unrolled loop would cost it 100 times
	 * as much.
	 */
	bpf_loop(max_frames / STEPS + 1, walk_steps, &c, 0);
	st->t.innermost = MAX_FRAMES - 1;
}

/*
 * Walks the stack, from the registers on. If `sending` is the id of the stack, sends the frames during the walk.
 * Global: verified once, for both callers.
 */
__noinline int walk(struct task_state *st, struct user_regs *regs, __u32 sending)
{
	if (!st || !regs)
		return -1;
	st->t.ip = regs->ip;
	st->t.sp = regs->sp;
	st->t.fp = regs->bp;
	st->t.bx = regs->bx;
	st->t.lr = regs->lr;
	st->t.flags = RULE_NEEDS | (regs->in_syscall ? FRAME_CALL : 0);
	st->t.hash.key = st->t.hash.check = 0;
	/*
	 * Hashed like a frame: as a plain start value, mm_id would cancel out against the address of the first frame.
	 */
	if (unwind_mode < UNWIND_TABLES)
		hash_word(&st->t.hash, st->mm_id);
	st->t.window_words = 0;
	st->t.nr = 0;
	st->t.outcome = OUTCOME_NOT_TAKEN;
	st->t.sending = sending;
	/* Reads of the walk can fault: see fault_begins(). */
	st->walking = 1;
	if (unwind_mode == UNWIND_FP)
		follow_frame_pointers(st);
	else if (unwind_mode != UNWIND_OFF)
		follow_tables(st);
	st->walking = 0;
	return 0;
}

/*
 * Sends the stack of the last walk. A stack deeper than MAX_FRAMES is walked again, and sent in parts. Returns 0 or -1.
 */
static __always_inline int send_stack(struct task_state *st, struct user_regs *regs, __u32 id)
{
	__u32 before = 0;

	/*
	 * The pid is constant for a thread, and takes five reads of kernel memory. Not looked up in send_frames(),
	 * which may run when the BPF stack is nearly full.
	 */
	if (!st->pid)
		st->pid = view_pid(bpf_get_current_task_btf());
	st->t.sending = id;
	if (st->interpreted) {
		struct interpreter_stack *is =
			bpf_task_storage_get(&interpreter_stacks, bpf_get_current_task_btf(), NULL, 0);

		int failed;

		if (!is)
			return -1;
		/* Reads of number_functions() can fault, too. */
		st->walking = 1;
		failed = number_functions(st, is);
		st->walking = 0;
		if (failed)
			return -1;
	}
	if (st->t.nr > MAX_FRAMES) {
		walk(st, regs, id);
		st->cached_nr = 0;
		if (!st->t.sending)
			return -1;
		st->t.innermost = MAX_FRAMES - 1;
		before = (st->t.nr - 1) & ~(MAX_FRAMES - 1);
	}
	return send_frames(st, before, st->t.nr - before, 1);
}

/*
 * Interns the stack of the last walk: returns its id, and sends a new stack to user space. Returns STACK_NONE if user
 * space is freeing its slot at this moment. Global: verified once.
 */
__noinline __u32 intern_stack(struct task_state *st, struct user_regs *regs)
{
	__u32 check, slot, bucket, state;
	struct stack_bucket *b;
	struct stack_slot *s;
	__u64 key;

	if (!st || !regs)
		return STACK_LOST;
	check = st->t.hash.check | 1;
	key = st->t.hash.key;
	key |= !key;
	/* A loop that touches a buffer has the same stack again. */
	if (key == st->last_key && check == st->last_check)
		return st->last_id;
	slot = find_slot(key);
	bucket = slot / BUCKET_SLOTS;
	b = bpf_map_lookup_elem(&stacks, &bucket);
	if (!b) {
		count_loss(LOSS_STACK_TABLE);
		return STACK_LOST;
	}
	s = &b->slot[INDEX(slot, BUCKET_SLOTS)];
	state = use_slot(s);
	if (state == SLOT_LEAVING || s->key != key)
		return STACK_NONE;
	if (!s->check)
		s->check = check;
	if (s->check != check) {
		count_loss(LOSS_STACK_COLLISION);
		return STACK_LOST;
	}
	/* If two threads find a new stack at once, one of them sends it. */
	if (!(state & SLOT_SENT) && !(__sync_fetch_and_or(&s->state, SLOT_SENT) & SLOT_SENT) &&
	    send_stack(st, regs, STACK_FIRST + slot)) {
		__sync_fetch_and_and(&s->state, ~SLOT_SENT);
		count_loss(LOSS_RING_STACK);
		return STACK_LOST;
	}
	st->last_key = key;
	st->last_check = check;
	st->last_id = STACK_FIRST + slot;
	return st->last_id;
}

/*
 * The id of the current task's user stack, whose registers the caller has read. If a new stack cannot be sent, a loss is counted, and the next event tries
 * again. With `own`, the same stack has a different id in each address space. Global: the verifier checks the walk once
 * per program, not once per path to it. Otherwise 7.2's verifier gives up on the end of a fault.
 */
__noinline __u32 stack_id_from(struct task_state *st, struct user_regs *regs, __u32 own)
{
	__u64 interpreted = 0;
	__u32 id;

	if (!st || !regs)
		return STACK_LOST;
	/* User space may have freed the cached ids, and other stacks may have them now. */
	if (st->epoch != stack_epoch) {
		st->epoch = stack_epoch;
		st->cached_ids[0] = st->cached_ids[1] = 0;
		st->last_key = 0;
	}
	walk(st, regs, 0);
	if (unwind_mode >= UNWIND_TABLES) {
		/*
		 * Also needed for a cached walk: calls between interpreted functions may leave the C stack unchanged.
		 */
		if (interpreters) {
			st->walking = 1;
			interpreted = walk_interpreter(st);
			st->walking = 0;
		}
		st->interpreted = interpreted != 0;
		id = finish_walk(st, regs->bp, own, interpreted);
		if (id)
			return id;
		if (interpreted)
			hash_word(&st->t.hash, interpreted);
	} else {
		hash_word(&st->t.hash, st->t.outcome);
	}
	if (own)
		hash_word(&st->t.hash, st->mm_id);
	id = intern_stack(st, regs);
	if (id == STACK_NONE)
		id = intern_stack(st, regs);
	if (id == STACK_NONE) {
		count_loss(LOSS_STACK_TABLE);
		return STACK_LOST;
	}
	/* For the next walk, if it finds the same stack. */
	st->cached_ids[own & 1] = id == STACK_LOST ? 0 : id;
	return id;
}

/* stack_id_from() the current task's registers. */
static __always_inline __u32 stack_id(struct task_state *st, __u32 own)
{
	struct user_regs regs;

	read_user_regs(bpf_get_current_task_btf(), &regs);
	return stack_id_from(st, &regs, own);
}

#endif
