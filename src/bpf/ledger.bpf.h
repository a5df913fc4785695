/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The page ledger: which stack brought in each virtual page of each followed address space.
 * Chunks of 512 pages, so that a dense program pays 4 bytes a page and one hash lookup a fault.
 */
#ifndef MEMPROF_LEDGER_H
#define MEMPROF_LEDGER_H

/*
 * Ranges of more chunks than this (8 GiB) are not gone through chunk by chunk: the ledger is, which
 * never holds more chunks than it has room for, however large a reservation is.
 */
#define LARGE_CHUNKS 4096

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct page_chunk);
} pages SEC(".maps");

/* The all-zero chunk that new entries are copied from: it is too large for the BPF stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_chunk);
} zero_chunk SEC(".maps");

static __always_inline __u64 chunk_key(__u32 mm_id, __u64 vpage)
{
	return ((__u64)mm_id << REGION_BITS) | (vpage >> CHUNK_SHIFT);
}

static __always_inline struct page_chunk *chunk_find(__u64 key)
{
	return bpf_map_lookup_elem(&pages, &key);
}

static __noinline struct page_chunk *chunk_get(__u64 key)
{
	struct page_chunk *chunk = chunk_find(key);
	__u32 zero = 0;
	void *empty;

	if (chunk)
		return chunk;
	empty = bpf_map_lookup_elem(&zero_chunk, &zero);
	if (!empty)
		return NULL;
	bpf_map_update_elem(&pages, &key, empty, BPF_NOEXIST);
	chunk = chunk_find(key);
	if (!chunk)
		count_loss(LOSS_PAGE_LEDGER);
	return chunk;
}

/* 1 for STACK_NONE, else 0; stack ids stay below 2^31. */
static __always_inline __u32 is_empty(__u32 stack)
{
	return (stack - 1) >> 31;
}

/*
 * The loops over a chunk's entries are global functions, which the verifier checks once each and
 * for themselves; inlined, their 512 possible lengths multiply with everything that comes after.
 */

/* Sets `n` entries from `first` on. */
__noinline int chunk_fill(struct page_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	if (!chunk)
		return 0;
	for (__u32 i = 0; i < CHUNK_PAGES; i++) {
		if (i >= n)
			return 0;
		chunk->stack[(first + i) & (CHUNK_PAGES - 1)] = stack;
	}
	return 0;
}

/* Sets those of `n` entries from `first` on that are empty. (Without a branch: see cache_chunk_fill().) */
__noinline int chunk_fill_empty(struct page_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	if (!chunk)
		return 0;
	for (__u32 i = 0; i < CHUNK_PAGES; i++) {
		if (i >= n)
			return 0;
		__u32 at = (first + i) & (CHUNK_PAGES - 1);
		__u32 was = chunk->stack[at];

		chunk->stack[at] = was | (stack & -is_empty(was));
	}
	return 0;
}

/* Copies those of `n` entries of `src` from `first` on that are empty in `dst`. */
__noinline int chunk_inherit(struct page_chunk *dst, struct page_chunk *src, __u32 first, __u32 n)
{
	if (!dst || !src)
		return 0;
	for (__u32 i = 0; i < CHUNK_PAGES; i++) {
		if (i >= n)
			return 0;
		__u32 at = (first + i) & (CHUNK_PAGES - 1);
		__u32 was = dst->stack[at];

		dst->stack[at] = was | (src->stack[at] & -is_empty(was));
	}
	return 0;
}

/* Copies `n` entries of `src` from `from` on to those of `dst` from `to` on. */
__noinline int chunk_copy(struct page_chunk *dst, __u32 to, struct page_chunk *src, __u32 from, __u32 n)
{
	if (!dst || !src)
		return 0;
	for (__u32 i = 0; i < CHUNK_PAGES; i++) {
		if (i >= n)
			return 0;
		dst->stack[(to + i) & (CHUNK_PAGES - 1)] = src->stack[(from + i) & (CHUNK_PAGES - 1)];
	}
	return 0;
}

/* Pages of an address space. */
struct range {
	__u32 mm_id;
	__u32 pad;
	__u64 first; /* pages */
	__u64 end;
};

/* How many chunks a range that is not empty lies in. */
static __always_inline __u64 chunks_of(const struct range *r)
{
	return ((r->end - 1) >> CHUNK_SHIFT) - (r->first >> CHUNK_SHIFT) + 1;
}

/* The first page of the range's chunk number `i`. */
static __always_inline __u64 chunk_base(const struct range *r, __u64 i)
{
	return ((r->first >> CHUNK_SHIFT) + i) << CHUNK_SHIFT;
}

/* Whether a chunk of the ledger has pages of the range. */
static __always_inline int in_range(const struct range *r, __u64 key)
{
	return key >= chunk_key(r->mm_id, r->first) && key <= chunk_key(r->mm_id, r->end - 1);
}

static __always_inline __u64 base_of_key(__u64 key)
{
	return (key & ((1ull << REGION_BITS) - 1)) << CHUNK_SHIFT;
}

/* The part of the chunk at page `base` that lies in the range: index of its first page, and how many. */
static __always_inline __u32 part_of(const struct range *r, __u64 base, __u32 *n)
{
	__u32 from = base < r->first ? r->first - base : 0;

	*n = (base + CHUNK_PAGES > r->end ? r->end - base : CHUNK_PAGES) - from;
	return from;
}

static __always_inline void clear_chunk(struct range *r, __u64 base)
{
	__u64 key = chunk_key(r->mm_id, base);
	__u32 n, from = part_of(r, base, &n);
	struct page_chunk *chunk;

	if (n == CHUNK_PAGES) {
		bpf_map_delete_elem(&pages, &key);
		return;
	}
	chunk = chunk_find(key);
	if (chunk)
		chunk_fill(chunk, from, n, STACK_NONE);
}

static long clear_one_chunk(__u64 i, struct range *r)
{
	clear_chunk(r, chunk_base(r, i));
	return 0;
}

static long clear_if_inside(void *map, __u64 *key, void *chunk, struct range *r)
{
	if (in_range(r, *key))
		clear_chunk(r, base_of_key(*key));
	return 0;
}

/* Forgets the pages [first, end). */
static __noinline int ledger_clear(__u32 mm_id, __u64 first, __u64 end)
{
	struct range r = { .mm_id = mm_id, .first = first, .end = end };

	if (end <= first)
		return 0;
	if (chunks_of(&r) > LARGE_CHUNKS)
		bpf_for_each_map_elem(&pages, clear_if_inside, &r, 0);
	else
		bpf_loop(chunks_of(&r), clear_one_chunk, &r, 0);
	return 0;
}

struct move_ctx {
	struct range from;
	__u64 dst; /* page that its first one goes to */
};

/* Copies the records of `n` pages; those at `src` lie in one chunk, those at `dst` too. */
static __noinline int move_part(__u32 mm_id, __u64 src, __u64 dst, __u32 n)
{
	struct page_chunk *s = chunk_find(chunk_key(mm_id, src));
	struct page_chunk *d;

	if (!s)
		return 0;
	d = chunk_get(chunk_key(mm_id, dst));
	if (!d)
		return 0;
	chunk_copy(d, dst & (CHUNK_PAGES - 1), s, src & (CHUNK_PAGES - 1), n);
	if (stacks_collected)
		use_stacks(d);
	return 0;
}

/* Carries over what the chunk at page `base` has of the range. */
static __always_inline void move_chunk(struct move_ctx *m, __u64 base)
{
	__u32 n, from = part_of(&m->from, base, &n);
	__u64 src = base + from, dst = m->dst + (src - m->from.first);
	/* It goes to at most two chunks. */
	__u32 head = CHUNK_PAGES - (dst & (CHUNK_PAGES - 1));

	if (head > n)
		head = n;
	move_part(m->from.mm_id, src, dst, head);
	if (n > head)
		move_part(m->from.mm_id, src + head, dst + head, n - head);
}

static long move_one_chunk(__u64 i, struct move_ctx *m)
{
	move_chunk(m, chunk_base(&m->from, i));
	return 0;
}

static long move_if_inside(void *map, __u64 *key, void *chunk, struct move_ctx *m)
{
	if (in_range(&m->from, *key))
		move_chunk(m, base_of_key(*key));
	return 0;
}

/* Carries the records of `n` pages from page `src` on to page `dst`; forgets them at `src`. */
static __noinline int ledger_move(__u32 mm_id, __u64 src, __u64 dst, __u64 n)
{
	struct move_ctx m = {
		.from = { .mm_id = mm_id, .first = src, .end = src + n },
		.dst = dst,
	};

	if (!n)
		return 0;
	if (chunks_of(&m.from) > LARGE_CHUNKS)
		bpf_for_each_map_elem(&pages, move_if_inside, &m, 0);
	else
		bpf_loop(chunks_of(&m.from), move_one_chunk, &m, 0);
	return ledger_clear(mm_id, src, src + n);
}

#endif
