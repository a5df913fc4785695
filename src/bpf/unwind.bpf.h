/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The user stack of the current task: registers, the walk, and the id of what it found.
 */
#ifndef MEMPROF_UNWIND_H
#define MEMPROF_UNWIND_H

/*
 * Set before the programs are loaded. Not a constant: it would let the verifier cut off what a mode does
 * not need, and what is left of that 6.18 refuses to compile ("verifier bug: No program to jit").
 */
volatile __u8 unwind_mode = UNWIND_AUTO;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, __u64);
	__type(value, struct seen_stack);
} stacks SEC(".maps");

struct user_regs {
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 bx; /* x86-64 alone */
	__u64 lr; /* arm64 alone */
	__u32 in_syscall; /* ip is the address after a system call instruction */
};

static __always_inline void user_regs_of(struct task_struct *task, struct user_regs *out)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	/* Plain loads, not PT_REGS_*_CORE(): those are a call each. */
#if defined(bpf_target_x86)
	out->ip = regs->ip;
	out->sp = regs->sp;
	out->bp = regs->bp;
	out->bx = regs->bx;
	out->lr = 0;
	out->in_syscall = (long)regs->orig_ax >= 0;
#elif defined(bpf_target_arm64)
	out->ip = regs->pc;
	out->sp = regs->sp;
	out->bp = regs->regs[29];
	out->bx = 0;
	out->lr = regs->regs[30];
	out->in_syscall = regs->syscallno >= 0;
#endif
}

static __always_inline void hash_word(struct stack_hash *h, __u64 word)
{
	h->key = (h->key ^ word) * 0xff51afd7ed558ccdull;
	h->key ^= h->key >> 32;
	h->check = (h->check + (__u32)(word ^ word >> 29)) * 0x9e3779b1u;
	h->check ^= h->check >> 15;
}

/* A walk under way. */
struct walk {
	struct task_state *st;
	__u64 bp; /* the frame pointer to follow next */
	__u64 low; /* what it must not lie below */
	__u32 nr; /* frames found */
	__u32 innermost; /* which of the thread's frames is the innermost; the others are before it */
	__u32 outcome;
	__u32 pad;
	struct stack_hash hash;
};

/*
 * Brings the word at `addr` into the window, and with it up to `words` words from `slack` words below
 * on; where not all of those can be read, what its page has from there on. 0, or -1. (Global: checked
 * once.)
 */
__noinline int read_window(struct task_state *st, __u64 addr, __u32 slack, __u32 words)
{
	__u64 here = (4096 - (addr & 4095)) >> 3;

	if (!st || slack >= words || words > WINDOW_WORDS)
		return -1;
	st->t.window_base = addr - 8 * (__u64)slack;
	st->t.window_words = words;
	if (!bpf_probe_read_user(st->window, words * 8, (void *)st->t.window_base))
		return 0;
	if (here >= WINDOW_WORDS)
		here = WINDOW_WORDS - 1;
	st->t.window_base = addr;
	st->t.window_words = here;
	if (!bpf_probe_read_user(st->window, INDEX(here, WINDOW_WORDS) * 8, (void *)addr))
		return 0;
	st->t.window_words = 0;
	return -1;
}

#include "tables.bpf.h"
#include "remembered.bpf.h"

/*
 * Brings the two words at `addr` into the window and returns the index of the first, or
 * WINDOW_WORDS if they cannot be read. One long read serves many frames: each read costs as much
 * as the rest of the work on a frame several times over.
 */
static __always_inline __u32 window_at(struct walk *w, __u64 addr)
{
	struct task_state *st = w->st;
	__u64 at = (addr - st->t.window_base) >> 3;

	if (addr >= st->t.window_base && at + 1 < st->t.window_words)
		return at;
	if (read_window(st, addr, 0, WINDOW_WORDS) || st->t.window_words < 2)
		return WINDOW_WORDS;
	return 0;
}

static __always_inline long walk_ends(struct walk *w, __u32 outcome)
{
	w->outcome = outcome;
	return 1;
}

/* One step: from a frame pointer to the caller's frame pointer and the return address. */
static __always_inline long walk_step(struct walk *w, __u32 n)
{
	__u64 bp = w->bp, ret;
	__u32 at;

	/* Ended on purpose, by _start or clone. */
	if (bp == 0)
		return walk_ends(w, OUTCOME_COMPLETE);
	if (bp < w->low || (bp & 7))
		return walk_ends(w, OUTCOME_NO_FRAME_POINTER);
	at = window_at(w, bp);
	if (at >= WINDOW_WORDS - 1)
		return walk_ends(w, OUTCOME_UNREADABLE);
	ret = w->st->window[at + 1];
	if (ret == 0)
		return walk_ends(w, OUTCOME_COMPLETE);
	if (ret < 4096 || ret >> 56)
		return walk_ends(w, OUTCOME_NO_FRAME_POINTER);
	w->st->frames[INDEX(MAX_FRAMES - 1 - n, MAX_FRAMES)].ip = ret - 1;
	w->nr = n + 1;
	hash_word(&w->hash, ret - 1);
	w->low = bp + 16;
	w->bp = w->st->window[at];
	return 0;
}

/* Some steps at a time: a call for each would cost as much as the step. */
#define STEPS 4

/* In place: with a copy of `*w` 7.2's verifier finds no two states alike, and takes a minute. */
static long walk_steps(__u64 i, struct walk *w)
{
	long end = 0;

#pragma unroll
	for (__u32 k = 0; k < STEPS; k++) {
		end = walk_step(w, 1 + i * STEPS + k);
		if (end)
			break;
	}
	return end;
}

/* Follows the chain of frame pointers from the registers on. */
static __always_inline void walk_frame_pointers(struct walk *w, struct user_regs *regs)
{
	__u64 ip = regs->ip - (regs->in_syscall ? 1 : 0);

	w->st->frames[MAX_FRAMES - 1].ip = ip;
	w->nr = 1;
	w->innermost = MAX_FRAMES - 1;
	hash_word(&w->hash, ip);
	w->bp = regs->bp;
	w->low = regs->sp;
	w->st->t.window_words = 0;
	w->outcome = OUTCOME_DEPTH_LIMIT;
	/* A loop that the verifier checks once (5.17, e6f2dd0f8067); unrolled it is 100 times as much. */
	bpf_loop((MAX_FRAMES - 1) / STEPS, walk_steps, w, 0);
}

/* Walks the stack. Returns the id of a remembered one if it is the same, else 0. */
static __always_inline __u32 take_stack(struct task_struct *task, struct walk *w)
{
	struct user_regs regs;

	if (unwind_mode == UNWIND_OFF) {
		w->outcome = OUTCOME_NOT_TAKEN;
		return 0;
	}
	user_regs_of(task, &regs);
	if (unwind_mode == UNWIND_FP) {
		walk_frame_pointers(w, &regs);
		return 0;
	}
	return walk_tables(w, &regs);
}

struct fill_ctx {
	struct task_state *st;
	__u32 from;
	__u32 pad;
};

#define FILL_STEPS 8

static long fill_steps(__u64 i, struct fill_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < FILL_STEPS; k++) {
		__u64 to = i * FILL_STEPS + k;

		st->event.frames[INDEX(to, MAX_FRAMES)] = st->frames[INDEX(c->from - to, MAX_FRAMES)].ip;
	}
	return 0;
}

/* The frames into the record, innermost first. */
static __always_inline void fill_frames(struct task_state *st, struct walk *w)
{
	struct fill_ctx c = { .st = st, .from = w->innermost };

	bpf_loop((w->nr + FILL_STEPS - 1) / FILL_STEPS, fill_steps, &c, 0);
}

/* Sends a stack seen for the first time. */
static __always_inline int emit_stack(struct task_struct *task, struct stack_event *s)
{
	__u32 size = s->nr;

	s->kind = EVENT_STACK;
	s->pid = view_pid(task);
	if (size > MAX_FRAMES)
		size = MAX_FRAMES;
	size = offsetof(struct stack_event, frames) + size * 8;
	/* Code that user space does not know of yet: it is to look at once. */
	return s->outcome == OUTCOME_NO_MAPPING ? emit_now(s, size) : emit(s, size);
}

/* Remembers what the walk that just ended found. */
static __always_inline __u32 remember(struct task_state *st, __u32 id)
{
	st->memo_id = id;
	return id;
}

/*
 * The id of the current task's user stack. The first sight of a stack sends it to user space; if
 * that fails it is forgotten again, so that the next event retries, and counted. (Global: the
 * verifier checks the walk once a program, not once for each way that leads to it; 7.2's gives up
 * on the fault's end otherwise.)
 */
__noinline __u32 stack_id(struct task_state *st)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct walk w = { .st = st };
	struct seen_stack fresh, *known;
	__u32 same;
	__u64 key;

	if (!st)
		return STACK_LOST;
	/* Mixed in like a frame: as a plain start value it would cancel out against the first frame's address. */
	hash_word(&w.hash, st->mm_id);
	/* The walk's own reads can fault: see fault_begins(). */
	st->walking = 1;
	same = take_stack(task, &w);
	st->walking = 0;
	if (same)
		return same;
	if (unwind_mode < UNWIND_TABLES)
		hash_word(&w.hash, w.outcome);

	key = w.hash.key;
	fresh.check = w.hash.check;
	/* The same as last time: a loop that touches a buffer. */
	if (key == st->last_key && fresh.check == st->last.check)
		return remember(st, st->last.id);
	known = bpf_map_lookup_elem(&stacks, &key);
	if (!known) {
		fresh.id = __sync_fetch_and_add(&next_stack_id, 1);
		if (bpf_map_update_elem(&stacks, &key, &fresh, BPF_NOEXIST) == 0) {
			fill_frames(st, &w);
			st->event.stack_id = fresh.id;
			st->event.mm_id = st->mm_id;
			st->event.nr = w.nr;
			st->event.outcome = w.outcome;
			if (emit_stack(task, &st->event) == 0)
				return remember(st, fresh.id);
			bpf_map_delete_elem(&stacks, &key);
			count_loss(LOSS_RING_STACK);
			return STACK_LOST;
		}
		/* Another thread was first, or the table is full. */
		known = bpf_map_lookup_elem(&stacks, &key);
		if (!known) {
			count_loss(LOSS_STACK_TABLE);
			return STACK_LOST;
		}
	}
	if (known->check != fresh.check) {
		count_loss(LOSS_STACK_COLLISION);
		return STACK_LOST;
	}
	st->last_key = key;
	st->last = *known;
	return remember(st, known->id);
}

#endif
