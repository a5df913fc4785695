// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The probe. README.md has the reading order of the headers: a page fault first, from fault_user() to
 * record_allocation(). The other hooks have one header per group:
 *
 *  - space.bpf.h: address-space changes by mmap, munmap, mremap, brk, madvise and mlock; calls.bpf.h hooks these calls
 *  - peak.bpf.h: the peak of a process's memory
 *  - lifecycle.bpf.h: processes: fork, exec, exit
 *  - cache.bpf.h: page cache
 *  - kernel.bpf.h: kernel memory (--kernel)
 *  - oom.bpf.h: processes that the kernel's out-of-memory killer chooses
 *  - names.bpf.h: perf maps and jitdump files of runtimes with JIT code
 *  - samples.bpf.h: sampled allocations, their frees, and marks of the program (--heap)
 *  - exact.bpf.h: every allocation and free (--heap=exact)
 */
#include "base.bpf.h"
#include "cache.bpf.h"
#include "calls.bpf.h"
#include "compat.bpf.h"
#include "exact.bpf.h"
#include "fault.bpf.h"
#include "kernel.bpf.h"
#include "lifecycle.bpf.h"
#include "names.bpf.h"
#include "oom.bpf.h"
#include "samples.bpf.h"
#include "space.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void do_pending(void)
{
	struct task_state *st = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	__u32 kind;

	if (!st) {
		count_loss(LOSS_TASK_STATE);
		return;
	}
	kind = st->pending.kind;
	st->pending.kind = PENDING_NONE;
	if (kind == PENDING_FAULT) {
		record_fault(st);
	} else if (kind == PENDING_RANGE) {
		record_range(st);
	} else if (kind == PENDING_ALLOCATION) {
		record_allocation(st);
		if (!st->pending.order)
			st->fault_address = 0;
	}
}

/* Does pending work where fault_user() is not loaded: on 64-bit ARM, and with `--stacks off`. */
REENTRANT("raw_tp", walk_pending, after_stack)
{
	do_pending();
}

/* Adds these types to the program's BTF, from which the skeleton generates the Rust types. */
#define EXPORT(type) type _##type SEC(".rodata.types")
struct EXPORT(stack_event) = {};
struct EXPORT(process_event) = {};
struct EXPORT(range_event) = {};
struct EXPORT(code_event) = {};
struct EXPORT(function_event) = {};
struct EXPORT(interpreter_file) = {};
struct EXPORT(function_key) = {};
enum EXPORT(python_frames) = 0;
enum EXPORT(interpreter_kind) = 0;
struct EXPORT(names_event) = {};
struct EXPORT(sample_event) = {};
struct EXPORT(mark_event) = {};
struct EXPORT(oom_event) = {};
struct EXPORT(peak_event) = {};
enum EXPORT(rss_counter) = 0;
struct EXPORT(sample_probe) = {};
struct EXPORT(exact_sum) = {};
enum EXPORT(exact_flag) = 0;
enum EXPORT(argument_place) = 0;
enum EXPORT(limits) = 0;
enum EXPORT(stack_ids) = 0;
enum EXPORT(page_record) = 0;
enum EXPORT(event_kind) = 0;
enum EXPORT(outcome) = 0;
enum EXPORT(unwind_mode) = 0;
enum EXPORT(walk_mode) = 0;
enum EXPORT(process_change) = 0;
enum EXPORT(range_change) = 0;
enum EXPORT(range_flag) = 0;
enum EXPORT(frame_bits) = 0;
enum EXPORT(cfa_kind) = 0;
enum EXPORT(fp_kind) = 0;
enum EXPORT(rule_flag) = 0;
enum EXPORT(slot_state) = 0;
enum EXPORT(loss) = 0;
