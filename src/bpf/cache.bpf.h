/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The page-cache ledger: for each cached page of each file, the stack of a followed process that brought the page in.
 * Additions are recorded only while a followed process is current, removals in any context.
 */
#ifndef MEMPROF_CACHE_H
#define MEMPROF_CACHE_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "follow.bpf.h"
#include "ledger.bpf.h"
#include "unwind.bpf.h"

#define S_IFMT 00170000
#define S_IFBLK 0060000
#define HUGETLBFS_MAGIC 0x958458f6

/* Set in cache_chunk.live once the last entry is cleared: the chunk is about to be removed. */
#define CHUNK_DEAD 0x80000000u
#define CHUNK_RETRIES 8

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536); /* set by user space */
	__type(key, struct cache_key);
	__type(value, struct cache_chunk);
} cache SEC(".maps");

__u64 cache_chunks; /* entries in `cache` */

/* Number of chunks per hash of the file. A removal in an unrelated file ends after one load of this filter. */
#define FILE_FILTER_BITS 12
__u32 file_filter[1 << FILE_FILTER_BITS];

static __always_inline __u32 file_slot(const struct cache_key *key)
{
	__u64 h = (key->ino ^ ((__u64)key->dev << 32)) * 0x9e3779b97f4a7c15ull;

	return (h >> (64 - FILE_FILTER_BITS)) & ((1 << FILE_FILTER_BITS) - 1);
}

/* Fills in `key` for a folio. Returns the index of the folio's first page in the file. */
static __always_inline __u64 fill_cache_key(struct folio *folio, struct inode *inode, struct cache_key *key)
{
	__u64 index = folio->index;

	key->ino = inode->i_ino;
	key->dev = inode->i_sb->s_dev;
	key->chunk = index >> CHUNK_SHIFT;
	return index;
}

static __noinline struct cache_chunk *cache_chunk_get(struct cache_key *key)
{
	struct cache_chunk *chunk = bpf_map_lookup_elem(&cache, key);

	if (chunk)
		return chunk;
	if (insert_initial(&cache, key, &zero_chunk) == 0) {
		__sync_fetch_and_add(&file_filter[file_slot(key)], 1);
		__sync_fetch_and_add(&cache_chunks, 1);
	}
	return bpf_map_lookup_elem(&cache, key);
}

/*
 * Sets `n` entries, from `first` on. Returns the number of entries that changed between empty and not empty. Global:
 * verified once.
 */
__noinline __u32 cache_chunk_fill(struct cache_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	return chunk ? set_entries(chunk->stack, first, n, stack) : 0;
}

/* Adds entries to a chunk. Returns 0 if the chunk is about to be removed. */
static __always_inline int cache_chunk_add(struct cache_chunk *chunk, __u32 first, __u32 n, __u32 stack)
{
	__u32 fresh;

	/* The reservation prevents the removal of the chunk while entries are written. */
	if (__sync_fetch_and_add(&chunk->live, n) & CHUNK_DEAD)
		return 0;
	fresh = cache_chunk_fill(chunk, first, n, stack);
	if (fresh != n)
		__sync_fetch_and_add(&chunk->live, fresh - n);
	return 1;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(cache_add, struct folio *folio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_state *st = followed_state(task);
	struct cache_chunk *chunk;
	struct cache_key key = {};
	struct inode *inode;
	__u32 n, stack;
	__u64 index;

	if (!st || st->walking)
		return 0;
	inode = folio->mapping->host;
	n = folio_pages(folio);
	if ((inode->i_mode & S_IFMT) == S_IFBLK) {
		__sync_fetch_and_add(&losses[LOSS_BLOCK_DEVICE], n);
		return 0;
	}
	if (inode->i_sb->s_magic == HUGETLBFS_MAGIC)
		return 0;
	index = fill_cache_key(folio, inode, &key);
	if (n > CHUNK_PAGES)
		n = CHUNK_PAGES;
	stack = stack_id(st, 1);
	for (int i = 0; i < CHUNK_RETRIES; i++) {
		chunk = cache_chunk_get(&key);
		if (!chunk) {
			count_loss(LOSS_CACHE_LEDGER);
			return 0;
		}
		if (cache_chunk_add(chunk, index & (CHUNK_PAGES - 1), n, stack)) {
			count_activity();
			return 0;
		}
	}
	count_loss(LOSS_CACHE_RACE);
	return 0;
}

SEC("tp_btf/mm_filemap_delete_from_page_cache")
int BPF_PROG(cache_delete, struct folio *folio)
{
	struct cache_key key = {};
	struct cache_chunk *chunk;
	__u32 slot, gone;
	__u64 index;

	index = fill_cache_key(folio, folio->mapping->host, &key);
	slot = file_slot(&key);
	if (!file_filter[slot])
		return 0;
	chunk = bpf_map_lookup_elem(&cache, &key);
	if (!chunk)
		return 0;
	gone = cache_chunk_fill(chunk, index & (CHUNK_PAGES - 1), folio_pages(folio), STACK_NONE);
	if (!gone)
		return 0;
	count_activity();
	if (__sync_fetch_and_sub(&chunk->live, gone) != gone)
		return 0;
	/* The last entry is gone. A concurrent add either makes this exchange fail, or sees CHUNK_DEAD and retries. */
	if (__sync_val_compare_and_swap(&chunk->live, 0, CHUNK_DEAD) != 0)
		return 0;
	if (bpf_map_delete_elem(&cache, &key) == 0) {
		__sync_fetch_and_sub(&file_filter[slot], 1);
		__sync_fetch_and_sub(&cache_chunks, 1);
	}
	return 0;
}

#endif
