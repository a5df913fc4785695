/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The frames of a walk by tables: their state, their offsets on the stack, and the words of the stack that the walk
 * reads.
 */
#ifndef MEMPROF_FRAMES_H
#define MEMPROF_FRAMES_H

#include "base.bpf.h"
#include "thread.bpf.h"
#include "window.bpf.h"

/* Flags of a frame. The bits in RULE_NEEDS are the registers of the frame that are known. */
#define FRAME_CALL 0x0100u /* the instruction pointer is a return address: the call is before it */
#define FRAME_ASSISTED 0x0200u /* an earlier step used a frame pointer */
#define FRAME_FP_SAVED 0x0400u /* `fp` is the stack address where the register is saved */
#define FRAME_USES_FP 0x0800u /* the rest of the walk needs the frame pointer register */
#define FRAME_USES_OTHER 0x1000u /* the rest of the walk needs another register (rbx, the link register) */
#define FRAME_SETS_FP 0x2000u /* the caller's frame pointer register does not depend on this frame's */
#define FRAME_SP_LOST 0x4000u /* arm64 only: the real stack pointer is at or above `sp` */
#define FRAME_UNCALLED 0x8000u /* no call pushed the return address: it is itself the address of the frame's code */
/* The state on which the rest of the walk depends, besides `ip`, `sp` and the stack. */
#define FRAME_STATE (RULE_NEEDS | FRAME_CALL | FRAME_ASSISTED | FRAME_SP_LOST)
/* Facts about the frame that the step to the caller adds. */
#define FRAME_STEP (FRAME_USES_FP | FRAME_USES_OTHER | FRAME_SETS_FP)

/* More words than a cached walk can have. */
#define NOTED_TOO_MANY 0x4000

/*
 * The stack offset of an address: its distance from `base` in words, valid up to 16 GiB on either side of `base`. A
 * frame farther away has OFFSET_TOO_FAR.
 */
static __always_inline __u32 stack_offset(struct task_state *st, __u64 addr)
{
	return (addr - st->base) >> 3;
}

static __always_inline __u64 stack_address(struct task_state *st, __u32 offset)
{
	return st->base + 8 * (__s64)(__s32)offset;
}

/* Below all other offsets. */
#define OFFSET_TOO_FAR 0x80000000u

static __always_inline int has_stack_offset(struct task_state *st, __u64 addr)
{
	return stack_address(st, stack_offset(st, addr)) == addr;
}

/*
 * Moves `base` when a walk reaches a stack that is too far away. Offsets are then valid on the new stack, where an
 * interpreter's frames are found by them. The frames so far are then far below, and no walk is cached.
 */
static __always_inline void rebase_offsets(struct task_state *st, __u64 addr)
{
	st->base = addr - (8ull << 30);
	st->cached_nr = st->t.left = 0;
	st->t.noted = NOTED_TOO_MANY;
}

/* Reads the word at `addr` and many words above it into the window, but no word above those of the cached walk. */
static __always_inline int move_window(struct task_state *st, __u64 addr)
{
	__u32 words = WINDOW_WORDS;
	__u64 last;

	if (st->cached_nr) {
		last = stack_address(st, st->noted_at[0]);
		if (last >= addr && (last - addr) >> 3 < WINDOW_WORDS - 1 - WINDOW_SLACK)
			words = ((last - addr) >> 3) + 1 + WINDOW_SLACK;
	}
	return read_window(st, addr, WINDOW_SLACK, words);
}

/*
 * Reads one word of the stack through the window: one long read serves many frames. Notes the word and its offset:
 * while all noted words are unchanged, the stack is unchanged. Returns 0, or -1 if the word cannot be read.
 */
static __always_inline int stack_word_here(struct task_state *st, __u64 addr, __u64 *word)
{
	__u32 nr;
	__u64 at;

	if (addr & 7)
		return -1;
	at = (addr - st->t.window_base) >> 3;
	if (addr < st->t.window_base || at >= st->t.window_words) {
		if (move_window(st, addr))
			return -1;
		at = (addr - st->t.window_base) >> 3;
	}
	*word = st->window[INDEX(at, WINDOW_WORDS)];
	nr = CACHED_WORDS - 1 - st->t.noted;
	if (nr < CACHED_WORDS && has_stack_offset(st, addr)) {
		/* 6.1's verifier has forgotten the bound. */
		__u32 to = INDEX(nr, CACHED_WORDS);

		st->noted_at[to] = stack_offset(st, addr);
		st->noted[to] = *word;
		st->t.noted++;
		/* This overwrites a word of the cached walk, which can then not be compared any more. */
		if (st->t.same > nr)
			st->t.same = nr;
	} else {
		st->t.noted = NOTED_TOO_MANY;
	}
	return 0;
}

/* stack_word_here() as a call. Global: verified once. */
__noinline int stack_word(struct task_state *st, __u64 addr, __u64 *word)
{
	return st && word ? stack_word_here(st, addr, word) : -1;
}

/*
 * The frame's frame pointer register, read from the stack if it is saved there. Returns 0, or -1 if it cannot be read.
 */
static __always_inline int frame_pointer(struct task_state *st, __u64 *fp)
{
	st->t.flags |= FRAME_USES_FP;
	*fp = st->t.fp;
	return st->t.flags & FRAME_FP_SAVED ? stack_word(st, *fp, fp) : 0;
}

/* Notes that the caller's frame pointer register is saved at `addr`. It is read only if a frame needs it. */
static __always_inline void fp_saved_at(struct task_state *st, __u64 addr)
{
	st->t.fp = addr;
	st->t.flags |= FRAME_FP_SAVED | FRAME_SETS_FP | RULE_NEEDS_FP;
}

#endif
