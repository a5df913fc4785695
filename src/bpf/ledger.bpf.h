/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The page ledger: for each virtual page of each followed address space, the stack that brought the page in. With
 * chunks of 512 pages, a dense program costs 4 bytes per page and one hash lookup per fault.
 */
#ifndef MEMPROF_LEDGER_H
#define MEMPROF_LEDGER_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "directory.bpf.h"
#include "stacks.bpf.h"

/* Maximum number of iterations of bpf_loop() (BPF_MAX_LOOPS): more than the ledger can have chunks. */
#define MAX_LOOPS (1u << 23)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536); /* set by user space */
	__type(key, __u64);
	__type(value, struct page_chunk);
} pages SEC(".maps");

__u64 page_chunks; /* entries in `pages` */

/* Initial value of new chunks, in this ledger and in the page cache's. */
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

/* Global, like the loops below: verified once. */
__noinline int chunk_drop(__u64 key)
{
	directory_remove(key);
	if (bpf_map_delete_elem(&pages, &key) == 0)
		__sync_fetch_and_sub(&page_chunks, 1);
	return 0;
}

static __noinline struct page_chunk *chunk_get(__u64 key)
{
	struct page_chunk *chunk = chunk_find(key);

	if (chunk)
		return chunk;
	if (insert_initial(&pages, &key, &zero_chunk) == 0) {
		__sync_fetch_and_add(&page_chunks, 1);
		/* A chunk without a directory entry would never be found again. */
		if (directory_add(key) && bpf_map_delete_elem(&pages, &key) == 0)
			__sync_fetch_and_sub(&page_chunks, 1);
	}
	chunk = chunk_find(key);
	if (!chunk)
		count_loss(LOSS_PAGE_LEDGER);
	return chunk;
}

/* 1 for STACK_NONE, else 0. Stack ids stay below 2^31. */
static __always_inline __u32 is_empty(__u32 stack)
{
	return (stack - 1) >> 31;
}

/*
 * Loops over the entries of a chunk handle ENTRY_STEPS entries per call: a call for each entry would cost more than the
 * entry. bpf_loop() lets the verifier check one iteration. The body has no branch per entry: each branch would double
 * the verifier's paths.
 */
#define ENTRY_STEPS 8

struct entries {
	__u32 *dst;
	__u32 *src;
	__u32 to; /* index of the first entry in `dst` */
	__u32 from; /* index of the first entry in `src` */
	__u32 n;
	__u32 stack; /* the new value */
	__u32 keep; /* all ones: only empty entries change; else 0 */
	__u32 changed; /* number of entries that changed between empty and not empty */
};

static __always_inline void set_entry(struct entries *e, __u32 k, __u32 stack)
{
	__u32 *at = &e->dst[INDEX(e->to + k, CHUNK_PAGES)];
	__u32 was = *at, keep = e->keep & (is_empty(was) - 1), now = (was & keep) | (stack & ~keep);

	*at = now;
	e->changed += is_empty(was) ^ is_empty(now);
}

static __always_inline long change_some(__u64 i, struct entries *e, int copies)
{
#pragma unroll
	for (__u32 j = 0; j < ENTRY_STEPS; j++) {
		__u32 k = i * ENTRY_STEPS + j;

		if (k >= e->n)
			return 1;
		set_entry(e, k, copies ? e->src[INDEX(e->from + k, CHUNK_PAGES)] : e->stack);
	}
	return 0;
}

static long set_some(__u64 i, struct entries *e)
{
	return change_some(i, e, 0);
}

static long copy_some(__u64 i, struct entries *e)
{
	return change_some(i, e, 1);
}

#define ENTRY_LOOPS(n) (((n) + ENTRY_STEPS - 1) / ENTRY_STEPS)

/* Sets `n` entries, from `first` on. Returns the number of entries that changed between empty and not empty. */
static __always_inline __u32 set_entries(__u32 *dst, __u32 first, __u32 n, __u32 stack)
{
	struct entries e = { .dst = dst, .to = first, .n = n, .stack = stack };

	bpf_loop(ENTRY_LOOPS(n), set_some, &e, 0);
	return e.changed;
}

/* Entries that are set at once: at constant offsets, and without counting, they take a tenth of the instructions. */
#define BLOCK_ENTRIES 16

struct filling {
	struct page_chunk *chunk;
	__u32 at; /* index of the next entry */
	__u32 end;
	__u32 stack; /* the new value */
	__u32 pad;
};

/* Volatile: the entry is stored right after it was read, because another thread may set it meanwhile. */
static __always_inline void fill_entry(volatile __u32 *entry, __u32 stack, int keep)
{
	__u32 was = keep ? *entry : STACK_NONE;

	*entry = was | (stack & -is_empty(was));
}

/* Sets a block of entries if one begins here, else an entry; with `keep`, only empty ones. */
static __always_inline long fill_next(struct filling *f, int keep)
{
	__u32 at = f->at, stack = f->stack, *entry;

	if (at >= f->end)
		return 1;
	if (at % BLOCK_ENTRIES || f->end - at < BLOCK_ENTRIES) {
		entry = &f->chunk->stack[INDEX(at, CHUNK_PAGES)];
		fill_entry(entry, stack, keep);
		f->at = at + 1;
		return 0;
	}
	entry = &f->chunk->stack[INDEX(at / BLOCK_ENTRIES, CHUNK_PAGES / BLOCK_ENTRIES) * BLOCK_ENTRIES];
#pragma unroll
	for (__u32 k = 0; k < BLOCK_ENTRIES; k++)
		fill_entry(&entry[k], stack, keep);
	f->at = at + BLOCK_ENTRIES;
	return 0;
}

static long fill_any(__u64 i, struct filling *f)
{
	return fill_next(f, 0);
}

static long fill_empty(__u64 i, struct filling *f)
{
	return fill_next(f, 1);
}

/* Sets `n` entries, from `first` on. Global, like the next functions: verified once. */
__noinline int chunk_fill(struct page_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	struct filling f = { .chunk = chunk, .at = first, .end = first + n, .stack = stack };

	if (chunk)
		bpf_loop(CHUNK_PAGES + 1, fill_any, &f, 0);
	return 0;
}

/* Sets the empty entries among `n` entries, from `first` on. */
__noinline int chunk_fill_empty(struct page_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	struct filling f = { .chunk = chunk, .at = first, .end = first + n, .stack = stack };

	if (chunk)
		bpf_loop(CHUNK_PAGES + 1, fill_empty, &f, 0);
	return 0;
}

static __always_inline void copy_entries(struct page_chunk *dst, __u32 to, struct page_chunk *src, __u32 from, __u32 n,
					 __u32 keep)
{
	struct entries e = { .to = to, .from = from, .n = n, .keep = keep };

	if (!dst || !src)
		return;
	e.dst = dst->stack;
	e.src = src->stack;
	bpf_loop(ENTRY_LOOPS(n), copy_some, &e, 0);
}

/* Copies `n` entries, from `first` on, except where `dst` is not empty. */
__noinline int chunk_inherit(struct page_chunk *dst, struct page_chunk *src, __u32 first, __u32 n)
{
	copy_entries(dst, first, src, first, n, ~0u);
	return 0;
}

/* Copies `n` entries of `src`, from `from` on, to `dst`, from `to` on. */
__noinline int chunk_copy(struct page_chunk *dst, __u32 to, struct page_chunk *src, __u32 from, __u32 n)
{
	copy_entries(dst, to, src, from, n, 0);
	return 0;
}

struct use_ctx {
	struct page_chunk *chunk;
	__u32 any;
	__u32 pad;
};

static long collect_some(__u64 i, struct use_ctx *c)
{
#pragma unroll
	for (__u32 j = 0; j < ENTRY_STEPS; j++)
		c->any |= c->chunk->stack[INDEX(i * ENTRY_STEPS + j, CHUNK_PAGES)];
	return c->any != 0;
}

/* Whether a chunk has a record. */
static __always_inline int chunk_in_use(struct page_chunk *chunk)
{
	struct use_ctx c = { .chunk = chunk };

	bpf_loop(CHUNK_PAGES / ENTRY_STEPS, collect_some, &c, 0);
	return c.any != 0;
}

/* A range of pages in an address space. */
struct range {
	__u32 mm_id;
	__u32 pad;
	__u64 first; /* pages */
	__u64 end;
};

/* The number of chunks that a nonempty range spans, at most MAX_LOOPS. */
static __always_inline __u32 chunks_of(const struct range *r)
{
	__u64 n = ((r->end - 1) >> CHUNK_SHIFT) - (r->first >> CHUNK_SHIFT) + 1;

	return n < MAX_LOOPS ? n : MAX_LOOPS;
}

/*
 * The key of the range's next chunk, at or after `*at`, that may be in the ledger; NO_CHUNK if there is none. Sets
 * `*at` to the key after it.
 */
static __always_inline __u64 next_in_range(const struct range *r, __u64 *at)
{
	__u64 key = directory_next(*at);

	if (key > chunk_key(r->mm_id, r->end - 1))
		return NO_CHUNK;
	*at = key + 1;
	return key;
}

static __always_inline __u64 base_of_key(__u64 key)
{
	return (key & ((1ull << REGION_BITS) - 1)) << CHUNK_SHIFT;
}

/*
 * Intersects the chunk that begins at page `base` with the range. Returns the index of the first common page, and sets
 * the number of common pages.
 */
static __always_inline __u32 clip_to_range(const struct range *r, __u64 base, __u32 *n)
{
	__u32 from = base < r->first ? r->first - base : 0;

	*n = (base + CHUNK_PAGES > r->end ? r->end - base : CHUNK_PAGES) - from;
	return from;
}

static __always_inline void clear_chunk(const struct range *r, __u64 key)
{
	__u32 n, from = clip_to_range(r, base_of_key(key), &n);
	struct page_chunk *chunk;

	if (n == CHUNK_PAGES) {
		chunk_drop(key);
		return;
	}
	chunk = chunk_find(key);
	if (chunk)
		chunk_fill(chunk, from, n, STACK_NONE);
}

struct clear_ctx {
	struct range r;
	__u64 at;
	__u64 done; /* the whole range is cleared */
};

static long clear_next(__u64 i, struct clear_ctx *c)
{
	__u64 key = next_in_range(&c->r, &c->at);

	if (key == NO_CHUNK) {
		c->done = 1;
		return 1;
	}
	clear_chunk(&c->r, key);
	return 0;
}

/* Removes the records of the pages [first, end). */
__noinline int ledger_clear(__u32 mm_id, __u64 first, __u64 end)
{
	struct clear_ctx c = { .r = { .mm_id = mm_id, .first = first, .end = end } };

	if (end <= first)
		return 0;
	c.at = chunk_key(mm_id, first);
	if (chunks_of(&c.r) == 1)
		clear_chunk(&c.r, c.at);
	else
		bpf_loop(chunks_of(&c.r), clear_next, &c, 0);
	return 0;
}

struct move_ctx {
	struct range from;
	__u64 dst; /* destination of the first page */
	__u64 at;
};

/* Copies the records of `n` pages. The pages at `src` lie in one chunk, and so do the pages at `dst`. */
__noinline int move_part(__u32 mm_id, __u64 src, __u64 dst, __u32 n)
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

/* Copies the records in the range from the chunk that begins at page `base`. */
static __always_inline void move_chunk(struct move_ctx *m, __u64 base)
{
	__u32 n, from = clip_to_range(&m->from, base, &n);
	__u64 src = base + from, dst = m->dst + (src - m->from.first);
	/* The destination spans at most two chunks. */
	__u32 head = CHUNK_PAGES - (dst & (CHUNK_PAGES - 1));

	if (head > n)
		head = n;
	move_part(m->from.mm_id, src, dst, head);
	if (n > head)
		move_part(m->from.mm_id, src + head, dst + head, n - head);
}

static long move_next(__u64 i, struct move_ctx *m)
{
	__u64 key = next_in_range(&m->from, &m->at);

	if (key == NO_CHUNK)
		return 1;
	move_chunk(m, base_of_key(key));
	return 0;
}

/* Moves the records of `n` pages from page `src` to page `dst`. */
__noinline int ledger_move(__u32 mm_id, __u64 src, __u64 dst, __u64 n)
{
	struct move_ctx m = {
		.from = { .mm_id = mm_id, .first = src, .end = src + n },
		.dst = dst,
		.at = chunk_key(mm_id, src),
	};

	if (!n)
		return 0;
	bpf_loop(chunks_of(&m.from), move_next, &m, 0);
	return ledger_clear(mm_id, src, src + n);
}

/* User space runs the next three programs (BPF_PROG_TEST_RUN). They are not attached. */

/* The result of next_chunk(): the key of a chunk, or NO_CHUNK. */
__u64 chunk_after;

/* Finds the first chunk at or after `key` in the same address space. */
SEC("raw_tp")
int BPF_PROG(next_chunk, __u64 key)
{
	chunk_after = directory_next(key);
	return 0;
}

/* Removes at most `max` chunks of an ended address space. Returns 1 if chunks are left. */
SEC("raw_tp")
int BPF_PROG(forget_space, __u32 mm_id, __u32 max)
{
	struct clear_ctx c = { .r = { .mm_id = mm_id, .end = (CHUNK_NUMBER_MASK + 1) << CHUNK_SHIFT } };

	c.at = chunk_key(mm_id, 0);
	bpf_loop(max & (MAX_LOOPS - 1), clear_next, &c, 0);
	return !c.done;
}

/*
 * Drops a chunk without records. A fault recorded in it at this very moment is lost; its page is then attributed to the
 * call that mapped it.
 */
SEC("raw_tp")
int BPF_PROG(drop_empty_chunk, __u64 key)
{
	struct page_chunk *chunk = chunk_find(key);

	if (!chunk || chunk_in_use(chunk))
		return 0;
	chunk_drop(key);
	return 1;
}

#endif
