/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * After fork, a child shares pages with its parent, and only the parent has records of them. Before a page of the
 * parent is replaced or unmapped, each living child copies the record.
 */
#ifndef MEMPROF_COW_CHILDREN_H
#define MEMPROF_COW_CHILDREN_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "follow.bpf.h"
#include "ledger.bpf.h"
#include "stacks.bpf.h"

/* Registers a child that shares its parent's pages from now on. */
static __noinline int add_cow_child(struct mm_info *parent, __u32 mm_id)
{
	if (!parent)
		return 0;
	for (int i = 0; i < MAX_COW_CHILDREN; i++) {
		if (__sync_val_compare_and_swap(&parent->cow_children[i], 0, mm_id) == 0) {
			__sync_fetch_and_add(&parent->nr_cow_children, 1);
			return 0;
		}
	}
	count_loss(LOSS_COW_CHILDREN);
	return 0;
}

/* Unregisters a child that has exited or has a new address space. */
static __noinline int remove_cow_child(__u64 parent_mm, __u32 mm_id)
{
	struct mm_info *parent = bpf_map_lookup_elem(&mms, &parent_mm);

	if (!parent)
		return 0;
	for (int i = 0; i < MAX_COW_CHILDREN; i++)
		if (__sync_val_compare_and_swap(&parent->cow_children[i], mm_id, 0) == mm_id)
			__sync_fetch_and_sub(&parent->nr_cow_children, 1);
	return 0;
}

static __always_inline __u32 find_record(__u32 mm_id, __u64 vpage)
{
	struct page_chunk *chunk = mm_id ? chunk_find(chunk_key(mm_id, vpage)) : NULL;

	return chunk ? chunk->stack[vpage & (CHUNK_PAGES - 1)] : STACK_NONE;
}

/* Copies a record to a child, unless the child has its own record. Global: verified once. */
__noinline int copy_record_to_child(__u32 child, __u64 vpage, __u32 stack)
{
	struct page_chunk *chunk = child ? chunk_get(chunk_key(child, vpage)) : NULL;

	if (chunk && chunk->stack[vpage & (CHUNK_PAGES - 1)] == STACK_NONE)
		chunk->stack[vpage & (CHUNK_PAGES - 1)] = stack >= STACK_FIRST ? stack | RECORD_INHERITED : stack;
	return 0;
}

/*
 * The current address space gets its own page in place of a shared one; `own` is its record, or STACK_NONE. The
 * children keep the shared page even if no record of it exists: the new page's record does not apply to them.
 */
__noinline int copy_page_to_children(__u64 vpage, __u32 own)
{
	struct mm_info *info = find_mm_of(bpf_get_current_task_btf());

	if (!info || !info->nr_cow_children)
		return 0;
	for (int i = 0; i < MAX_ANCESTORS && own == STACK_NONE; i++)
		own = find_record(info->ancestors[i], vpage);
	if (own == STACK_NONE)
		own = STACK_UNRECORDED;
	if (stacks_collected)
		use_stack(own);
	for (int i = 0; i < MAX_COW_CHILDREN; i++)
		copy_record_to_child(info->cow_children[i], vpage, own);
	return 0;
}

struct inherit_ctx {
	struct range lost;
	__u32 child;
	__u32 pad;
	__u64 at;
};

static __always_inline void inherit_chunk(struct inherit_ctx *c, __u64 base)
{
	struct page_chunk *own = chunk_find(chunk_key(c->lost.mm_id, base));
	__u32 n, from = clip_to_range(&c->lost, base, &n);
	struct page_chunk *child;

	if (!own)
		return;
	child = chunk_get(chunk_key(c->child, base));
	if (child)
		chunk_inherit(child, own, from, n);
	if (child && stacks_collected)
		use_stacks(child);
}

static long inherit_next(__u64 i, struct inherit_ctx *c)
{
	__u64 key = next_in_range(&c->lost, &c->at);

	if (key == NO_CHUNK)
		return 1;
	inherit_chunk(c, base_of_key(key));
	return 0;
}

/* Copies the parent's records of the pages [first, end) to a child. Global: verified once. */
__noinline int inherit_range(__u32 child, __u32 mm_id, __u64 first, __u64 end)
{
	struct inherit_ctx c = {
		.lost = { .mm_id = mm_id, .first = first, .end = end },
		.child = child,
		.at = chunk_key(mm_id, first),
	};

	if (end > first)
		bpf_loop(chunks_of(&c.lost), inherit_next, &c, 0);
	return 0;
}

/* The current address space is about to lose the pages [first, end). */
__noinline int copy_range_to_children(__u32 mm_id, __u64 first, __u64 end)
{
	struct mm_info *info = find_mm_of(bpf_get_current_task_btf());

	if (!info || !info->nr_cow_children)
		return 0;
	for (int i = 0; i < MAX_COW_CHILDREN; i++)
		if (info->cow_children[i])
			inherit_range(info->cow_children[i], mm_id, first, end);
	return 0;
}

#endif
