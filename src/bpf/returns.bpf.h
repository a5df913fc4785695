/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Functions whose return has a probe (uretprobe): while they run, their return address on the stack is that of a page of
 * the kernel's, which knows the right one.
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

/* Calls with a probed return, one within the other, that are looked through. */
#define PROBED_RETURNS 8

/* The address to which the current task's function returns whose return address is at `at` on the stack; 0 if its return
 * has no probe. (Global: verified once.) */
__noinline __u64 probed_return(__u64 at)
{
#if defined(__bpf__) /* (A test compiles the walk for user space.) */
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

/* Whether a return address may be that of the kernel's page: its first byte. */
static __always_inline int may_be_probed(__u64 address)
{
	return address && !(address & 4095);
}

#endif
