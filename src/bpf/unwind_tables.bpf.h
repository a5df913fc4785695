/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The unwind tables. Most programs have no frame pointers, but all have .eh_frame, from which user space builds these
 * tables. This header finds the rule for an address; step.bpf.h applies it.
 */
#ifndef MEMPROF_UNWIND_TABLES_H
#define MEMPROF_UNWIND_TABLES_H

#include "base.bpf.h"
#include "mappings.bpf.h"
#include "thread.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct unwind_page_key);
	__type(value, struct unwind_page);
} unwind_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct unwind_rule);
} unwind_rules SEC(".maps");

/* Row arrays are created on demand, 1 MiB each. */
struct unwind_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct unwind_rows));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 64);
	__type(key, __u32);
	__array(values, struct unwind_chunk);
} unwind_chunks SEC(".maps");

/* The last row of [first, first + n) whose pc is not above `low`. The pc of the first row never is. */
__noinline __u32 find_row(struct unwind_rows *rows, __u32 first, __u32 n, __u32 low)
{
	__u32 at = first;

	if (!rows)
		return 0;
	for (int i = 0; i < 18; i++) {
		__u32 half = n >> 1;

		if (!half)
			break;
		at += half & not_above(rows->row[INDEX(at + half, UNWIND_ROWS)] & 0xffff, low);
		n -= half;
	}
	return rows->row[INDEX(at, UNWIND_ROWS)];
}

#define NO_RULE 0xffffffff

/*
 * Recently found rules, by location: 16 bits of table, 32 bits of address. An invertible multiplication mixes the
 * location. The upper bits of the product select the entry, and the entry stores the other bits, so it matches one
 * location only. An entry is one word, so no thread reads half of another thread's write. Entries never become stale,
 * because a table never changes and its number is not reused.
 */
#define RULE_CACHE_BITS 14
#define RULE_TAG_BITS 34
#define RULE_NOT_CACHED (~0ull)
__u64 rule_cache[1 << RULE_CACHE_BITS];

static __always_inline __u64 rule_mix(__u32 table, __u64 pc)
{
	if (pc >> 32 || table >> 16)
		return RULE_NOT_CACHED;
	return ((((__u64)table << 32) | pc) * 0x9e3779b97f4a7c15ull) & ((1ull << (RULE_CACHE_BITS + RULE_TAG_BITS)) - 1);
}

/*
 * The stored bits of a mixed location, with a bit that no empty entry has. For RULE_NOT_CACHED, the tag matches no
 * entry.
 */
static __always_inline __u64 rule_tag(__u64 mixed)
{
	return (mixed & ((1ull << RULE_TAG_BITS) - 1)) | 1ull << RULE_TAG_BITS | (mixed >> 63) << 47;
}

/* The cached rule of a mixed location, or NO_RULE. */
static __always_inline __u32 cached_rule(__u64 mixed)
{
	__u64 cached = rule_cache[INDEX(mixed >> RULE_TAG_BITS, 1 << RULE_CACHE_BITS)];

	return cached >> 16 == rule_tag(mixed) ? cached & 0xffff : NO_RULE;
}

/*
 * Loads the mapping that contains `pc` into the walk. Returns whether there is one. Inlined, because calls nest at most
 * eight deep.
 */
static __always_inline int find_code(struct task_state *st, __u64 pc)
{
	struct unwind_space *space;
	struct unwind_mapping *m;
	__u32 mm_id, at, version;

	if (pc >= st->t.start && pc < st->t.end)
		return 1;
	st->t.start = st->t.end = 0;
	st->t.table = 0;
	mm_id = st->mm_id;
	space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	if (!space)
		return 0;
	version = version_of(space);
	at = find_mapping(space, pc);
	if (at >= MAX_MAPPINGS)
		return 0;
	m = &space->at[INDEX(at, MAX_MAPPINGS)];
	st->t.start = m->start;
	st->t.end = m->end;
	st->t.bias = m->bias;
	st->t.table = m->table;
	if (!(version & 1) && version_of(space) == version && pc >= st->t.start && pc < st->t.end)
		return 1;
	/* Another thread is changing the mappings. */
	st->t.start = st->t.end = 0;
	st->t.table = 0;
	return 0;
}

/*
 * Encodes a frame for sending and hashing: as a location in its file if the file has a number, else as an address. The
 * walk must still have the mapping of the frame loaded.
 */
static __always_inline __u64 encode_frame(struct task_state *st, __u64 ip)
{
	__u64 address = ip - st->t.bias;

	if (ip < st->t.start || ip >= st->t.end || !st->t.table || st->t.table >> FRAME_FILE_BITS ||
	    address >> FRAME_FILE_SHIFT)
		return ip & ~FRAME_IN_FILE; /* no user address has that bit, but junk may have it */
	return FRAME_IN_FILE | (__u64)st->t.table << FRAME_FILE_SHIFT | address;
}

/* Looks up the rule for an address in the tables; see find_rule(). */
__noinline __u32 search_rule(struct task_state *st, __u64 pc)
{
	struct unwind_page_key key;
	struct unwind_page *page;
	struct unwind_rows *rows;
	__u32 at, zero = 0;
	__u64 mixed;
	__u32 cached;
	void *chunk;

	if (!st)
		return NO_RULE;
	st->t.outcome = OUTCOME_NO_MAPPING;
	if (!find_code(st, pc))
		return NO_RULE;
	st->t.outcome = OUTCOME_NO_TABLE;
	if (!st->t.table)
		return NO_RULE;
	pc -= st->t.bias;
	mixed = rule_mix(st->t.table, pc);
	cached = cached_rule(mixed);
	if (cached != NO_RULE)
		return cached;
	key.table = st->t.table;
	key.page = pc >> 16;
	page = bpf_map_lookup_elem(&unwind_pages, &key);
	if (!page)
		return NO_RULE;
	chunk = bpf_map_lookup_elem(&unwind_chunks, &page->chunk);
	if (!chunk)
		return NO_RULE;
	rows = bpf_map_lookup_elem(chunk, &zero);
	if (!rows)
		return NO_RULE;
	at = page->rules + (find_row(rows, page->first, page->count, pc & 0xffff) >> 16);
	if (mixed != RULE_NOT_CACHED && at <= 0xffff)
		rule_cache[INDEX(mixed >> RULE_TAG_BITS, 1 << RULE_CACHE_BITS)] = rule_tag(mixed) << 16 | at;
	return at;
}

/* Whether the whole table of the walk's current file is there: code without a rule never gets one. */
static __always_inline int is_table_whole(struct task_state *st)
{
	struct unwind_page_key end = { .table = st->t.table, .page = UNWIND_TABLE_END };

	return st->t.table && bpf_map_lookup_elem(&unwind_pages, &end);
}

/*
 * The rule for an address; or NO_RULE, with the reason in the walk's outcome. The walk caches the last mapping, because
 * the next frame is often in the same one. The common case is inlined, because a call costs as much as the lookup.
 */
static __always_inline __u32 find_rule(struct task_state *st, __u64 pc)
{
	__u32 cached = NO_RULE;

	if (pc >= st->t.start && pc < st->t.end && st->t.table)
		cached = cached_rule(rule_mix(st->t.table, pc - st->t.bias));
	return cached != NO_RULE ? cached : search_rule(st, pc);
}

#endif
