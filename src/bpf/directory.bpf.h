/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The directory of the page ledger: which chunks each address space has, as a tree of bitmaps of 512 bits, like page
 * tables. Iterating a range or a whole address space costs in proportion to its own chunks, not to its size or to the
 * chunks of other address spaces.
 *
 * A chunk's bit is set after the chunk is inserted, and cleared before the chunk is deleted. So the bit of an existing
 * chunk is set in the end, despite concurrent changes. A bit without a chunk is harmless.
 */
#ifndef MEMPROF_DIRECTORY_H
#define MEMPROF_DIRECTORY_H

#include "base.bpf.h"

/* The functions here are global: the verifier checks each one once, independently of its callers. */

/* log2 of a node's slots. */
#define NODE_BITS 9
#define NODE_SLOTS (1u << NODE_BITS)
#define NODE_WORDS (NODE_SLOTS / 64)
/* A node of level 1 has a bit for each chunk of 1 GiB. The single node of level 4 covers all 36 bits. */
#define NODE_LEVELS 4
/* Position of the level in a node's key. The bits below are the node's index within its level. */
#define NODE_LEVEL_SHIFT 28

/* Set in directory_node.live once the last bit is cleared: the node is about to be removed. */
#define NODE_DEAD 0x80000000u
#define NODE_RETRIES 8
/* Maximum number of nodes examined per search. The next call continues an unfinished search. */
#define NODE_STEPS 16

/* Greater than every chunk key. */
#define NO_CHUNK (~0ull)
#define CHUNK_NUMBER_MASK ((1ull << REGION_BITS) - 1)

struct directory_node {
	__u32 live; /* number of set bits, plus reservations for bits that are about to be set */
	__u32 pad;
	__u64 bits[NODE_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768); /* set by user space */
	__type(key, __u64);
	__type(value, struct directory_node);
} directory SEC(".maps");

/* The key of the node of a level that contains a chunk. Ledger keys identify chunks. */
static __always_inline __u64 node_key(__u64 chunk, __u32 level)
{
	return (chunk & ~CHUNK_NUMBER_MASK) | ((__u64)level << NODE_LEVEL_SHIFT) |
	       ((chunk & CHUNK_NUMBER_MASK) >> (NODE_BITS * level));
}

static __always_inline __u32 node_slot(__u64 chunk, __u32 level)
{
	return (chunk >> (NODE_BITS * (level - 1))) & (NODE_SLOTS - 1);
}

/* Sets a bit. Returns 1 if the node was created, 0 if it existed, -1 if the map is full. */
__noinline int node_set(__u64 key, __u32 slot)
{
	struct directory_node empty = {}, *node;
	__u64 bit = 1ull << (slot & 63);
	__u64 word = INDEX(slot >> 6, NODE_WORDS);
	int made = 0;

	for (int i = 0; i < NODE_RETRIES; i++) {
		node = bpf_map_lookup_elem(&directory, &key);
		if (!node) {
			if (bpf_map_update_elem(&directory, &key, &empty, BPF_NOEXIST) == 0)
				made = 1;
			node = bpf_map_lookup_elem(&directory, &key);
			if (!node)
				continue;
		}
		if (node->bits[word] & bit)
			return made;
		/* The reservation prevents the removal of the node while its bit is set. */
		if (__sync_fetch_and_add(&node->live, 1) & NODE_DEAD)
			continue;
		if (__sync_fetch_and_or(&node->bits[word], bit) & bit)
			__sync_fetch_and_sub(&node->live, 1);
		return made;
	}
	return -1;
}

/* Clears a bit. Returns 1 if it was the last bit of the node: the caller must then remove the node. */
static __always_inline int node_clear(__u64 key, __u32 slot)
{
	struct directory_node *node = bpf_map_lookup_elem(&directory, &key);
	__u64 bit = 1ull << (slot & 63);
	__u64 word = INDEX(slot >> 6, NODE_WORDS);

	if (!node || !(node->bits[word] & bit))
		return 0;
	if (!(__sync_fetch_and_and(&node->bits[word], ~bit) & bit))
		return 0;
	if (__sync_fetch_and_sub(&node->live, 1) != 1)
		return 0;
	return __sync_val_compare_and_swap(&node->live, 0, NODE_DEAD) == 0;
}

/* Removes a chunk that is deleted or about to be deleted. */
__noinline int directory_remove(__u64 chunk)
{
	__u32 dead = 0;
	__u64 key;

	for (__u32 level = 1; level <= NODE_LEVELS; level++) {
		if (!node_clear(node_key(chunk, level), node_slot(chunk, level)))
			break;
		dead = level;
	}
	/*
	 * A node that is marked dead cannot be recreated until it is removed. Parents go first, so that nothing refers
	 * to the removed node.
	 */
	for (__u32 level = NODE_LEVELS; level; level--) {
		key = node_key(chunk, level);
		if (level <= dead)
			bpf_map_delete_elem(&directory, &key);
	}
	return 0;
}

/* Adds a new chunk. Returns 0, or -1 if the directory is full. */
__noinline int directory_add(__u64 chunk)
{
	for (__u32 level = 1; level <= NODE_LEVELS; level++) {
		int made = node_set(node_key(chunk, level), node_slot(chunk, level));

		if (made < 0) {
			directory_remove(chunk);
			return -1;
		}
		if (!made)
			return 0;
	}
	return 0;
}

/* Index of the bit of a power of two, by its product with a de Bruijn number. */
static const __u8 bit_number[64] = {
	0,  1,	2,  53, 3,  7,	54, 27, 4,  38, 41, 8,	34, 55, 48, 28, 62, 5,	39, 46, 44, 42,
	22, 9,	24, 35, 59, 56, 49, 18, 29, 11, 63, 52, 6,  26, 37, 40, 33, 47, 61, 45, 43, 21,
	23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12,
};

static __always_inline __u32 lowest_bit(__u64 word)
{
	return bit_number[INDEX(((word & -word) * 0x022fdd63cc95386dull) >> 58, 64)];
}

/* The node's first slot at or after `slot` whose bit is set; NODE_SLOTS if there is none. */
__noinline __u32 node_next(struct directory_node *node, __u32 slot)
{
	__u32 first = slot >> 6;

	if (!node)
		return NODE_SLOTS;
	for (__u32 i = 0; i < NODE_WORDS; i++) {
		__u64 word = node->bits[i];

		if (i < first)
			continue;
		if (i == first)
			word &= ~0ull << (slot & 63);
		if (word)
			return i * 64 + lowest_bit(word);
	}
	return NODE_SLOTS;
}

struct search {
	__u64 space;
	__u64 at; /* the chunk number, without the address space; or NO_CHUNK */
	__u32 level;
	__u32 pad;
};

/* Examines one node. Returns nonzero at the end of the search. */
__noinline int search_node(struct search *s)
{
	__u32 shift, slot, found;
	__u64 at, key;

	if (!s)
		return 1;
	at = s->at;
	key = node_key(s->space | at, s->level);
	shift = NODE_BITS * s->level;
	slot = node_slot(at, s->level);
	found = node_next(bpf_map_lookup_elem(&directory, &key), slot);
	if (found < NODE_SLOTS) {
		if (found != slot)
			s->at = ((at >> shift) << shift) | ((__u64)found << (shift - NODE_BITS));
		return --s->level == 0;
	}
	/* No bit is left in this node: continue after it, one level up. */
	at = ((at >> shift) + 1) << shift;
	s->at = at > CHUNK_NUMBER_MASK ? NO_CHUNK : at;
	if (s->level < NODE_LEVELS)
		s->level++;
	return at > CHUNK_NUMBER_MASK;
}

/* The first chunk of the address space at or after `chunk`, or NO_CHUNK. The chunk may not exist in the ledger. */
__noinline __u64 directory_next(__u64 chunk)
{
	struct search s = { .space = chunk & ~CHUNK_NUMBER_MASK, .at = chunk & CHUNK_NUMBER_MASK, .level = 1 };

	for (int i = 0; i < NODE_STEPS; i++)
		if (search_node(&s))
			break;
	return s.at == NO_CHUNK ? NO_CHUNK : s.space | s.at;
}

#endif
