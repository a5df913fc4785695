/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The peak of a process's memory. RSS falls when a call drops a range, and the records of its pages are about to be
 * cleared then. If RSS was higher than ever before, all records of the address space are copied first, and user space
 * joins the copy with the pages that stay. A call that drops a small part changes little: the state after it is still
 * nearly that of the peak, so the copy is made when a drop would leave RSS below the peak by 1/PEAK_PART. A process that
 * grows while it frees a little costs nothing but the comparison.
 *
 * Kernels compute VmHWM in the same way, from the same counters: just before something shrinks.
 */
#ifndef MEMPROF_PEAK_H
#define MEMPROF_PEAK_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "ledger.bpf.h"
#include "stacks.bpf.h"

/*
 * A peak is new if it is higher than the last one by this part, and a drop that keeps RSS within this part of the peak
 * is too small to matter. So a copied state has at least 127/128 * 127/128 of the highest RSS, more than 98.4 %.
 */
#define PEAK_PART 128
/* Lower peaks matter to nobody. Pages: without it, a process that starts would have dozens. */
#define PEAK_LEAST 64
/* Maximum number of copied chunks. Each takes about a microsecond, while the thread cannot be preempted. */
#define PEAK_CHUNKS 16384

/* User space does not want to know of peaks up to this one, in pages. */
__u32 peak_floor = ~0u;
/* Whether user space cannot read an address space after the end of its process. */
__u32 peak_at_exit = 0;

struct copy_ctx {
	__u64 at;
	__u32 mm_id;
	__u32 copy_id;
	__u32 done; /* all records are copied */
	__u32 pad;
};

/* Copies a chunk. Returns nonzero if the ledger is full. Global: verified once. */
__noinline int copy_chunk(__u64 from, __u64 to)
{
	struct page_chunk *chunk = chunk_find(from);

	if (!chunk)
		return 0;
	if (bpf_map_update_elem(&pages, &to, chunk, BPF_NOEXIST))
		return 1;
	__sync_fetch_and_add(&page_chunks, 1);
	if (directory_add(to)) {
		if (bpf_map_delete_elem(&pages, &to) == 0)
			__sync_fetch_and_sub(&page_chunks, 1);
		return 1;
	}
	if (stacks_collected)
		use_stacks(chunk_find(to));
	return 0;
}

static long copy_next(__u64 i, struct copy_ctx *c)
{
	__u64 key = directory_next(c->at);

	if (key > chunk_key(c->mm_id, CHUNK_NUMBER_MASK << CHUNK_SHIFT)) {
		c->done = 1;
		return 1;
	}
	c->at = key + 1;
	/* The compiler knows that the result is 0 or 1; 6.1's verifier wants to see it. */
	return INDEX(copy_chunk(key, chunk_key(c->copy_id, base_of_key(key))), 2);
}

/*
 * Whether a new peak is about to be dropped with `pages` of its pages. Only one of several threads that drop it at the
 * same time gets an answer other than 0.
 */
static __always_inline int drops_peak(struct mm_info *mm, __u64 rss, __u64 pages)
{
	__u64 copied = *(volatile __u64 *)&mm->peak_copied, seen = *(volatile __u64 *)&mm->peak_seen;

	if (rss > seen)
		*(volatile __u64 *)&mm->peak_seen = seen = rss;
	if (seen <= copied + copied / PEAK_PART + PEAK_LEAST || rss <= copied)
		return 0;
	if (rss > pages && rss - pages >= seen - seen / PEAK_PART)
		return 0;
	return __sync_val_compare_and_swap(&mm->peak_copied, copied, rss) == copied;
}

/* An address space, and the resident pages of all others that are followed and listed. */
struct others_ctx {
	__u64 mm;
	__u64 pages;
	__u32 seen;
	__u32 pad;
};

/*
 * Up to 6.15, a process that exits is followed for some microseconds after it has lost its address space. The read cannot
 * fail, but may then find a counter of 0, or of a new process that has got the memory of the mm_struct.
 */
static long add_resident(__u64 i, struct others_ctx *c)
{
	__u64 address = listed_mms[INDEX(i, LISTED_MMS)];
	struct mm_struct *mm = (void *)address;

	if (!address)
		return 0;
	if (address != c->mm)
		c->pages += MM_COUNTER(mm, RSS_FILE) + MM_COUNTER(mm, RSS_ANON) + MM_COUNTER(mm, RSS_SHMEM);
	return ++c->seen >= nr_listed_mms;
}

/*
 * Called before the pages [first, end) are dropped, while their records exist. Global: verified once.
 */
__noinline int before_drop(__u32 mm_id, __u64 first, __u64 end)
{
	struct peak_event e = { .kind = EVENT_PEAK, .mm_id = mm_id };
	struct mm_struct *mm = BPF_CORE_READ(bpf_get_current_task_btf(), mm);
	struct copy_ctx c = { .mm_id = mm_id };
	struct others_ctx others = { .mm = (__u64)mm };
	struct mm_info *info;
	__u64 rss;

	if (!mm)
		return 0;
	e.rss[RSS_FILE] = MM_COUNTER(mm, RSS_FILE);
	e.rss[RSS_ANON] = MM_COUNTER(mm, RSS_ANON);
	e.rss[RSS_SHMEM] = MM_COUNTER(mm, RSS_SHMEM);
	rss = e.rss[RSS_FILE] + e.rss[RSS_ANON] + e.rss[RSS_SHMEM];
	if (rss <= peak_floor)
		return 0;
	info = find_mm(mm);
	if (!info || info->mm_id != mm_id || !drops_peak(info, rss, end - first))
		return 0;
	e.rss[RSS_SWAP] = MM_COUNTER(mm, RSS_SWAP);
	e.highest_rss = BPF_CORE_READ(mm, hiwater_rss);
	bpf_loop(LISTED_MMS, add_resident, &others, 0);
	e.others = others.pages;
	e.at = bpf_ktime_get_ns();
	e.start = first << page_shift;
	e.end = end << page_shift;
	e.copy_id = c.copy_id = __sync_fetch_and_add(&next_mm_id, 1);
	c.at = chunk_key(mm_id, 0);
	bpf_loop(PEAK_CHUNKS, copy_next, &c, 0);
	e.incomplete = !c.done;
	/* The sooner user space scans what stays, the less has changed. */
	if (emit_now(&e, sizeof(e)))
		count_loss(LOSS_RING_PEAK);
	return 0;
}

/* Called before each drop: in most cases, that costs a comparison of counters. */
static __always_inline void note_drop(__u32 mm_id, __u64 first, __u64 end)
{
	if (~peak_floor)
		before_drop(mm_id, first, end);
}

/* Called before a process drops its whole address space. */
static __always_inline int note_drop_of_all(struct task_struct *task, __u32 mm_id)
{
	/* A child of vfork() gives its parent's address space back. */
	if (!BPF_CORE_READ(task, vfork_done))
		note_drop(mm_id, 0, (CHUNK_NUMBER_MASK + 1) << CHUNK_SHIFT);
	return 0;
}

/*
 * Called before a process executes a program. What a child of fork() has until then is its parent's memory, and no peak
 * of its own.
 */
static __always_inline int note_exec(struct task_struct *task, __u32 mm_id)
{
	struct mm_info *info = find_mm_of(task);

	return !info || info->ancestors[0] ? 0 : note_drop_of_all(task, mm_id);
}

#endif
