/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Followed address spaces and processes, and the filter that ends events of all other processes early.
 * mm_may_be_followed() and task_may_be_followed() use the filter; followed_state() and followed_state_with_mm() return
 * the thread's state.
 */
#ifndef MEMPROF_FOLLOW_H
#define MEMPROF_FOLLOW_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "settings.bpf.h"
#include "thread.bpf.h"

__u32 next_mm_id = 1;
/*
 * Changes whenever an address space is followed or forgotten. A thread's cached mm_id of an earlier generation is
 * stale.
 */
__u32 follow_generation = 1;
__u64 followed_processes; /* in `procs` */

/*
 * Number of followed address spaces per hash of mmap_base: an event of an unrelated process ends after one load. The
 * hash is not of the mm pointer, because the verifier permits no arithmetic on it. mmap_base is random per exec; where
 * it is not, a false match costs one lookup.
 */
#define MM_FILTER_BITS 10
__u32 mm_filter[1 << MM_FILTER_BITS];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096); /* set by user space */
	__type(key, __u64);
	__type(value, struct mm_info);
} mms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096); /* set by user space */
	__type(key, __u32);
	__type(value, struct proc_info);
} procs SEC(".maps");

/*
 * The followed address spaces in an array: a loop over the hash map would visit all of its buckets, up to 262,144.
 * A new one takes the first free place, so the first places are the ones in use. If all LISTED_MMS places are in use, it is not listed.
 */
#define LISTED_MMS 4096
__u64 listed_mms[LISTED_MMS];
__u32 nr_listed_mms; /* places in use */

struct place_ctx {
	__u64 mm;
	__u32 place;
	__u32 pad;
};

static long find_place(__u64 i, struct place_ctx *c)
{
	__u32 place = INDEX(i, LISTED_MMS);

	if (listed_mms[place] || __sync_val_compare_and_swap(&listed_mms[place], 0, c->mm))
		return 0;
	c->place = place;
	return 1;
}

/* Lists an address space. Returns its place. */
static __always_inline __u32 list_mm(struct mm_struct *mm)
{
	struct place_ctx c = { .mm = (__u64)mm, .place = LISTED_MMS };

	bpf_loop(LISTED_MMS, find_place, &c, 0);
	if (c.place < LISTED_MMS)
		__sync_fetch_and_add(&nr_listed_mms, 1);
	return c.place;
}

static __always_inline void unlist_mm(__u32 place)
{
	if (place >= LISTED_MMS)
		return;
	listed_mms[INDEX(place, LISTED_MMS)] = 0;
	__sync_fetch_and_sub(&nr_listed_mms, 1);
}

static __always_inline __u32 mm_slot(__u64 mmap_base)
{
	return ((mmap_base * 0x9e3779b97f4a7c15ull) >> (64 - MM_FILTER_BITS)) & ((1 << MM_FILTER_BITS) - 1);
}

static __always_inline struct mm_info *find_mm(struct mm_struct *mm)
{
	return bpf_map_lookup_elem(&mms, &mm);
}

/*
 * A task's address space as a number, which takes longer than a load, but its verification does not: see
 * followed_state_with_mm(). For rare events.
 */
static __always_inline struct mm_struct *read_mm(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm);
}

/* The entry of a task's address space. For rare events, like read_mm(). */
static __always_inline struct mm_info *find_mm_of(struct task_struct *task)
{
	return find_mm(read_mm(task));
}

/* False if the address space is certainly not followed: in most cases, that costs one load. */
static __always_inline int mm_may_be_followed(struct mm_struct *mm)
{
	return mm && mm_filter[mm_slot(mm->mmap_base)];
}

static __always_inline int task_may_be_followed(struct task_struct *task)
{
	return mm_may_be_followed(task->mm);
}

/*
 * The state of a thread, with a current mm_id, if its address space is followed; else NULL. `mm` is task->mm: each load
 * of that field has the verifier search the kernel's types for half a millisecond.
 */
static __always_inline struct task_state *followed_state_with_mm(struct task_struct *task, struct mm_struct *mm)
{
	struct task_state *st;
	struct mm_info *info;

	if (!mm_may_be_followed(mm))
		return NULL;
	st = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return NULL;
	}
	if (st->mm != (__u64)mm || st->generation != follow_generation) {
		st->generation = follow_generation;
		st->mm = (__u64)mm;
		info = find_mm(mm);
		st->mm_id = info ? info->mm_id : 0;
	}
	return st->mm_id ? st : NULL;
}

static __always_inline struct task_state *followed_state(struct task_struct *task)
{
	return followed_state_with_mm(task, task->mm);
}

/* Translates a struct pid to a pid in memprof's own pid namespace; 0 if it has none there. Global: verified once. */
__noinline __u32 pid_in_view(__u64 address)
{
	struct pid *pid = (void *)address;
	__u32 level = BPF_CORE_READ(pid, level);

	for (__u32 i = 0; i < 32; i++) {
		struct upid upid;
		struct upid *at = &pid->numbers[0];

		if (i > level)
			break;
		/* struct upid has had the same two fields since 2.6.24. */
		bpf_probe_read_kernel(&upid, sizeof(upid), (void *)at + i * sizeof(upid));
		if (BPF_CORE_READ(upid.ns, ns.inum) == view_ns)
			return upid.nr;
	}
	return 0;
}

/* The process's pid in memprof's own pid namespace; 0 if it has none there. */
static __always_inline __u32 view_pid(struct task_struct *task)
{
	return pid_in_view((__u64)BPF_CORE_READ(task, group_leader, thread_pid));
}

#endif
