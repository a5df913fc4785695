/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Functions with a probe at their return (uretprobe). While such a function runs, its return address on the stack is an
 * address in a page of the kernel's, which knows the real return address.
 */
#ifndef MEMPROF_RETURNS_H
#define MEMPROF_RETURNS_H

#include "base.bpf.h"

/* 3.10 "uretprobes: Prepare uretprobe infrastructure" and later; `stack` since 4.3 (7b868e4802a8). */
struct return_instance___probed {
	unsigned long stack; /* address of the return address on the stack */
	unsigned long orig_ret_vaddr;
	struct return_instance___probed *next;
} __attribute__((preserve_access_index));

struct uprobe_task___probed {
	struct return_instance___probed *return_instances;
} __attribute__((preserve_access_index));

struct task_struct___probed {
	struct uprobe_task___probed *utask;
} __attribute__((preserve_access_index));

/* Maximum number of nested calls with a probed return in a lookup. */
#define PROBED_RETURNS 8

/*
 * The real return address of the current task's function whose return address is at `at` on the stack; 0 if its return
 * has no probe. Global: verified once.
 */
__noinline __u64 probed_return(__u64 at)
{
#if defined(__bpf__) /* not in the test that compiles the walk for user space */
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct return_instance___probed *call = NULL;

	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(call->orig_ret_vaddr))
		return 0;
	call = BPF_CORE_READ(task, utask, return_instances);
	for (int i = 0; i < PROBED_RETURNS && call; i++) {
		if (BPF_CORE_READ(call, stack) == at)
			return BPF_CORE_READ(call, orig_ret_vaddr);
		call = BPF_CORE_READ(call, next);
	}
#endif
	return 0;
}

/* Whether a return address may be the kernel's, which is at the start of a page. */
static __always_inline int may_be_probed(__u64 address)
{
	return address && !(address & 4095);
}

#endif
