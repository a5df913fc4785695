/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Followed processes that the kernel's out-of-memory killer has chosen.
 */
#ifndef MEMPROF_OOM_H
#define MEMPROF_OOM_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"

/* In task_struct's flags since 2.6: the thread has begun to exit. */
#define PF_EXITING 0x4

/*
 * 6.9 "mm: update mark_victim tracepoints fields" (72ba14deb40a) passes the thread, and records its user; so do later
 * releases of stable series (6.1.192). Before, the tracepoint has the thread's id in the initial pid namespace.
 */
struct trace_event_raw_mark_victim {
	__u32 uid;
} __attribute__((preserve_access_index));

/*
 * The id of the process that has the thread that was marked, in the initial pid namespace; 0 if it is not killed: a
 * process that exits by itself may be marked, too, so that it gets the memory that it needs for that.
 */
static __always_inline __u32 find_victim(__u64 marked)
{
	struct task_struct *task = (void *)marked, *current;

	if (bpf_core_field_exists(struct trace_event_raw_mark_victim, uid))
		return BPF_CORE_READ(task, flags) & PF_EXITING ? 0 : BPF_CORE_READ(task, tgid);
	/* Mostly the thread that needs memory is the one that is killed. Any other is taken for the first of its process,
	 * which it is unless that one has ended before the others. */
	current = bpf_get_current_task_btf();
	if (current->pid != (pid_t)marked)
		return marked;
	return current->flags & PF_EXITING ? 0 : current->tgid;
}

/*
 * SIGKILL was sent just before: often the process is gone before user space has read this. Woken at once all the same: the
 * memory of a command is kept (kept.rs), but the kernel takes it by force after two seconds.
 */
SEC("raw_tp/mark_victim")
int BPF_PROG(oom_kill, __u64 marked)
{
	struct oom_event e = { .kind = EVENT_OOM_KILL, .at = bpf_ktime_get_ns() };
	__u32 tgid = find_victim(marked);
	struct proc_info *proc = bpf_map_lookup_elem(&procs, &tgid);

	if (!proc)
		return 0;
	e.mm_id = proc->mm_id;
	e.pid = proc->pid;
	if (emit_now(&e, sizeof(e)))
		count_loss(LOSS_RING_OOM_KILL);
	return 0;
}

#endif
