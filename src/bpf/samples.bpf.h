/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sampled allocations (--heap). A sampler inside the process fires a probe for about one allocation in 512 KiB, and
 * another one for the free of such an allocation. The probes are USDT probes. User space attaches these programs to
 * them, and writes the locations of their arguments to sample_probes. src/samples.rs evaluates the records.
 *
 * A program can set marks with a USDT probe of memprof's own.
 *
 * The probes are instructions of the process, so it can fire them with any arguments: nothing here relies on them.
 */
#ifndef MEMPROF_SAMPLES_H
#define MEMPROF_SAMPLES_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "unwind.bpf.h"

/* The probes with a listener, by the cookie of their link. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SAMPLE_PROBES);
	__type(key, __u32);
	__type(value, struct sample_probe);
} sample_probes SEC(".maps");

struct no_programs after_sample SEC(".maps");

/* The value of an argument, or 0 if it cannot be read. */
static __always_inline __u64 argument(struct pt_regs *ctx, struct probe_argument *a)
{
	__u64 value = a->value, reg = 0;
	__u32 unused = 64 - a->bits;
	/* No more than the argument is read, because it may end where the memory does. The verifier sees a size from 1 to 8. */
	__u32 bytes = ((a->bits / 8 - 1) & 7) + 1;

	if (a->place != ARGUMENT_CONSTANT) {
		bpf_probe_read_kernel(&reg, sizeof(reg), (void *)ctx + a->reg);
		value = a->place == ARGUMENT_MEMORY ? reg + value : reg;
	}
	if (a->place == ARGUMENT_MEMORY && bpf_probe_read_user(&value, bytes, (void *)value))
		return 0;
	if (unused > 56)
		return value;
	return a->is_signed ? (__u64)((__s64)(value << unused) >> unused) : value << unused >> unused;
}

/* The argument locations of the probe that fired. */
static __always_inline struct sample_probe *hit_probe(struct pt_regs *ctx)
{
	__u32 cookie = bpf_get_attach_cookie(ctx);

	return bpf_map_lookup_elem(&sample_probes, &cookie);
}

/*
 * Sends a record of the probe that fired. Not inline: little of the 512 bytes of stack is left where stacks are walked,
 * see README.md.
 */
static __noinline int send_sample(struct pt_regs *ctx, struct task_state *st, __u32 stack)
{
	struct sample_probe *probe = hit_probe(ctx);
	struct sample_event e = {};

	if (!probe)
		return 0;
	e.kind = stack ? EVENT_ALLOCATION : EVENT_FREE;
	e.mm_id = st->mm_id;
	e.tid = (__u32)bpf_get_current_pid_tgid();
	e.stack_id = stack;
	e.at = bpf_ktime_get_ns();
	e.address = argument(ctx, &probe->argument[0]);
	if (stack) {
		e.size = argument(ctx, &probe->argument[1]);
		e.weight = argument(ctx, &probe->argument[2]);
	}
	count_activity();
	if (emit(&e, sizeof(e)))
		count_loss(stack ? LOSS_RING_ALLOCATION : LOSS_RING_FREE);
	return 0;
}

REENTRANT("uprobe", allocation_sampled, after_sample)
{
	struct task_state *st = followed_state(bpf_get_current_task_btf());

	if (st)
		send_sample(ctx, st, stack_id(st, 0));
}

REENTRANT("uprobe", sample_freed, after_sample)
{
	struct task_state *st = followed_state(bpf_get_current_task_btf());

	if (st)
		send_sample(ctx, st, STACK_NONE);
}

/* Sends a mark. Not inline, for the same reason. */
static __noinline int send_mark(struct pt_regs *ctx, struct task_state *st)
{
	struct sample_probe *probe = hit_probe(ctx);
	struct mark_event e = {};
	long length;

	if (!probe)
		return 0;
	e.kind = EVENT_MARK;
	e.mm_id = st->mm_id;
	e.at = bpf_ktime_get_ns();
	length = bpf_probe_read_user_str(e.name, sizeof(e.name), (void *)argument(ctx, &probe->argument[0]));
	e.length = length > 0 ? length - 1 : 0;
	count_activity();
	if (emit_now(&e, sizeof(e)))
		count_loss(LOSS_RING_MARK);
	return 0;
}

REENTRANT("uprobe", mark_set, after_sample)
{
	struct task_state *st = followed_state(bpf_get_current_task_btf());

	if (st)
		send_mark(ctx, st);
}

#endif
