/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Copy-on-write children that a heap snapshot makes of a followed process (freeze/guard.rs). The children are not
 * followed. While a child lives, a write of the process to a page shared with the child copies the page, and the copy
 * keeps its owner.
 */
#ifndef MEMPROF_SNAPSHOTS_H
#define MEMPROF_SNAPSHOTS_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "cow_children.bpf.h"
#include "follow.bpf.h"

/* The address space that a child is a snapshot of. */
struct snapshot_of {
	__u64 mm;
	__u32 mm_id;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct snapshot_of);
} snapshots SEC(".maps");
/* Number of entries in `snapshots`. */
__u32 nr_snapshots = 0;

/*
 * Whether a new process is a snapshot: it is traced, and sends its parent no signal at its end. No process of a program
 * does both.
 */
static __always_inline int is_snapshot(struct task_struct *child)
{
	return child->ptrace && !child->exit_signal;
}

static __noinline int snapshot_begins(struct mm_info *parent, struct mm_struct *mm, __u32 tgid)
{
	struct snapshot_of snapshot = { .mm = (__u64)mm };

	if (!parent)
		return 0;
	snapshot.mm_id = parent->mm_id;
	if (bpf_map_update_elem(&snapshots, &tgid, &snapshot, BPF_NOEXIST)) {
		count_loss(LOSS_COW_CHILDREN);
		return 0;
	}
	__sync_fetch_and_add(&parent->snapshots, 1);
	__sync_fetch_and_add(&nr_snapshots, 1);
	return 0;
}

/*
 * Handles a reaped process. If it was a snapshot, it shares no more pages. Up to 6.15, the address space of an exiting
 * process is gone unless another process reads it. Later kernels report the exit before that, and pages are copied
 * until the address space is gone.
 */
static __noinline int snapshot_ends(__u32 tgid)
{
	struct snapshot_of *snapshot = bpf_map_lookup_elem(&snapshots, &tgid);
	struct mm_info *of;

	if (!snapshot)
		return 0;
	of = bpf_map_lookup_elem(&mms, &snapshot->mm);
	if (of && of->mm_id == snapshot->mm_id)
		__sync_fetch_and_sub(&of->snapshots, 1);
	bpf_map_delete_elem(&snapshots, &tgid);
	__sync_fetch_and_sub(&nr_snapshots, 1);
	return 0;
}

/*
 * Whether a page that is copied in the current address space inherits its owner from the shared page, or stays without
 * one. Copies the records of ancestors. A private page of a file is copied like a page shared with a snapshot: they are
 * indistinguishable here.
 */
__noinline int inherit_owner(__u64 vpage)
{
	struct mm_info *info = nr_snapshots ? find_mm_of(bpf_get_current_task_btf()) : NULL;

	if (!info || !info->snapshots)
		return 0;
	for (int i = 0; i < MAX_ANCESTORS; i++)
		copy_record_to_child(info->mm_id, vpage, find_record(info->ancestors[i], vpage));
	return 1;
}

#endif
