/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Address-space changes of followed processes. Records of a range that a call drops are removed when the call is
 * entered, so that a page faulted into the reused range right afterwards keeps its record. Ranges that a call maps or
 * moves are known at its return. calls.bpf.h hooks the calls.
 */
#ifndef MEMPROF_SPACE_H
#define MEMPROF_SPACE_H

#include "base.bpf.h"
#include "bind.bpf.h"
#include "compat.bpf.h"
#include "cow_children.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "ledger.bpf.h"
#include "mappings.bpf.h"
#include "names.bpf.h"
#include "peak.bpf.h"
#include "unwind.bpf.h"

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

/* The caller of a system call in a followed address space. */
struct caller {
	struct task_struct *task;
	struct mm_struct *mm;
	struct task_state *st;
	struct pt_regs *regs;
};

/*
 * System calls whose entry or return is examined. A table, because each comparison would add a path for the verifier.
 */
#define ENTERS 1
#define RETURNS 2
#define MAX_SYSCALLS 512
static const __u8 wanted_calls[MAX_SYSCALLS] = {
	[SYSCALL_MMAP] = ENTERS | RETURNS,
	[SYSCALL_BRK] = ENTERS | RETURNS,
	[SYSCALL_MREMAP] = ENTERS | RETURNS,
	[SYSCALL_MADVISE] = ENTERS | RETURNS,
	[SYSCALL_MUNMAP] = ENTERS,
	[SYSCALL_EXECVE] = ENTERS,
	[SYSCALL_EXECVEAT] = ENTERS,
	[SYSCALL_EXIT_GROUP] = ENTERS,
	[SYSCALL_MPROTECT] = RETURNS,
	[SYSCALL_PKEY_MPROTECT] = RETURNS,
	[SYSCALL_MLOCK] = RETURNS,
	[SYSCALL_MLOCK2] = RETURNS,
	[SYSCALL_MLOCKALL] = RETURNS,
};

static __always_inline int is_wanted(__u64 nr, __u8 when)
{
	return nr < MAX_SYSCALLS && (wanted_calls[INDEX(nr, MAX_SYSCALLS)] & when);
}

static __always_inline void emit_range(struct range_event *e)
{
	count_activity();
	e->kind = EVENT_RANGE;
	e->pad = 0;
	/* Code must be looked up while it is mapped. */
	if (e->flags & RANGE_FLAG_CODE ? emit_now(e, sizeof(*e)) : emit(e, sizeof(*e)))
		count_loss(LOSS_RING_RANGE);
}

/* Global: verified once. */
__noinline int range_dropped(__u32 mm_id, __u32 change, __u64 start, __u64 len)
{
	struct range_event e = { .change = change, .mm_id = mm_id };

	e.start = page_down(start);
	e.end = page_up(start + len);
	if (e.start >= e.end || e.end >> 57)
		return 0;
	note_drop(mm_id, e.start >> page_shift, e.end >> page_shift);
	copy_range_to_children(mm_id, e.start >> page_shift, e.end >> page_shift);
	ledger_clear(mm_id, e.start >> page_shift, e.end >> page_shift);
	emit_range(&e);
	return 0;
}

/*
 * Notes a range that was mapped or filled; do_pending() then sends it with the stack. Returns 0 if the range is empty.
 */
static __always_inline int range_mapped(struct caller *c, __u32 change, __u32 flags, __u64 start, __u64 len)
{
	struct pending *p = &c->st->pending;

	p->start = page_down(start);
	p->end = page_up(start + len);
	if (p->start >= p->end || p->end >> 57)
		return 0;
	if (flags & RANGE_FLAG_CODE)
		bind_code(c->st->mm_id, p->start);
	p->kind = PENDING_RANGE;
	p->change = change;
	p->flags = flags;
	return 1;
}

static __always_inline void record_range(struct task_state *st)
{
	__u32 stack = stack_id(st, 0);
	/* In the walk's scratch space: the BPF stack is nearly full after eight nested calls. */
	struct range_event *e = (void *)&st->event;

	st->t.window_words = 0;
	e->change = st->pending.change;
	e->mm_id = st->mm_id;
	e->stack_id = stack;
	e->flags = st->pending.flags;
	e->start = st->pending.start;
	e->end = st->pending.end;
	e->from = 0;
	emit_range(e);
}

static __always_inline int enter_mremap(struct caller *c)
{
	__u64 old = SYSCALL_ARG1(c->regs), old_len = page_up(SYSCALL_ARG2(c->regs));
	__u64 len = page_up(SYSCALL_ARG3(c->regs));

	if (old_len > len && len)
		range_dropped(c->st->mm_id, RANGE_UNMAPPED, old + len, old_len - len);
	if (SYSCALL_ARG4(c->regs) & MREMAP_FIXED)
		range_dropped(c->st->mm_id, RANGE_UNMAPPED, SYSCALL_ARG5(c->regs), len);
	return 0;
}

static __always_inline int enter_brk(struct caller *c)
{
	__u64 to = SYSCALL_ARG1(c->regs), end = c->mm->brk;

	c->st->brk = end;
	if (to && page_up(to) < page_up(end))
		range_dropped(c->st->mm_id, RANGE_UNMAPPED, page_up(to), page_up(end) - page_up(to));
	return 0;
}

static __always_inline int enter_madvise(struct caller *c)
{
	__u64 advice = SYSCALL_ARG3(c->regs);

	if (advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_REMOVE)
		range_dropped(c->st->mm_id, RANGE_EMPTIED, SYSCALL_ARG1(c->regs), SYSCALL_ARG2(c->regs));
	return 0;
}

/* Handles the entry of a system call in wanted_calls. */
static __always_inline int syscall_begins(__u64 nr)
{
	struct caller c = { .task = bpf_get_current_task_btf() };

	c.mm = c.task->mm;
	if (!mm_may_be_followed(c.mm))
		return 0;
	c.st = followed_state_with_mm(c.task, c.mm);
	if (!c.st || is_compat(c.task))
		return 0;
	c.regs = (void *)bpf_task_pt_regs(c.task);
	if (nr == SYSCALL_BRK)
		return enter_brk(&c);
	if (nr == SYSCALL_MREMAP)
		return enter_mremap(&c);
	if (nr == SYSCALL_MADVISE)
		return enter_madvise(&c);
	if (nr == SYSCALL_EXIT_GROUP)
		return peak_at_exit ? note_drop_of_all(c.task, c.st->mm_id) : 0;
	if (nr == SYSCALL_EXECVE || nr == SYSCALL_EXECVEAT)
		return note_exec(c.task, c.st->mm_id);
	if (nr == SYSCALL_MUNMAP || (SYSCALL_ARG4(c.regs) & (MAP_FIXED | MAP_FIXED_NOREPLACE)) == MAP_FIXED)
		range_dropped(c.st->mm_id, RANGE_UNMAPPED, SYSCALL_ARG1(c.regs), SYSCALL_ARG2(c.regs));
	return 0;
}

static __always_inline int failed(long ret)
{
	return ret < 0 && ret > -4096;
}

static __always_inline int is_locked(struct caller *c)
{
	return (c->mm->def_flags & VM_LOCKED) != 0;
}

static __always_inline int exit_mmap(struct caller *c, long ret)
{
	__u32 flags = 0;

	if (failed(ret))
		return 0;
	if ((SYSCALL_ARG4(c->regs) & (MAP_POPULATE | MAP_LOCKED)) || is_locked(c))
		flags |= RANGE_FLAG_POPULATE;
	if (SYSCALL_ARG3(c->regs) & PROT_EXEC)
		flags |= RANGE_FLAG_CODE;
	return range_mapped(c, RANGE_MAPPED, flags, ret, SYSCALL_ARG2(c->regs));
}

/*
 * Reports memory that may contain moved code. A program that moves its code to anonymous memory copies the code, and
 * then removes write access: from then on, user space can compare. Global: verified once.
 */
__noinline int may_be_moved(__u32 mm_id, __u64 start, __u64 end)
{
	struct code_event e = { .mm_id = mm_id, .start = start };

	if (find_origin(mm_id, start, end) != CODE_IN_PLACE)
		return 0;
	e.pid = view_pid(bpf_get_current_task_btf());
	emit_code(&e);
	return 1;
}

/* JITs write code and then make it executable, often repeatedly: bind only unknown code. */
static __always_inline int exit_mprotect(struct caller *c, long ret)
{
	struct range_event e = { .change = RANGE_EXECUTABLE, .flags = RANGE_FLAG_CODE };

	if (ret || !(SYSCALL_ARG3(c->regs) & PROT_EXEC))
		return 0;
	e.mm_id = c->st->mm_id;
	e.start = page_down(SYSCALL_ARG1(c->regs));
	e.end = page_up(e.start + SYSCALL_ARG2(c->regs));
	if (e.start >= e.end || e.end >> 57 || may_be_moved(e.mm_id, e.start, e.end))
		return 0;
	if (!is_known_code(e.mm_id, e.start, e.end) && !bind_code(e.mm_id, e.start))
		emit_range(&e);
	return 0;
}

static __always_inline int exit_brk(struct caller *c, long ret)
{
	__u64 from = page_up(c->st->brk), to = page_up(ret);

	if (!c->st->brk || to <= from)
		return 0;
	return range_mapped(c, RANGE_MAPPED, is_locked(c) ? RANGE_FLAG_POPULATE : 0, from, to - from);
}

static __always_inline int exit_mremap(struct caller *c, long ret)
{
	__u64 old_len = page_up(SYSCALL_ARG2(c->regs)), len = page_up(SYSCALL_ARG3(c->regs)), to = ret;
	__u64 moved = old_len < len ? old_len : len;
	struct range_event e = { .change = RANGE_MOVED };

	if (failed(ret))
		return 0;
	e.from = SYSCALL_ARG1(c->regs);
	if (e.from != to && moved) {
		copy_range_to_children(c->st->mm_id, e.from >> page_shift, (e.from + moved) >> page_shift);
		ledger_move(c->st->mm_id, e.from >> page_shift, to >> page_shift, moved >> page_shift);
		e.mm_id = c->st->mm_id;
		e.start = to;
		e.end = to + moved;
		emit_range(&e);
	}
	return len > moved && range_mapped(c, RANGE_MAPPED, 0, to + moved, len - moved);
}

static __always_inline int exit_madvise(struct caller *c, long ret)
{
	__u64 advice = SYSCALL_ARG3(c->regs);

	if (ret || (advice != MADV_POPULATE_READ && advice != MADV_POPULATE_WRITE))
		return 0;
	return range_mapped(c, RANGE_POPULATED, 0, SYSCALL_ARG1(c->regs), SYSCALL_ARG2(c->regs));
}

static __always_inline int exit_mlock(struct caller *c, long ret, int on_fault)
{
	if (ret || on_fault)
		return 0;
	return range_mapped(c, RANGE_POPULATED, 0, SYSCALL_ARG1(c->regs), SYSCALL_ARG2(c->regs));
}

static __always_inline int exit_mlockall(struct caller *c, long ret)
{
	if (ret || !(SYSCALL_ARG1(c->regs) & MCL_CURRENT))
		return 0;
	return range_mapped(c, RANGE_POPULATED, 0, 0, (1ull << 57) - (1ull << page_shift));
}

/* Handles the return of a system call in wanted_calls. Returns whether to send an event with the caller's stack. */
static __always_inline int syscall_done(struct caller *c, __u64 nr, long ret)
{
	switch (nr) {
	case SYSCALL_MMAP:
		return exit_mmap(c, ret);
	case SYSCALL_MPROTECT:
	case SYSCALL_PKEY_MPROTECT:
		return exit_mprotect(c, ret);
	case SYSCALL_BRK:
		return exit_brk(c, ret);
	case SYSCALL_MREMAP:
		return exit_mremap(c, ret);
	case SYSCALL_MADVISE:
		return exit_madvise(c, ret);
	case SYSCALL_MLOCK:
		return exit_mlock(c, ret, 0);
	case SYSCALL_MLOCK2:
		return exit_mlock(c, ret, SYSCALL_ARG3(c->regs) & MLOCK_ONFAULT);
	case SYSCALL_MLOCKALL:
		return exit_mlockall(c, ret);
	}
	return 0;
}

/* Handles the return of a system call. Returns whether to send an event with the caller's stack. */
static __always_inline int syscall_returns(long ret)
{
	struct caller c = { .task = bpf_get_current_task_btf() };
	__u64 nr;

	c.mm = c.task->mm;
	if (!mm_may_be_followed(c.mm))
		return 0;
	c.regs = (void *)bpf_task_pt_regs(c.task);
	nr = SYSCALL_NR(c.regs);
	if (nr == SYSCALL_WRITE && jit_code_seen && ret > 0) {
		names_written(ret);
		return 0;
	}
	if (!is_wanted(nr, RETURNS))
		return 0;
	c.st = followed_state_with_mm(c.task, c.mm);
	if (!c.st || is_compat(c.task))
		return 0;
	return syscall_done(&c, nr, ret);
}

#endif
