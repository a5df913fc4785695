/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The code mappings of each address space: lookups by address, and changes. bind.bpf.h finds the mappings.
 */
#ifndef MEMPROF_MAPPINGS_H
#define MEMPROF_MAPPINGS_H

#include "base.bpf.h"
#include "counters.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct unwind_space);
} unwind_spaces SEC(".maps");

/* Initial value of new address spaces. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unwind_space);
} empty_space SEC(".maps");

/* Changes whenever a table is added or a mapping replaces code: cached walks are then invalid. */
__u32 unwind_generation = 1;

/* All ones if `a` <= `b`, else 0; for numbers below 2^63. */
static __always_inline __u32 not_above(__u64 a, __u64 b)
{
	return (__s64)(a - b - 1) >> 63;
}

/* Index of the last mapping that begins at or before `pc`, or MAX_MAPPINGS. Global: verified once. */
__noinline __u32 last_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = 0, n;

	if (!space)
		return MAX_MAPPINGS;
	n = space->nr;
	if (n > MAX_MAPPINGS)
		n = MAX_MAPPINGS;
	for (int i = 0; i < 10; i++) {
		__u32 half = n >> 1;

		if (!half)
			break;
		/* No branch: it would double the verifier's paths in each iteration. */
		at += half & not_above(space->at[INDEX(at + half, MAX_MAPPINGS)].start, pc);
		n -= half;
	}
	at = INDEX(at, MAX_MAPPINGS);
	return n && space->at[at].start <= pc ? at : MAX_MAPPINGS;
}

/* Index of the mapping that contains `pc`, or MAX_MAPPINGS. */
static __always_inline __u32 find_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = last_mapping(space, pc);

	if (!space || at >= MAX_MAPPINGS || pc >= space->at[INDEX(at, MAX_MAPPINGS)].end)
		return MAX_MAPPINGS;
	return at;
}

static __always_inline __u32 version_of(struct unwind_space *space)
{
	return *(volatile __u32 *)&space->version;
}

/* The origin of the mapping that contains a range: an enum code_origin, or -1 if no mapping does. */
static __always_inline int find_origin(__u32 mm_id, __u64 start, __u64 end)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	__u32 at = find_mapping(space, start);

	if (!space || at >= MAX_MAPPINGS || end > space->at[INDEX(at, MAX_MAPPINGS)].end)
		return -1;
	return space->at[INDEX(at, MAX_MAPPINGS)].origin;
}

/* Whether one mapping contains the range, which is then known to be code. */
static __always_inline int is_known_code(__u32 mm_id, __u64 start, __u64 end)
{
	return find_origin(mm_id, start, end) >= 0;
}

/* A change of an address space's mappings. */
struct edit_ctx {
	struct unwind_space *space;
	__u64 start; /* the new mapping's range */
	__u64 end;
	__u32 from;
	__u32 to;
	__u32 locked;
	__u32 pad;
};

/*
 * Two threads rarely map code at once, and a change takes microseconds. But a hypervisor may suspend the other thread.
 */
#define LOCK_TRIES (1 << 18)

static long lock_step(__u64 i, struct edit_ctx *c)
{
	__u32 version = version_of(c->space);

	if ((version & 1) || __sync_val_compare_and_swap(&c->space->version, version, version + 1) != version)
		return 0;
	c->locked = 1;
	return 1;
}

/* Locks the mappings for a change. Readers find no mapping meanwhile. Returns whether the lock was taken. */
static __always_inline int lock_space(struct edit_ctx *c)
{
	bpf_loop(LOCK_TRIES, lock_step, c, 0);
	return c->locked;
}

static __always_inline void unlock_space(struct edit_ctx *c)
{
	__sync_fetch_and_add(&c->space->version, 1);
}

/* Trims an old mapping to what a new one leaves of it: the range before the new one, else the range after it. */
static long trim_step(__u64 i, struct edit_ctx *c)
{
	struct unwind_mapping *from = &c->space->at[INDEX(i, MAX_MAPPINGS)];
	__u64 start = from->start, end = from->end;
	struct unwind_mapping *to;

	if (start < c->end && end > c->start) {
		if (start < c->start)
			end = c->start;
		else if (end > c->end)
			start = c->end;
		else
			return 0;
	}
	to = &c->space->at[INDEX(c->to, MAX_MAPPINGS)];
	to->bias = from->bias;
	to->table = from->table;
	to->origin = from->origin;
	to->start = start;
	to->end = end;
	c->to++;
	return 0;
}

static long shift_step(__u64 i, struct edit_ctx *c)
{
	__u32 from = c->from - 1;

	if (from >= MAX_MAPPINGS - 1 || from < c->to)
		return 1;
	c->space->at[INDEX(from + 1, MAX_MAPPINGS)] = c->space->at[INDEX(from, MAX_MAPPINGS)];
	c->from = from;
	return 0;
}

/* Inserts a mapping in address order. Returns 0, or -1 if the array is full. */
static __always_inline int put_mapping(struct edit_ctx *c, struct unwind_mapping *m)
{
	__u32 nr = c->space->nr, at = last_mapping(c->space, m->start), to = at >= MAX_MAPPINGS ? 0 : at + 1;
	struct unwind_mapping *before = &c->space->at[INDEX(at, MAX_MAPPINGS)];

	/* JIT code is often mapped in many adjacent pieces. */
	if (at < MAX_MAPPINGS && m->origin == CODE_OF_NO_FILE && before->origin == CODE_OF_NO_FILE &&
	    before->end == m->start) {
		before->end = m->end;
		return 0;
	}
	if (nr >= MAX_MAPPINGS)
		return -1;
	c->from = nr;
	c->to = to;
	bpf_loop(nr, shift_step, c, 0);
	c->space->at[INDEX(to, MAX_MAPPINGS)] = *m;
	c->space->nr = nr + 1;
	return 0;
}

#define MAPPINGS_BUSY 1

/*
 * Inserts a mapping, and trims the mappings that it overlaps. Returns 0, MAPPINGS_BUSY, or -1 if the array is full.
 * Global: verified once.
 */
__noinline int insert_mapping(struct unwind_space *space, struct unwind_mapping *m)
{
	struct edit_ctx c = { .space = space };
	struct unwind_mapping *old;
	__u32 at, nr;
	int failed;

	if (!space || !m)
		return -1;
	c.start = m->start;
	c.end = m->end;
	if (!lock_space(&c))
		return MAPPINGS_BUSY;
	at = last_mapping(space, c.end - 1);
	old = &space->at[INDEX(at, MAX_MAPPINGS)];
	if (at < MAX_MAPPINGS && old->end > c.start) {
		if (old->start <= c.start && old->end >= c.end && old->bias == m->bias && old->table == m->table &&
		    old->origin == m->origin) {
			unlock_space(&c);
			return 0;
		}
		nr = space->nr;
		c.to = 0;
		bpf_loop(nr < MAX_MAPPINGS ? nr : MAX_MAPPINGS, trim_step, &c, 0);
		space->nr = c.to;
		__sync_fetch_and_add(&unwind_generation, 1);
	}
	failed = put_mapping(&c, m);
	unlock_space(&c);
	return failed;
}

static __noinline struct unwind_space *space_get(__u32 mm_id)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);

	if (space)
		return space;
	insert_initial(&unwind_spaces, &mm_id, &empty_space);
	return bpf_map_lookup_elem(&unwind_spaces, &mm_id);
}

/*
 * Copies a parent's mappings to its child: code is at the same addresses, so the first stacks of the child are
 * complete, too.
 */
__noinline int copy_space(__u32 from, __u32 to)
{
	struct edit_ctx c = { .space = bpf_map_lookup_elem(&unwind_spaces, &from) };
	struct unwind_space *copy;

	if (!c.space || !to || from == to)
		return 0;
	if (!lock_space(&c)) {
		count_loss(LOSS_MAPPINGS);
		return 0;
	}
	if (bpf_map_update_elem(&unwind_spaces, &to, c.space, BPF_ANY))
		count_loss(LOSS_SPACES);
	unlock_space(&c);
	copy = bpf_map_lookup_elem(&unwind_spaces, &to);
	if (copy)
		copy->version = 0;
	return 0;
}

#endif
