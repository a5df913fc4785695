/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The table of known stacks. The index of a stack is its id.
 */
#ifndef MEMPROF_STACKS_H
#define MEMPROF_STACKS_H

#include "base.bpf.h"
#include "counters.bpf.h"

/*
 * A hash table in an array. A hash map of the kernel needs half a microsecond more for a new stack, because it
 * allocates memory for each. User space shares this array, and frees the slots without references (stacks.rs). It marks
 * a slot as leaving if the slot was not used in the current epoch and no ledger refers to it, and then clears the slot
 * for another stack.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STACK_BUCKETS);
	__type(key, __u32);
	__type(value, struct stack_bucket);
} stacks SEC(".maps");

__u32 known_stacks; /* used slots in `stacks` */

/*
 * User space writes to this map to wait for the end of all running programs: map_update_elem() of a map of maps waits
 * for an RCU grace period (1ae80cf31938, 4.18).
 */
struct grace_inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct grace_inner);
} grace SEC(".maps");

/* User space increments it before it searches for unused slots. */
__u32 stack_epoch = 1;
/* 1 while user space searches: ids copied within the ledgers then count as used. */
__u32 stacks_collected = 0;

/* Number of buckets in which a stack may be, from the bucket of its hash on. */
#define PROBES 16
#define NO_SLOT 0xffffffff

/* The slot in the bucket with this key, or a free slot, which it claims; else NO_SLOT. Global: verified once. */
__noinline __u32 slot_in_bucket(struct stack_bucket *bucket, __u64 key)
{
	if (!bucket)
		return NO_SLOT;
#pragma unroll
	for (__u32 k = 0; k < BUCKET_SLOTS; k++) {
		__u64 *there = &bucket->slot[k].key, had = *there;

		if (*(volatile __u32 *)&bucket->slot[k].state == SLOT_LEAVING)
			continue;
		if (!had) {
			had = __sync_val_compare_and_swap(there, 0, key);
			if (!had)
				__sync_fetch_and_add(&known_stacks, 1);
		}
		if (!had || had == key)
			return k;
	}
	return NO_SLOT;
}

/*
 * The index of the slot with this key, or of a free slot, which it claims; else NO_SLOT. A free slot ends the search.
 * If an earlier slot was freed, the key may exist after it: the stack then has two ids, which is harmless. Global:
 * verified once.
 */
__noinline __u32 find_slot(__u64 key)
{
	for (__u32 i = 0; i < PROBES; i++) {
		__u32 at = (key + i) & (STACK_BUCKETS - 1), found;

		found = slot_in_bucket(bpf_map_lookup_elem(&stacks, &at), key);
		if (found < BUCKET_SLOTS)
			return at * BUCKET_SLOTS + found;
	}
	return NO_SLOT;
}

/*
 * Marks a slot as used in this epoch, so that it is not freed. Returns its state; SLOT_LEAVING if user space was
 * faster.
 */
static __always_inline __u32 use_slot(struct stack_slot *s)
{
	__u32 epoch = stack_epoch, state = *(volatile __u32 *)&s->state, was;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (state == SLOT_LEAVING || state >> 1 == epoch)
			return state;
		was = __sync_val_compare_and_swap(&s->state, state, epoch << 1 | (state & SLOT_SENT));
		if (was == state)
			return epoch << 1 | (state & SLOT_SENT);
		state = was;
	}
	return SLOT_LEAVING;
}

/* The stack of a page ledger entry: enum page_record. */
static __always_inline __u32 stack_of_record(__u32 record)
{
	return record & ((1 << RECORD_STACK_BITS) - 1);
}

/*
 * Marks a record's stack as used. The record was copied within a ledger, to a range that user space may have read
 * already.
 */
static __always_inline void use_stack(__u32 record)
{
	__u32 id = stack_of_record(record), slot = id - STACK_FIRST, bucket = slot / BUCKET_SLOTS;
	struct stack_bucket *b;

	if (id < STACK_FIRST)
		return;
	b = bpf_map_lookup_elem(&stacks, &bucket);
	if (b)
		use_slot(&b->slot[INDEX(slot, BUCKET_SLOTS)]);
}

static long use_step(__u64 i, struct page_chunk **chunk)
{
	use_stack((*chunk)->stack[INDEX(i, CHUNK_PAGES)]);
	return 0;
}

/* Marks all stacks of a chunk as used. Global: verified once. */
__noinline int use_stacks(struct page_chunk *chunk)
{
	if (chunk)
		bpf_loop(CHUNK_PAGES, use_step, &chunk, 0);
	return 0;
}

#endif
