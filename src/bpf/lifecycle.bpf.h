/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The life cycle of followed processes: the task iterator finds them, or an exec matches the awaited name; they fork,
 * get a new address space, and exit.
 */
#ifndef MEMPROF_LIFECYCLE_H
#define MEMPROF_LIFECYCLE_H

#include "base.bpf.h"
#include "bind.bpf.h"
#include "cow_children.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "interpreter.bpf.h"
#include "ledger.bpf.h"
#include "mappings.bpf.h"
#include "peak.bpf.h"
#include "registers.bpf.h"
#include "settings.bpf.h"
#include "snapshots.bpf.h"

/* The flag of kernel threads in task_struct.flags. */
#define PF_KTHREAD 0x00200000

/* 1 while memprof waits for a process named `wanted_comm`. */
__u32 waiting = 0;
/* Processes that the next run of an iterator follows or forgets: pids in memprof's pid namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} wanted SEC(".maps");

static __always_inline void emit_process_with(struct task_struct *task, __u32 change, __u32 pid, __u32 mm_id,
					      __u32 parent_mm_id, __u32 parent_pid, __u64 page_tables,
					      __u64 highest_rss)
{
	struct process_event e = {
		.kind = EVENT_PROCESS,
		.change = change,
		.pid = pid,
		.mm_id = mm_id,
		.parent_mm_id = parent_mm_id,
		.parent_pid = parent_pid,
		.page_tables = page_tables,
		.highest_rss = highest_rss,
	};

	bpf_probe_read_kernel_str(e.comm, sizeof(e.comm), task->comm);
	/*
	 * User space is woken at once when the awaited process appears or the last followed process ends. Builds have
	 * thousands of other events, and a wakeup is the most expensive operation here: an interrupt, which in a
	 * virtual machine takes ten times as long as everything else at a fork.
	 */
	if (change == PROCESS_MATCHED || !followed_processes ? emit_now(&e, sizeof(e)) : emit(&e, sizeof(e)))
		count_loss(LOSS_RING_PROCESS);
}

static __always_inline void emit_process(struct task_struct *task, __u32 change, __u32 pid, __u32 mm_id,
					 __u32 parent_mm_id, __u32 parent_pid)
{
	emit_process_with(task, change, pid, mm_id, parent_mm_id, parent_pid, 0, 0);
}

/*
 * Releases the address space of a process that is no longer followed. The last user's release forgets the address
 * space.
 */
static __noinline int release_mm(__u64 mm)
{
	struct mm_info *known = bpf_map_lookup_elem(&mms, &mm);
	__u32 slot, mm_id, place;

	if (known && __sync_fetch_and_sub(&known->users, 1) == 1) {
		slot = known->slot & ((1 << MM_FILTER_BITS) - 1);
		mm_id = known->mm_id;
		place = known->place;
		if (known->parent)
			remove_cow_child(known->parent, known->mm_id);
		bpf_map_delete_elem(&mms, &mm);
		unlist_mm(place);
		bpf_map_delete_elem(&unwind_spaces, &mm_id);
		bpf_map_delete_elem(&interpreter_spaces, &mm_id);
		__sync_fetch_and_sub(&mm_filter[slot], 1);
		__sync_fetch_and_add(&follow_generation, 1);
	}
	return 0;
}

/*
 * Follows the address space of a process; `parent` is the address space from which it was forked, or NULL. Returns its
 * id, or 0 if a table is full.
 */
static __noinline __u32 follow(struct mm_struct *mm, __u32 tgid, __u32 pid, struct mm_struct *parent)
{
	struct mm_info *from = parent && parent != mm ? find_mm(parent) : NULL;
	struct mm_info *known = find_mm(mm);
	struct proc_info proc = { .mm = (__u64)mm, .pid = pid };

	if (known) {
		__sync_fetch_and_add(&known->users, 1);
		proc.mm_id = known->mm_id;
	} else {
		struct mm_info fresh = { .users = 1, .slot = mm_slot(BPF_CORE_READ(mm, mmap_base)) };

		fresh.mm_id = __sync_fetch_and_add(&next_mm_id, 1);
		if (from) {
			fresh.parent = (__u64)parent;
			fresh.ancestors[0] = from->mm_id;
			for (int i = 1; i < MAX_ANCESTORS; i++)
				fresh.ancestors[i] = from->ancestors[i - 1];
		}
		fresh.place = list_mm(mm);
		if (bpf_map_update_elem(&mms, &mm, &fresh, BPF_NOEXIST)) {
			unlist_mm(fresh.place);
			count_loss(LOSS_PROCESS_TABLE);
			return 0;
		}
		/* Masked again: up to 6.12 the verifier forgets a value's bounds once a helper has taken its struct. */
		__sync_fetch_and_add(&mm_filter[fresh.slot & ((1 << MM_FILTER_BITS) - 1)], 1);
		__sync_fetch_and_add(&follow_generation, 1);
		proc.mm_id = fresh.mm_id;
		add_cow_child(from, fresh.mm_id);
	}
	if (bpf_map_update_elem(&procs, &tgid, &proc, BPF_ANY)) {
		count_loss(LOSS_PROCESS_TABLE);
		/* Undo: without an entry, the exit of the process would be missed. */
		release_mm(proc.mm);
		return 0;
	}
	__sync_fetch_and_add(&followed_processes, 1);
	return proc.mm_id;
}

__noinline int unfollow(__u32 tgid)
{
	struct proc_info *proc = bpf_map_lookup_elem(&procs, &tgid);
	__u64 mm;

	if (!proc)
		return 0;
	mm = proc->mm;
	if (bpf_map_delete_elem(&procs, &tgid) == 0)
		__sync_fetch_and_sub(&followed_processes, 1);
	return release_mm(mm);
}

SEC("iter/task")
int find_process(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct mm_struct *mm;
	__u32 tgid, pid, mm_id;

	/* A kernel thread may use the memory of a process for a while. */
	if (!task || task->flags & PF_KTHREAD)
		return 0;
	/* Another thread represents a process whose first thread has ended. */
	if (task->pid != task->tgid && BPF_CORE_READ(task, group_leader, mm))
		return 0;
	pid = view_pid(task);
	if (!pid || !bpf_map_lookup_elem(&wanted, &pid))
		return 0;
	mm = read_mm(task);
	tgid = task->tgid;
	if (!mm || bpf_map_lookup_elem(&procs, &tgid) || bpf_map_lookup_elem(&snapshots, &tgid))
		return 0;
	mm_id = follow(mm, tgid, pid, NULL);
	if (mm_id)
		emit_process(task->group_leader, PROCESS_FOUND, pid, mm_id, 0, 0);
	return 0;
}

SEC("iter/task")
int forget_process(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 pid;

	if (!task || task->pid != task->tgid)
		return 0;
	pid = view_pid(task);
	return bpf_map_lookup_elem(&wanted, &pid) ? unfollow(task->tgid) : 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct mm_info *from;
	struct mm_struct *mm, *parent_mm;
	__u32 pid, mm_id, parent_mm_id, snapshot = is_snapshot(child);

	if (!(follow_forks || snapshot) || child->pid != child->tgid)
		return 0;
	mm = read_mm(child);
	parent_mm = read_mm(parent);
	from = find_mm(parent_mm);
	if (!mm || !from)
		return 0;
	if (snapshot)
		return snapshot_begins(from, parent_mm, child->tgid);
	parent_mm_id = from->mm_id;
	pid = view_pid(child);
	mm_id = follow(mm, child->tgid, pid, parent_mm);
	if (mm_id)
		copy_space(parent_mm_id, mm_id);
	if (mm_id)
		emit_process(child, PROCESS_FORKED, pid, mm_id, parent_mm_id, view_pid(parent));
	return 0;
}

static __always_inline int has_wanted_comm(struct task_struct *task)
{
	char comm[16] = {};

	bpf_probe_read_kernel_str(comm, sizeof(comm), task->comm);
	for (int i = 0; i < 16; i++)
		if (comm[i] != wanted_comm[i])
			return 0;
	return 1;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *task)
{
	__u32 tgid = task->tgid, change = PROCESS_EXECED, left = 0, pid, mm_id;
	struct proc_info *proc = bpf_map_lookup_elem(&procs, &tgid);
	struct mm_struct *mm;

	if (proc) {
		left = proc->mm_id;
		unfollow(tgid);
	} else {
		if (!waiting || !has_wanted_comm(task) || !__sync_lock_test_and_set(&waiting, 0))
			return 0;
		change = PROCESS_MATCHED;
	}
	mm = task->mm;
	pid = view_pid(task);
	mm_id = follow(mm, tgid, pid, NULL);
	if (!mm_id) {
		if (left) /* the table is full for its new address space */
			emit_process(task, PROCESS_EXITED, pid, left, 0, 0);
		return 0;
	}
	emit_process(task, change, pid, mm_id, left, 0);
	bind_program(mm_id, mm, read_user_ip(task));
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	__u32 tgid = task->tgid, pid, mm_id;
	struct proc_info *proc;
	struct mm_struct *mm;
	__u64 page_tables, rss, highest;

	/* Continue only in the last thread of the process: `live` was decremented before this tracepoint. */
	if (task->signal->live.counter)
		return 0;
	proc = bpf_map_lookup_elem(&procs, &tgid);
	if (!proc)
		return 0;
	pid = proc->pid;
	mm_id = proc->mm_id;
	/*
	 * Not task->mm: up to 6.15 it is already NULL. If nothing holds a reference to the address space, the value is
	 * junk.
	 */
	mm = (void *)proc->mm;
	page_tables = BPF_CORE_READ(mm, pgtables_bytes.counter);
	rss = MM_COUNTER(mm, RSS_FILE) + MM_COUNTER(mm, RSS_ANON) + MM_COUNTER(mm, RSS_SHMEM);
	highest = BPF_CORE_READ(mm, hiwater_rss);
	unfollow(tgid);
	emit_process_with(task, PROCESS_EXITED, pid, mm_id, read_mm(task) ? mm_id : 0, 0, page_tables,
			  rss > highest ? rss : highest);
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(process_free, struct task_struct *task)
{
	return nr_snapshots && task->pid == task->tgid ? snapshot_ends(task->tgid) : 0;
}

#endif
