/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Kernel memory that threads of followed processes allocated: page tables, pipes, socket buffers, slabs. Loaded only
 * with --kernel: any task can free such a page, so every page free in the system has to be checked.
 *
 * Accounting is per page, not per object, and approximate:
 *
 *  - A page counts if a followed thread requested it from the page allocator, under the stack of that thread,
 *    regardless of later users: other objects in a slab may belong to other processes, and a parent allocates the first
 *    page tables of a forked child.
 *  - These do not count: objects in slabs that existed before; vmalloc memory (such as kernel stacks of threads), which
 *    is allocated in bulk without this tracepoint; allocations by interrupts (incoming packets), and other allocations
 *    that must not sleep.
 *  - An allocation that is freed in pieces is removed as a whole with its first piece.
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
	__type(key, __u64); /* address of the struct page */
	__type(value, struct kernel_page);
} kernel_pages SEC(".maps");

__u64 kernel_allocations; /* entries in `kernel_pages` */

/* Number of entries per hash of the key: most page frees end after one load. */
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
 * The programs here are plain raw_tp programs, whose arguments are integers. The verifier permits no arithmetic on the
 * pointers of tp_btf programs, and the address alone identifies a page.
 */

/*
 * Flags that distinguish a task's allocation from one in an interrupt, where the current task is arbitrary. Only
 * allocations that may sleep have one of these flags. Slabs and sockets clear __GFP_DIRECT_RECLAIM on their first
 * attempt at a larger block. Task allocations that must not sleep (GFP_ATOMIC, GFP_NOWAIT) are missed, including those
 * of memprof's own maps. preempt_count would be exact, but kallsyms may not have its address.
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

	/* Movable pages are user memory and page cache. Orders of a huge page and above are hugetlbfs pages. */
	if ((gfp & GFP_MOVABLE) || !(gfp & GFP_OF_TASK) || !page || order >= CHUNK_SHIFT)
		return 0;
	task = bpf_get_current_task_btf();
	if (!task_may_be_followed(task))
		return 0;
	st = followed_state(task);
	slot = kernel_slot(key);
	if (!st || st->walking || !slot)
		return 0;
	entry.stack = stack_id(st, 1);
	entry.pages = 1u << order;
	count_activity();
	if (bpf_map_update_elem(&kernel_pages, &key, &entry, BPF_NOEXIST) == 0) {
		__sync_fetch_and_add(slot, 1);
		__sync_fetch_and_add(&kernel_allocations, 1);
	} else if (bpf_map_update_elem(&kernel_pages, &key, &entry, BPF_EXIST)) { /* its free was missed */
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

/* Page cache of block devices, and some file-system metadata, is neither movable nor kernel memory. */
SEC("raw_tp/mm_filemap_add_to_page_cache")
int BPF_PROG(kernel_page_cached, struct folio *folio)
{
	return kernel_page_gone((__u64)folio);
}

#endif
