/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The stacks that are known, and how new ones are sent to user space. Included by unwind.bpf.h, which finds
 * them.
 */
#ifndef MEMPROF_STACKS_H
#define MEMPROF_STACKS_H

/*
 * By their hash. A hash map of the kernel takes half a microsecond more for a new one, as it allocates memory
 * for each; in this array none is ever taken out, so that a free slot ends a search.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STACK_BUCKETS);
	__type(key, __u32);
	__type(value, struct stack_bucket);
} stacks SEC(".maps");

/* Buckets that a stack may be in, from the one on that its hash says. */
#define PROBES 16
#define NO_SLOT 0xffffffff

/* The number of the slot that has this key, or of a free one that takes it; NO_SLOT. (Global: checked once.) */
__noinline __u32 find_slot(__u64 key)
{
	for (__u32 i = 0; i < PROBES; i++) {
		__u32 at = (key + i) & (STACK_BUCKETS - 1);
		struct stack_bucket *bucket = bpf_map_lookup_elem(&stacks, &at);

		if (!bucket)
			break;
#pragma unroll
		for (__u32 k = 0; k < BUCKET_SLOTS; k++) {
			__u64 *there = &bucket->slot[k].key, had = *there;

			if (!had) {
				had = __sync_val_compare_and_swap(there, 0, key);
				if (!had)
					__sync_fetch_and_add(&known_stacks, 1);
			}
			if (!had || had == key)
				return at * BUCKET_SLOTS + k;
		}
	}
	return NO_SLOT;
}

/* Whether a part of a stack ends before frame `n`. */
static __always_inline int is_part(__u64 n)
{
	return (n & (MAX_FRAMES - 1)) == 0;
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

/*
 * Sends `nr` frames of the stack that `sending` names, from frame `before` on; where they do not reach the
 * outermost one, more follow. 0, or -1; then `sending` is 0. (Global: checked once, for all that send.)
 */
__noinline int send_frames(struct task_state *st, __u32 before, __u32 nr, __u32 last)
{
	struct fill_ctx c = { .st = st };
	struct stack_event *s;
	__u32 size;
	int failed;

	if (!st || nr > MAX_FRAMES)
		return -1;
	c.from = st->t.innermost;
	bpf_loop((nr + FILL_STEPS - 1) / FILL_STEPS, fill_steps, &c, 0);
	/* It takes the window's place. */
	st->t.window_words = 0;
	s = &st->event;
	s->kind = EVENT_STACK;
	s->mm_id = st->mm_id;
	s->stack_id = st->t.sending;
	/* The same as long as the thread lives, and five reads of kernel memory to find. */
	if (!st->pid)
		st->pid = view_pid(bpf_get_current_task_btf());
	s->pid = st->pid;
	s->nr = nr;
	s->outcome = st->t.outcome;
	s->before = before;
	s->last = last;
	size = offsetof(struct stack_event, frames) + nr * 8;
	/* Code that user space does not know of yet: it is to look at once. */
	failed = last && s->outcome == OUTCOME_NO_MAPPING ? emit_now(s, size) : emit(s, size);
	if (failed)
		st->t.sending = 0;
	return failed ? -1 : 0;
}

/* Sends the frames before frame `n`, in the middle of a walk: there is no room for more. */
static __always_inline int send_part(struct task_state *st, __u32 n)
{
	st->t.innermost = MAX_FRAMES - 1;
	return send_frames(st, n - MAX_FRAMES, MAX_FRAMES, 0);
}

#endif
