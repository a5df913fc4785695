/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sums of every allocation by stack, and the live blocks (--heap=exact).
 */
#ifndef MEMPROF_EXACT_SUMS_H
#define MEMPROF_EXACT_SUMS_H

#include "base.bpf.h"
#include "counters.bpf.h"

/* One call in `exact_every` is counted. User space sets this and the next value before it loads the programs. */
__u32 exact_every = 1;
/* A block freed within this time is temporary. */
__u64 exact_temporary_ns = 10000000;

__u64 exact_rows; /* entries in exact_sums */

/* The sums of each stack. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct exact_sum);
} exact_sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct exact_sum);
} exact_initial SEC(".maps");

/* Counted blocks that are not freed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 21);
	__type(key, struct exact_key);
	__type(value, struct exact_block);
} exact_blocks SEC(".maps");

/*
 * The row of a stack. If the map is full, the row of lost stacks, which user space has added; `stack` is then set to
 * STACK_LOST. NULL if neither exists.
 */
static __always_inline struct exact_sum *find_sum(__u32 *stack)
{
	struct exact_sum *sum = bpf_map_lookup_elem(&exact_sums, stack);

	if (!sum) {
		if (!insert_initial(&exact_sums, stack, &exact_initial))
			__sync_fetch_and_add(&exact_rows, 1);
		sum = bpf_map_lookup_elem(&exact_sums, stack);
	}
	if (!sum) {
		count_loss(LOSS_EXACT_STACKS);
		*stack = STACK_LOST;
		return bpf_map_lookup_elem(&exact_sums, stack);
	}
	/*
	 * Written on every call: another thread that has just added the row may be preempted before it writes these
	 * fields.
	 */
	sum->stack = *stack;
	sum->weight = exact_every;
	return sum;
}

/* The number of bits of a size, which is its class in the histogram. */
static __always_inline __u32 size_class(__u64 size)
{
	__u32 bits = 0;

	if (size >> 32)
		bits += 32, size >>= 32;
	if (size >> 16)
		bits += 16, size >>= 16;
	if (size >> 8)
		bits += 8, size >>= 8;
	if (size >> 4)
		bits += 4, size >>= 4;
	if (size >> 2)
		bits += 2, size >>= 2;
	return bits + (size >> 1 ? 2 : size);
}

/* Subtracts a block that was freed or resized. Not inline, because it has several callers. */
static __noinline int block_freed(struct exact_block *block)
{
	__u32 stack = block->stack;
	struct exact_sum *sum = bpf_map_lookup_elem(&exact_sums, &stack);
	__u64 weight = exact_every;

	if (!sum)
		return 0;
	__sync_fetch_and_sub(&sum->live_objects, weight);
	__sync_fetch_and_sub(&sum->live_bytes, weight * block->size);
	if (bpf_ktime_get_ns() - block->at <= exact_temporary_ns) {
		__sync_fetch_and_add(&sum->temporary_objects, weight);
		__sync_fetch_and_add(&sum->temporary_bytes, weight * block->size);
	}
	return 0;
}

/* Removes a block from the live blocks. Returns 0 if it was live. */
static __always_inline int remove_block(struct exact_key *key, struct exact_block *to)
{
	struct exact_block *known = bpf_map_lookup_elem(&exact_blocks, key);

	if (!known)
		return -1;
	*to = *known;
	/* The thread that deletes the entry owns the block, so a double free does not corrupt the sums. */
	return bpf_map_delete_elem(&exact_blocks, key) ? -1 : 0;
}

static __always_inline int insert_block(struct exact_key *key, struct exact_block *block)
{
	return bpf_map_update_elem(&exact_blocks, key, block, BPF_NOEXIST) ? -1 : 0;
}

#endif
