/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Followed processes that the kernel's out-of-memory killer chooses.
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
 * 6.9 "mm: update mark_victim tracepoints fields" (72ba14deb40a) passes the thread and records its user, and so do
 * later releases of stable series (6.1.192). Before, the argument is the thread's id in the initial pid namespace.
 */
struct trace_event_raw_mark_victim {
	__u32 uid;
} __attribute__((preserve_access_index));

/*
 * The id of the marked thread's process, in the initial pid namespace; 0 if the process is not killed. The kernel also
 * marks a process that exits by itself, so that it gets the memory that it needs for that.
 */
static __always_inline __u32 find_victim(__u64 marked)
{
	struct task_struct *task = (void *)marked, *current;

	if (bpf_core_field_exists(struct trace_event_raw_mark_victim, uid))
		return BPF_CORE_READ(task, flags) & PF_EXITING ? 0 : BPF_CORE_READ(task, tgid);
	/*
	 * Usually the kernel kills the thread that needs memory. Any other marked thread is assumed to be the first of
	 * its process, which is wrong only if the first thread has ended before the others.
	 */
	current = bpf_get_current_task_btf();
	if (current->pid != (pid_t)marked)
		return marked;
	return current->flags & PF_EXITING ? 0 : current->tgid;
}

/*
 * SIGKILL was sent just before, so the process has often exited before user space reads this record. Wake user space at
 * once nevertheless: memprof retains the memory of a command (kept.rs), but the kernel takes it by force after two
 * seconds.
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
