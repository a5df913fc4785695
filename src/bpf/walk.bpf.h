/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The whole walk by tables, and its cache. A thread stores its last walk: the frames, and the words of stack read for
 * them. If the next walk reaches one of these frames in the same state, and the words from there on are unchanged, the
 * rest of the stack is known.
 */
#ifndef MEMPROF_WALK_H
#define MEMPROF_WALK_H

#include "base.bpf.h"
#include "code.bpf.h"
#include "frames.bpf.h"
#include "send.bpf.h"
#include "settings.bpf.h"
#include "step.bpf.h"
#include "thread.bpf.h"

struct same_ctx {
	struct task_state *st;
	__u32 first; /* stack offset of the window's first word */
	__u32 words; /* in the window */
	__u32 left; /* words to compare */
	__u32 pad;
};

/* Reads the word at a stack offset, and many words above it, into the window. Returns 0, or -1 if it cannot be read. */
static __noinline int same_window(struct same_ctx *c, __u32 offset)
{
	struct task_state *st = c->st;

	if (move_window(st, stack_address(st, offset)))
		return -1;
	c->first = stack_offset(st, st->t.window_base);
	c->words = st->t.window_words;
	return 0;
}

/* Words per block. */
#define BLOCK_WORDS 8

/*
 * Compares a block of words, up to the first one that differs or is outside the window. Returns whether all are the
 * same. The words are at constant offsets from one pointer: this loop is the cost of a fault in a loop.
 */
static __always_inline int same_block(struct same_ctx *c)
{
	struct task_state *st = c->st;
	__u32 left = c->left, first = c->first, words = c->words, from;
	__u64 *noted;
	__u32 *at;
	int k;

	from = INDEX(left - BLOCK_WORDS, CACHED_WORDS);
	at = &st->noted_at[from];
	noted = &st->noted[from];
#pragma unroll
	for (k = BLOCK_WORDS - 1; k >= 0; k--) {
		__u32 offset = at[k] - first;

		if (offset >= words || st->window[INDEX(offset, WINDOW_WORDS)] != noted[k])
			break;
		left--;
	}
	c->left = left;
	return k < 0;
}

static long same_steps(__u64 i, struct same_ctx *c)
{
	struct task_state *st = c->st;
	__u32 last;

	if (c->left >= BLOCK_WORDS && same_block(c))
		return 0;
	last = c->left - 1;
	if (last >= CACHED_WORDS)
		return 1;
	if (st->noted_at[last] - c->first >= c->words && same_window(c, st->noted_at[last]))
		return 1;
	if (st->window[INDEX(st->noted_at[last] - c->first, WINDOW_WORDS)] != st->noted[last])
		return 1;
	c->left = last;
	return 0;
}

/* Whether the stack still has the `n` outermost words of the cached walk. */
static __always_inline int same_words(struct task_state *st, __u32 n)
{
	struct same_ctx c = { .st = st, .left = n };

	c.first = stack_offset(st, st->t.window_base);
	c.words = st->t.window_words;
	bpf_loop(CACHED_WORDS + 1, same_steps, &c, 0);
	/* A word differs: the walk cannot match the frames for which the word was read any more. */
	st->t.same = c.left ? c.left - 1 : st->t.same;
	return !c.left;
}

/* Maximum number of cached frames passed over per call. */
#define PASS_STEPS 16

/* Passes over at most `steps` cached frames that the walk can no longer match. Returns the number of frames left. */
static __always_inline __u32 pass_over(struct task_state *st, int steps)
{
	__s32 sp = stack_offset(st, st->t.sp);
	__u32 left = st->t.left;

	for (int k = 0; k < steps; k++) {
		struct frame *f = &st->frames[INDEX(left - 1, MAX_FRAMES)];

		if (!left || ((__s32)f->sp >= sp && f->words <= st->t.same))
			break;
		left--;
	}
	st->t.left = left;
	return left;
}

__noinline __u32 pass_over_many(struct task_state *st)
{
	return st ? pass_over(st, PASS_STEPS) : 0;
}

static __always_inline __u32 frames_left(struct task_state *st)
{
	__u32 left = st->t.left;

	return pass_over(st, 2) + 1 < left ? pass_over_many(st) : st->t.left;
}

/* Whether the frame pointer register is unchanged, or saved at the same stack offset. */
static __always_inline int same_fp(struct task_state *st, struct frame *f)
{
	__u32 saved = st->t.flags & FRAME_FP_SAVED;

	if ((f->flags & FRAME_FP_SAVED) != saved)
		return 0;
	return saved ? has_stack_offset(st, st->t.fp) && f->fp == stack_offset(st, st->t.fp) : st->t.fp == st->cached_fp;
}

/*
 * Whether this frame, frame `i`, matches a frame of the cached walk: the cached walk reached it in the same state, and
 * all words that it read from there on are unchanged. Then the rest of the cached walk applies.
 */
static __always_inline int matches_cached(struct task_state *st, __u64 i)
{
	__u32 left = frames_left(st), flags = st->t.flags;
	struct frame *f;

	if (!left || !has_stack_offset(st, st->t.sp))
		return 0;
	f = &st->frames[INDEX(left - 1, MAX_FRAMES)];
	if (f->sp != stack_offset(st, st->t.sp) || f->ip != st->t.ip - (flags & FRAME_CALL ? 1 : 0))
		return 0;
	if (((f->flags ^ flags) & FRAME_STATE) || (f->flags & FRAME_USES_OTHER))
		return 0;
	if ((f->flags & FRAME_USES_FP) && !same_fp(st, f))
		return 0;
	/* Where the depth limit cuts a walk depends on the start of the walk. */
	if (st->cached_outcome == OUTCOME_DEPTH_LIMIT && (i || left != st->cached_nr))
		return 0;
	if (!same_words(st, f->words))
		return 0;
	st->t.shared = left;
	st->t.outcome = st->cached_outcome;
	return 1;
}

/*
 * Adds an encoded frame to a hash of the stack. A location in a file is the same in all processes. An address belongs
 * to one address space, and to the current code at this address.
 */
static __always_inline void hash_frame(struct task_state *st, struct stack_hash *h, __u64 frame)
{
	if (!(frame & FRAME_IN_FILE))
		frame ^= st->mm_id * 0x9e3779b97f4a7c15ull + code_generation(st->mm_id, frame);
	hash_word(h, frame);
}

struct walk_ctx {
	struct task_state *st;
};

/* Notes one frame and finds its caller. */
static long walk_frame(__u64 i, struct walk_ctx *c)
{
	struct task_state *st = c->st;
	__u32 at = INDEX(MAX_FRAMES - 1 - i, MAX_FRAMES);
	struct frame *f = &st->frames[at];
	long end;

	if (i && matches_cached(st, i))
		return 1;
	/* Deeper than MAX_FRAMES: this frame overwrites an older frame. */
	if (i >= MAX_FRAMES) {
		if (!st->t.sending)
			hash_frame(st, &st->t.hash, f->key);
		else if (is_part(i) && send_part(st, i))
			return 1;
	}
	/* This overwrites a frame of the cached walk, which the walk then cannot match any more. */
	if (st->t.left > at)
		st->t.left = at;
	f->ip = st->t.ip - (st->t.flags & FRAME_CALL ? 1 : 0);
	f->sp = has_stack_offset(st, st->t.sp) ? stack_offset(st, st->t.sp) : OFFSET_TOO_FAR;
	f->fp = stack_offset(st, st->t.fp);
	f->words = st->t.noted;
	f->flags = st->t.flags;
	if (f->sp == OFFSET_TOO_FAR || ((f->flags & FRAME_FP_SAVED) && !has_stack_offset(st, st->t.fp)))
		st->t.noted = NOTED_TOO_MANY;
	st->t.nr = i + 1;
	st->t.flags &= FRAME_STATE | FRAME_FP_SAVED;
	if (i + 1 == max_frames) {
		search_rule(st, f->ip); /* for its location in the file */
		end = table_ends(st, OUTCOME_DEPTH_LIMIT);
	} else {
		end = table_step(st);
		if (st->t.flags & FRAME_UNCALLED) {
			st->t.flags &= ~FRAME_UNCALLED;
			f->ip++;
		}
	}
	f->key = encode_frame(st, f->ip);
	f->flags |= st->t.flags & FRAME_STEP;
	return end;
}

struct cache_frames_ctx {
	struct task_state *st;
	struct stack_hash hash;
	__u32 from; /* index of the next frame */
	__u32 to; /* new index of that frame */
	__u32 words; /* number of words read, including the cached words */
	__u32 uses; /* registers of the current frame that this and the outer frames need */
};

#define CACHE_STEPS 4

/* Moves the frames of the walk, from the outermost one on, after the frames shared with the cached walk. */
static long cache_frames(__u64 i, struct cache_frames_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < CACHE_STEPS; k++) {
		__u32 from = c->from;
		struct frame f, *to;

		if (from >= MAX_FRAMES)
			return 1;
		f = st->frames[from];
		hash_frame(st, &c->hash, f.key);
		if (f.flags & FRAME_SETS_FP)
			c->uses &= ~FRAME_USES_FP;
		c->uses |= f.flags & (FRAME_USES_FP | FRAME_USES_OTHER);
		f.key = c->hash.key;
		f.check = c->hash.check;
		f.words = c->words - f.words;
		f.flags = (f.flags & (FRAME_STATE | FRAME_FP_SAVED)) | c->uses;
		to = &st->frames[INDEX(c->to, MAX_FRAMES)];
		*to = f;
		c->from = from + 1;
		c->to++;
	}
	return 0;
}

struct cache_words_ctx {
	struct task_state *st;
	__u32 from;
	__u32 to;
};

/* Moves a block of words, if so many are left, else one. */
static long cache_words(__u64 i, struct cache_words_ctx *c)
{
	struct task_state *st = c->st;
	__u32 last = c->from > c->to ? c->from : c->to, n = last + BLOCK_WORDS <= CACHED_WORDS ? BLOCK_WORDS : 1;
	__u32 from = INDEX(c->from, CACHED_WORDS), to = INDEX(c->to, CACHED_WORDS);

	if (c->from >= CACHED_WORDS)
		return 1;
	st->noted[to] = st->noted[from];
	st->noted_at[to] = st->noted_at[from];
	if (n == BLOCK_WORDS) {
		__u64 *noted = &st->noted[from], *noted_to = &st->noted[to];
		__u32 *at = &st->noted_at[from], *at_to = &st->noted_at[to];

#pragma unroll
		for (int k = 1; k < BLOCK_WORDS; k++) {
			noted_to[k] = noted[k];
			at_to[k] = at[k];
		}
	}
	c->from += n;
	c->to += n;
	return 0;
}

/*
 * Makes the finished walk the cached one. The frames and words that both share stay; the others move up to them. Not
 * inline: the walk, which the caller calls first, leaves too little of the BPF stack for these variables. Global: verified
 * once.
 */
__noinline int cache_walk(struct task_state *st)
{
	struct cache_frames_ctx c = { .st = st };
	struct cache_words_ctx w = { .st = st };
	__u32 shared, nr, noted, words = 0;
	struct frame *f;

	if (!st)
		return 0;
	shared = st->t.shared;
	nr = st->t.nr;
	noted = st->t.noted;
	c.from = MAX_FRAMES - nr;
	c.to = shared;
	w.from = CACHED_WORDS - noted;
	c.hash = st->t.hash;
	if (shared) {
		f = &st->frames[INDEX(shared - 1, MAX_FRAMES)];
		c.hash.key = f->key;
		c.hash.check = f->check;
		c.uses = f->flags & (FRAME_USES_FP | FRAME_USES_OTHER);
		words = f->words;
	} else {
		hash_word(&c.hash, st->t.outcome);
	}
	c.words = words + noted;
	if (nr)
		bpf_loop(MAX_FRAMES / CACHE_STEPS + 1, cache_frames, &c, 0);
	w.to = words;
	if (noted && noted <= CACHED_WORDS)
		bpf_loop(CACHED_WORDS / BLOCK_WORDS + BLOCK_WORDS, cache_words, &w, 0);
	st->cached_nr = shared + nr;
	st->cached_words = c.words;
	st->cached_outcome = st->t.outcome;
	st->t.hash = c.hash;
	st->t.nr = st->cached_nr;
	st->t.innermost = st->cached_nr - 1;
	return 0;
}

static long hash_frames(__u64 i, struct walk_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < CACHE_STEPS; k++)
		hash_frame(st, &st->t.hash, st->frames[INDEX(i * CACHE_STEPS + k, MAX_FRAMES)].key);
	return 0;
}

/*
 * Finishes a walk that is too deep for the cache: hashes the frames that are still stored, and the number of all
 * frames.
 */
static __always_inline void finish_deep_walk(struct task_state *st)
{
	struct walk_ctx c = { .st = st };

	bpf_loop(MAX_FRAMES / CACHE_STEPS, hash_frames, &c, 0);
	hash_word(&st->t.hash, (__u64)st->t.nr << 32 | st->t.outcome);
	st->cached_nr = 0;
	st->t.innermost = MAX_FRAMES - 1;
}

/* Whether a later walk can use the cached one. */
static __always_inline int is_sound(struct task_state *st)
{
	/* Unreadable memory may be readable later, for example a page that was swapped out, and a mapping may become known. */
	return st->cached_words <= CACHED_WORDS && st->cached_outcome != OUTCOME_UNREADABLE &&
	       st->cached_outcome != OUTCOME_NO_MAPPING;
}

/* Walks the stack by tables, from the registers on. */
static __always_inline void follow_tables(struct task_state *st)
{
	struct walk_ctx c = { .st = st };
	__u32 generation = *(volatile __u32 *)&unwind_generation;

	/* The mapping of the last frame is kept, too. */
	if (st->cached_generation != generation || st->cached_mm_id != st->mm_id) {
		st->cached_nr = 0;
		st->t.start = st->t.end = 0;
		st->t.table = 0;
	}
	if (!is_sound(st))
		st->cached_nr = 0;
	/* Another stack, for example a fiber's: its offsets would represent other addresses. */
	if (!has_stack_offset(st, st->t.sp & ~7ull))
		st->cached_nr = 0;
	if (!st->cached_nr)
		st->base = st->t.sp & ~7ull;
	st->cached_mm_id = st->mm_id;
	st->cached_generation = generation;
	st->t.noted = 0;
	st->t.left = st->cached_nr;
	st->t.same = st->cached_words;
	st->t.shared = 0;
	/* Where find_rule() finds the rule at once; search_rule() sets it otherwise. */
	st->t.outcome = OUTCOME_NO_TABLE;
	/* A loop that touches a buffer faults in the same state again: no loop over frames is needed. */
	if (!matches_cached(st, 0))
		bpf_loop(max_frames, walk_frame, &c, 0);
}

/*
 * Finishes a walk by tables: computes its hash. `interpreted` is the hash of its interpreted frames. Returns the id if
 * the stack is the cached one and its id is known, else 0.
 */
static __always_inline __u32 finish_walk(struct task_state *st, __u64 fp, __u32 own, __u64 interpreted)
{
	int same = !st->t.nr && st->t.shared == st->cached_nr && st->cached_interpreted == interpreted;

	st->cached_interpreted = interpreted;
	if (same && st->cached_ids[own & 1])
		return st->cached_ids[own & 1];
	if (!same)
		st->cached_ids[0] = st->cached_ids[1] = 0;
	st->cached_fp = fp;
	if (st->t.nr > MAX_FRAMES)
		finish_deep_walk(st);
	else
		cache_walk(st);
	return 0;
}

#endif
