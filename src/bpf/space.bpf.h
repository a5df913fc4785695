/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Address-space changes of followed processes. What is dropped is forgotten when the call is
 * entered, so that a page faulted into the reused range right after it cannot lose its record;
 * what is mapped or moved is known when the call returns.
 *
 * These are per-system-call tracepoints: a process that is not followed pays for the kernel's
 * tracing path of each system call, and for a program run only on the calls named here.
 */
#ifndef MEMPROF_SPACE_H
#define MEMPROF_SPACE_H

#define PROT_EXEC 0x4
#define MAP_FIXED 0x10
#define MAP_LOCKED 0x2000
#define MAP_POPULATE 0x8000
#define MAP_FIXED_NOREPLACE 0x100000
#define MREMAP_FIXED 2
#define MADV_DONTNEED 4
#define MADV_REMOVE 9
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#define MADV_DONTNEED_LOCKED 24
#define MLOCK_ONFAULT 1
#define MCL_CURRENT 1
#define VM_LOCKED 0x2000

static __always_inline __u64 page_down(__u64 x)
{
	return x & ~((1ull << page_shift) - 1);
}

static __always_inline __u64 page_up(__u64 x)
{
	return page_down(x + (1ull << page_shift) - 1);
}

/* Who calls, if its address space is followed. */
struct caller {
	struct task_struct *task;
	struct task_state *st;
};

static __always_inline int find_caller(struct caller *c)
{
	c->task = bpf_get_current_task_btf();
	c->st = followed(c->task);
	return c->st != NULL;
}

static __always_inline void emit_range(struct range_event *e)
{
	count_activity();
	e->kind = EVENT_RANGE;
	e->pad = 0;
	/* Code is looked up while it is still mapped. */
	if (e->flags & RANGE_FLAG_CODE ? emit_now(e, sizeof(*e)) : emit(e, sizeof(*e)))
		count_loss(LOSS_RING_RANGE);
}

static __noinline int range_dropped(__u32 mm_id, __u32 change, __u64 start, __u64 len)
{
	struct range_event e = { .change = change, .mm_id = mm_id };

	e.start = page_down(start);
	e.end = page_up(start + len);
	if (e.start >= e.end || e.end >> 57)
		return 0;
	range_to_heirs(mm_id, e.start >> page_shift, e.end >> page_shift);
	ledger_clear(mm_id, e.start >> page_shift, e.end >> page_shift);
	emit_range(&e);
	return 0;
}

static __always_inline int range_mapped(struct caller *c, __u32 change, __u32 flags, __u64 start, __u64 len)
{
	struct range_event e = { .change = change, .mm_id = c->st->mm_id, .flags = flags };

	e.start = page_down(start);
	e.end = page_up(start + len);
	if (e.start >= e.end || e.end >> 57)
		return 0;
	if ((flags & RANGE_FLAG_CODE) && bind_code(c->st->mm_id, e.start))
		e.flags &= ~RANGE_FLAG_CODE;
	e.stack_id = stack_id(c->st, 0);
	emit_range(&e);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_munmap")
int enter_munmap(struct trace_event_raw_sys_enter *ctx)
{
	struct caller c;

	if (find_caller(&c))
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, ctx->args[0], ctx->args[1]);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_madvise")
int enter_madvise(struct trace_event_raw_sys_enter *ctx)
{
	struct caller c;
	__u64 advice = ctx->args[2];

	if (advice != MADV_DONTNEED && advice != MADV_DONTNEED_LOCKED && advice != MADV_REMOVE)
		return 0;
	if (find_caller(&c))
		range_dropped(c.st->mm_id, RANGE_EMPTIED, ctx->args[0], ctx->args[1]);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_mmap")
int enter_mmap(struct trace_event_raw_sys_enter *ctx)
{
	struct caller c;

	if ((ctx->args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != MAP_FIXED)
		return 0;
	if (find_caller(&c))
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, ctx->args[0], ctx->args[1]);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_brk")
int enter_brk(struct trace_event_raw_sys_enter *ctx)
{
	__u64 to = ctx->args[0];
	struct caller c;
	__u64 end;

	if (!find_caller(&c))
		return 0;
	end = c.task->mm->brk;
	c.st->brk = end;
	if (to && page_up(to) < page_up(end))
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, page_up(to), page_up(end) - page_up(to));
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_mremap")
int enter_mremap(struct trace_event_raw_sys_enter *ctx)
{
	__u64 old = ctx->args[0], old_len = page_up(ctx->args[1]), len = page_up(ctx->args[2]);
	struct caller c;

	if (!find_caller(&c))
		return 0;
	if (old_len > len && len)
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, old + len, old_len - len);
	if (ctx->args[3] & MREMAP_FIXED)
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, ctx->args[4], len);
	return 0;
}

/* Arguments of the system call that is returning; the registers still hold them. */
#define SYSCALL_ARG(n, regs) PT_REGS_PARM##n##_CORE_SYSCALL(regs)

static __always_inline int failed(long ret)
{
	return ret < 0 && ret > -4096;
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int exit_mmap(struct trace_event_raw_sys_exit *ctx)
{
	struct pt_regs *regs;
	struct caller c;
	__u32 flags = 0;

	if (failed(ctx->ret) || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	if ((SYSCALL_ARG(4, regs) & (MAP_POPULATE | MAP_LOCKED)) || (c.task->mm->def_flags & VM_LOCKED))
		flags |= RANGE_FLAG_POPULATE;
	if (SYSCALL_ARG(3, regs) & PROT_EXEC)
		flags |= RANGE_FLAG_CODE;
	return range_mapped(&c, RANGE_MAPPED, flags, ctx->ret, SYSCALL_ARG(2, regs));
}

/* JITs write code first and make it executable then, or the other way round again and again. */
static __always_inline int range_protected(struct trace_event_raw_sys_exit *ctx)
{
	struct range_event e = { .change = RANGE_EXECUTABLE, .flags = RANGE_FLAG_CODE };
	struct pt_regs *regs;
	struct caller c;

	if (ctx->ret || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	if (!(SYSCALL_ARG(3, regs) & PROT_EXEC))
		return 0;
	e.mm_id = c.st->mm_id;
	e.start = page_down(SYSCALL_ARG(1, regs));
	e.end = page_up(e.start + SYSCALL_ARG(2, regs));
	if (e.start < e.end && !(e.end >> 57) && !is_known_code(e.mm_id, e.start, e.end) &&
	    !bind_code(e.mm_id, e.start))
		emit_range(&e);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_mprotect")
int exit_mprotect(struct trace_event_raw_sys_exit *ctx)
{
	return range_protected(ctx);
}

SEC("tracepoint/syscalls/sys_exit_pkey_mprotect")
int exit_pkey_mprotect(struct trace_event_raw_sys_exit *ctx)
{
	return range_protected(ctx);
}

SEC("tracepoint/syscalls/sys_exit_brk")
int exit_brk(struct trace_event_raw_sys_exit *ctx)
{
	struct caller c;
	__u64 from, to;

	if (!find_caller(&c))
		return 0;
	from = page_up(c.st->brk);
	to = page_up(ctx->ret);
	if (!c.st->brk || to <= from)
		return 0;
	return range_mapped(&c, RANGE_MAPPED,
			    c.task->mm->def_flags & VM_LOCKED ? RANGE_FLAG_POPULATE : 0,
			    from, to - from);
}

SEC("tracepoint/syscalls/sys_exit_mremap")
int exit_mremap(struct trace_event_raw_sys_exit *ctx)
{
	struct range_event e = { .change = RANGE_MOVED };
	__u64 old_len, len, kept, to = ctx->ret;
	struct pt_regs *regs;
	struct caller c;

	if (failed(ctx->ret) || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	e.from = SYSCALL_ARG(1, regs);
	old_len = page_up(SYSCALL_ARG(2, regs));
	len = page_up(SYSCALL_ARG(3, regs));
	kept = old_len < len ? old_len : len;
	if (e.from != to && kept) {
		range_to_heirs(c.st->mm_id, e.from >> page_shift, (e.from + kept) >> page_shift);
		ledger_move(c.st->mm_id, e.from >> page_shift, to >> page_shift, kept >> page_shift);
		e.mm_id = c.st->mm_id;
		e.start = to;
		e.end = to + kept;
		emit_range(&e);
	}
	if (len > kept)
		range_mapped(&c, RANGE_MAPPED, 0, to + kept, len - kept);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_madvise")
int exit_madvise(struct trace_event_raw_sys_exit *ctx)
{
	struct pt_regs *regs;
	struct caller c;
	__u64 advice;

	if (ctx->ret || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	advice = SYSCALL_ARG(3, regs);
	if (advice != MADV_POPULATE_READ && advice != MADV_POPULATE_WRITE)
		return 0;
	return range_mapped(&c, RANGE_POPULATED, 0, SYSCALL_ARG(1, regs), SYSCALL_ARG(2, regs));
}

static __always_inline int range_locked(struct trace_event_raw_sys_exit *ctx, int has_flags)
{
	struct pt_regs *regs;
	struct caller c;

	if (ctx->ret || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	if (has_flags && (SYSCALL_ARG(3, regs) & MLOCK_ONFAULT))
		return 0;
	return range_mapped(&c, RANGE_POPULATED, 0, SYSCALL_ARG(1, regs), SYSCALL_ARG(2, regs));
}

SEC("tracepoint/syscalls/sys_exit_mlock")
int exit_mlock(struct trace_event_raw_sys_exit *ctx)
{
	return range_locked(ctx, 0);
}

SEC("tracepoint/syscalls/sys_exit_mlock2")
int exit_mlock2(struct trace_event_raw_sys_exit *ctx)
{
	return range_locked(ctx, 1);
}

SEC("tracepoint/syscalls/sys_exit_mlockall")
int exit_mlockall(struct trace_event_raw_sys_exit *ctx)
{
	struct pt_regs *regs;
	struct caller c;

	if (ctx->ret || !find_caller(&c))
		return 0;
	regs = (void *)bpf_task_pt_regs(c.task);
	if (!(SYSCALL_ARG(1, regs) & MCL_CURRENT))
		return 0;
	return range_mapped(&c, RANGE_POPULATED, 0, 0, (1ull << 57) - (1ull << page_shift));
}

#endif
