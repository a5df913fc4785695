/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Kernel memory that threads of followed processes had allocated: page tables, pipes, socket buffers,
 * slabs. Nothing here is loaded without --kernel: a page can be freed by anybody, so that every page
 * that anybody frees has to be looked for.
 *
 * By page, not by object, and approximate:
 *  - a page counts while a followed thread asked the page allocator for it, under that thread's stack,
 *    whoever uses it by then: a slab's other objects may be somebody else's, a forked child's first
 *    page tables are allocated by its parent;
 *  - objects in slabs that were there already do not count, nor does memory of vmalloc (the kernel
 *    stacks of threads), which is allocated in bulk without this tracepoint, nor what interrupts
 *    allocate (packets that arrive) or others that may not sleep;
 *  - of an allocation that is given back in parts, all goes with the first part.
 */
#ifndef MEMPROF_KERNEL_H
#define MEMPROF_KERNEL_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "follow.bpf.h"
#include "gfp.bpf.h"
#include "unwind.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, __u64); /* address of its struct page */
	__type(value, struct kernel_page);
} kernel_pages SEC(".maps");

__u64 kernel_allocations; /* in `kernel_pages` */

/* Entries of it per hash of the key: lets most pages that are freed go at one load. */
#define KERNEL_FILTER_BITS 16
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << KERNEL_FILTER_BITS);
	__type(key, __u32);
	__type(value, __u32);
} kernel_filter SEC(".maps");

static __always_inline __u32 *kernel_slot(__u64 page)
{
	__u32 slot = (page * 0x9e3779b97f4a7c15ull) >> (64 - KERNEL_FILTER_BITS);

	return bpf_map_lookup_elem(&kernel_filter, &slot);
}

/*
 * These are plain raw_tp programs, whose arguments are numbers: the verifier permits no arithmetic on the
 * pointers that tp_btf gives, and a page is told by its address alone.
 */

/*
 * Whether a task allocates, and not an interrupt, whose current task is any. Only who may sleep sets one
 * of these; slab and sockets take the first one off for their first try, for a larger piece. (What
 * cannot sleep in a task, with GFP_ATOMIC or GFP_NOWAIT, is missed, and with it memprof's own maps. In
 * preempt_count it would stand precisely, but kallsyms need not know where that is.)
 */
#define GFP_OF_TASK (GFP_DIRECT_RECLAIM | GFP_IO | GFP_FS)

SEC("raw_tp/mm_page_alloc")
int BPF_PROG(kernel_page_allocated, struct page *page, unsigned int order, gfp_t gfp)
{
	struct kernel_page entry = {};
	struct task_struct *task;
	struct task_state *st;
	__u64 key = (__u64)page;
	__u32 *slot;

	/* Movable pages are user memory and page cache; as large as a huge page are those of hugetlbfs. */
	if ((gfp & GFP_MOVABLE) || !(gfp & GFP_OF_TASK) || !page || order >= CHUNK_SHIFT)
		return 0;
	task = bpf_get_current_task_btf();
	if (!maybe_followed(task))
		return 0;
	st = followed(task);
	slot = kernel_slot(key);
	if (!st || st->walking || !slot)
		return 0;
	entry.stack = stack_id(st, 1);
	entry.pages = 1u << order;
	count_activity();
	if (bpf_map_update_elem(&kernel_pages, &key, &entry, BPF_NOEXIST) == 0) {
		__sync_fetch_and_add(slot, 1);
		__sync_fetch_and_add(&kernel_allocations, 1);
	} else if (bpf_map_update_elem(&kernel_pages, &key, &entry, BPF_EXIST)) { /* one whose end was missed */
		count_loss(LOSS_KERNEL_PAGES);
	}
	return 0;
}

static __always_inline int kernel_page_gone(__u64 key)
{
	__u32 *slot = kernel_slot(key);

	if (!slot || !*slot)
		return 0;
	if (bpf_map_delete_elem(&kernel_pages, &key) == 0) {
		__sync_fetch_and_sub(slot, 1);
		__sync_fetch_and_sub(&kernel_allocations, 1);
		count_activity();
	}
	return 0;
}

SEC("raw_tp/mm_page_free")
int BPF_PROG(kernel_page_freed, struct page *page, unsigned int order)
{
	return kernel_page_gone((__u64)page);
}

/* A block device's cache and that of some file systems' metadata is not movable, but no such memory. */
SEC("raw_tp/mm_filemap_add_to_page_cache")
int BPF_PROG(kernel_page_cached, struct folio *folio)
{
	return kernel_page_gone((__u64)folio);
}

#endif
