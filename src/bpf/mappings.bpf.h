/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Where each address space has mapped which file's code. The probe finds that out itself, before the code runs: at
 * exec, at mmap and mprotect, and with an iterator for earlier mappings. User space only assigns each file its
 * number, once, and is notified of files without one.
 */
#ifndef MEMPROF_MAPPINGS_H
#define MEMPROF_MAPPINGS_H

#include "base.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "settings.bpf.h"

#define VM_EXEC 0x4

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct unwind_space);
} unwind_spaces SEC(".maps");

/* Files that code is mapped from, by device, inode, size and modification time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct file_key);
	__type(value, struct code_file);
} code_files SEC(".maps");

/* The initial value of new address spaces: too large for the BPF stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unwind_space);
} empty_space SEC(".maps");

/* Changes whenever a table is added or a mapping replaces code: cached walks are then invalid. */
__u32 unwind_generation = 1;

/* All ones if `a` <= `b`, else 0, for numbers below 2^63. */
static __always_inline __u32 not_above(__u64 a, __u64 b)
{
	return (__s64)(a - b - 1) >> 63;
}

/* Index of the last mapping that begins at or before `pc`, or MAX_MAPPINGS. (Global: verified once.) */
__noinline __u32 last_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = 0, n;

	if (!space)
		return MAX_MAPPINGS;
	n = space->nr;
	if (n > MAX_MAPPINGS)
		n = MAX_MAPPINGS;
	for (int i = 0; i < 10; i++) {
		__u32 half = n >> 1;

		if (!half)
			break;
		/* No branch: it would double the verifier's paths in each iteration. */
		at += half & not_above(space->at[INDEX(at + half, MAX_MAPPINGS)].start, pc);
		n -= half;
	}
	at = INDEX(at, MAX_MAPPINGS);
	return n && space->at[at].start <= pc ? at : MAX_MAPPINGS;
}

/* Index of the mapping that contains `pc`, or MAX_MAPPINGS. */
static __always_inline __u32 find_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = last_mapping(space, pc);

	if (!space || at >= MAX_MAPPINGS || pc >= space->at[INDEX(at, MAX_MAPPINGS)].end)
		return MAX_MAPPINGS;
	return at;
}

static __always_inline __u32 version_of(struct unwind_space *space)
{
	return *(volatile __u32 *)&space->version;
}

/* Whether a range is known to be code: one mapping contains it. */
static __always_inline int is_known_code(__u32 mm_id, __u64 start, __u64 end)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	__u32 at = find_mapping(space, start);

	return space && at < MAX_MAPPINGS && end <= space->at[INDEX(at, MAX_MAPPINGS)].end;
}

/* A change of an address space's mappings. */
struct edit_ctx {
	struct unwind_space *space;
	__u64 start; /* the range that is mapped */
	__u64 end;
	__u32 from;
	__u32 to;
	__u32 locked;
	__u32 pad;
};

/* Two threads rarely map code at once, and a change takes microseconds; but a hypervisor may suspend the other. */
#define LOCK_TRIES (1 << 18)

static long lock_step(__u64 i, struct edit_ctx *c)
{
	__u32 version = version_of(c->space);

	if ((version & 1) || __sync_val_compare_and_swap(&c->space->version, version, version + 1) != version)
		return 0;
	c->locked = 1;
	return 1;
}

/* Only the holder of the lock changes the mappings; readers find none meanwhile. Returns whether it was taken. */
static __always_inline int lock_space(struct edit_ctx *c)
{
	bpf_loop(LOCK_TRIES, lock_step, c, 0);
	return c->locked;
}

static __always_inline void unlock_space(struct edit_ctx *c)
{
	__sync_fetch_and_add(&c->space->version, 1);
}

/* Trims an old mapping to what the new one leaves of it: the part before it, else the part behind it. */
static long trim_step(__u64 i, struct edit_ctx *c)
{
	struct unwind_mapping *from = &c->space->at[INDEX(i, MAX_MAPPINGS)];
	__u64 start = from->start, end = from->end;
	struct unwind_mapping *to;

	if (start < c->end && end > c->start) {
		if (start < c->start)
			end = c->start;
		else if (end > c->end)
			start = c->end;
		else
			return 0;
	}
	to = &c->space->at[INDEX(c->to, MAX_MAPPINGS)];
	to->bias = from->bias;
	to->table = from->table;
	to->anonymous = from->anonymous;
	to->start = start;
	to->end = end;
	c->to++;
	return 0;
}

static long shift_step(__u64 i, struct edit_ctx *c)
{
	__u32 from = c->from - 1;

	if (from >= MAX_MAPPINGS - 1 || from < c->to)
		return 1;
	c->space->at[INDEX(from + 1, MAX_MAPPINGS)] = c->space->at[INDEX(from, MAX_MAPPINGS)];
	c->from = from;
	return 0;
}

/* Inserts a mapping at its place by address. Returns 0, or -1 if there is no room. */
static __always_inline int put_mapping(struct edit_ctx *c, struct unwind_mapping *m)
{
	__u32 nr = c->space->nr, at = last_mapping(c->space, m->start), to = at >= MAX_MAPPINGS ? 0 : at + 1;
	struct unwind_mapping *before = &c->space->at[INDEX(at, MAX_MAPPINGS)];

	/* JIT code is often mapped in many adjacent pieces. */
	if (at < MAX_MAPPINGS && m->anonymous && before->anonymous && before->end == m->start) {
		before->end = m->end;
		return 0;
	}
	if (nr >= MAX_MAPPINGS)
		return -1;
	c->from = nr;
	c->to = to;
	bpf_loop(nr, shift_step, c, 0);
	c->space->at[INDEX(to, MAX_MAPPINGS)] = *m;
	c->space->nr = nr + 1;
	return 0;
}

#define MAPPINGS_BUSY 1

/* Inserts a mapping over what it overlaps. Returns 0, MAPPINGS_BUSY, or -1 if it is full. (Global: verified once.) */
__noinline int insert_mapping(struct unwind_space *space, struct unwind_mapping *m)
{
	struct edit_ctx c = { .space = space };
	struct unwind_mapping *old;
	__u32 at, nr;
	int failed;

	if (!space || !m)
		return -1;
	c.start = m->start;
	c.end = m->end;
	if (!lock_space(&c))
		return MAPPINGS_BUSY;
	at = last_mapping(space, c.end - 1);
	old = &space->at[INDEX(at, MAX_MAPPINGS)];
	if (at < MAX_MAPPINGS && old->end > c.start) {
		if (old->start <= c.start && old->end >= c.end && old->bias == m->bias && old->table == m->table &&
		    old->anonymous == m->anonymous) {
			unlock_space(&c);
			return 0;
		}
		nr = space->nr;
		c.to = 0;
		bpf_loop(nr < MAX_MAPPINGS ? nr : MAX_MAPPINGS, trim_step, &c, 0);
		space->nr = c.to;
		__sync_fetch_and_add(&unwind_generation, 1);
	}
	failed = put_mapping(&c, m);
	unlock_space(&c);
	return failed;
}

static __noinline struct unwind_space *space_get(__u32 mm_id)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	__u32 zero = 0;
	void *empty;

	if (space)
		return space;
	empty = bpf_map_lookup_elem(&empty_space, &zero);
	if (!empty)
		return NULL;
	bpf_map_update_elem(&unwind_spaces, &mm_id, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&unwind_spaces, &mm_id);
}

/* Notifies user space of code that it has to look at. */
static __always_inline void emit_code(struct code_event *e)
{
	e->kind = EVENT_CODE;
	if (emit_now(e, sizeof(*e)))
		count_loss(LOSS_RING_CODE);
}

/* A mapping under examination, and the file behind it. */
struct bind_ctx {
	struct unwind_mapping m;
	__u64 offset; /* in the file, bytes */
	struct file_key file;
	__u32 found;
	__u32 mm_id;
};

/* A mapping of a file, and the best matching segment of the file so far. */
struct segment_search {
	__u64 offset; /* in the file, bytes */
	__u64 end;
	__u64 most; /* bytes of the segment in the mapping; 0: none found yet */
	__u64 address; /* of the mapping's start, in the file's own addresses */
	__u32 whole; /* the mapping was made for exactly this segment */
	__u32 pad;
};

/* Like elf.rs: the segment that the mapping was made for, else the one that most of it belongs to. (Global: verified
 * once.) */
__noinline int try_segment(struct segment_search *c, struct code_segment *s)
{
	__u64 page = 1ull << page_shift, from, last, to;
	__u32 whole;

	if (!c || !s)
		return 0;
	last = s->offset + s->size;
	from = s->offset > c->offset ? s->offset : c->offset;
	to = last < c->end ? last : c->end;
	if (to <= from)
		return 0;
	whole = (s->offset & ~(page - 1)) == c->offset && ((last + page - 1) & ~(page - 1)) == c->end;
	if (whole > c->whole || (whole == c->whole && to - from >= c->most)) {
		c->most = to - from;
		c->whole = whole;
		c->address = s->address + c->offset - s->offset;
	}
	return 0;
}

static __always_inline int address_of_mapping(struct code_file *file, __u64 offset, __u64 size, __u64 *address)
{
	struct segment_search c = { .offset = offset, .end = offset + size };

	for (__u32 i = 0; i < MAX_SEGMENTS; i++)
		if (i < file->nr)
			try_segment(&c, &file->segment[i]);
	*address = c.address;
	return c.most ? 0 : -1;
}

static long look_at_vma(struct task_struct *task, struct vm_area_struct *vma, struct bind_ctx *c)
{
	struct inode *inode;
	struct file *file;

	if (!(vma->vm_flags & VM_EXEC))
		return 0;
	c->m.start = vma->vm_start;
	c->m.end = vma->vm_end;
	c->found = 1;
	file = vma->vm_file;
	if (!file) {
		c->m.anonymous = 1;
		return 0;
	}
	inode = file->f_inode;
	c->offset = vma->vm_pgoff << page_shift;
	c->file.ino = inode->i_ino;
	c->file.dev = inode->i_sb->s_dev;
	c->file.size = inode->i_size;
	c->file.modified = modified_ns(inode);
	return 0;
}

/*
 * Binds a mapping to its file's number. If the file has no number, or is not ready, notifies user space. Returns
 * whether the number is known. (Global: verified once.)
 */
__noinline int bind_found(struct bind_ctx *c, __u32 pid)
{
	struct code_event e = {};
	struct unwind_space *space;
	struct code_file *file;
	__u64 address = 0;
	__u32 known = 0;
	int failed;

	if (!c || !c->found || c->m.end <= c->m.start)
		return 0;
	e.mm_id = c->mm_id;
	e.pid = pid;
	e.start = c->m.start;
	if (!c->m.anonymous) {
		/* (6.1 accepts as a map key only memory whose location it knows.) */
		e.file = c->file;
		file = bpf_map_lookup_elem(&code_files, &e.file);
		if (file && file->table && !address_of_mapping(file, c->offset, c->m.end - c->m.start, &address)) {
			c->m.table = file->table;
			c->m.bias = c->m.start - address;
			known = 1;
		}
		if (!file || !file->ready) {
			e.bound = known;
			emit_code(&e);
		}
	}
	if (!c->mm_id)
		return known;
	space = space_get(c->mm_id);
	if (!space) {
		count_loss(LOSS_SPACES);
		return 0;
	}
	failed = insert_mapping(space, &c->m);
	if (!failed)
		return known;
	if (failed == MAPPINGS_BUSY) {
		/* User space then has all mappings examined again. */
		e.bound = 0;
		emit_code(&e);
	} else {
		count_loss(LOSS_MAPPINGS);
	}
	return 0;
}

/* Binds the code mapped at an address of the current address space, if any. Returns whether its file has a number. */
__noinline int bind_code(__u32 mm_id, __u64 addr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bind_ctx c = { .mm_id = mm_id };

	if (unwind_mode < UNWIND_TABLES)
		return 0;
	/* bpf_find_vma(): 5.17, 7c7e3d31e785 */
	if (bpf_find_vma(task, addr, look_at_vma, &c, 0))
		return 0;
	return bind_found(&c, view_pid(task));
}

/* Binds the vDSO. It has no file; all processes of a kind have the same image, identified by its size. */
__noinline int bind_vdso(__u32 mm_id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bind_ctx c = { .mm_id = mm_id };
	struct mm_struct *mm = task->mm;
	__u64 addr = mm ? (__u64)mm->context.vdso : 0;

	if (!addr || bpf_find_vma(task, addr, look_at_vma, &c, 0) || !c.found)
		return 0;
	c.m.anonymous = 0;
	c.file.size = c.m.end - c.m.start;
	return bind_found(&c, view_pid(task));
}

/* A program starts: binds its own code, its loader's, and the vDSO. The loader's later mappings come with mmap. */
static __noinline int bind_program(__u32 mm_id, struct mm_struct *mm, __u64 entry)
{
	__u64 first = mm->start_code, last = mm->end_code - 1;

	if (unwind_mode < UNWIND_TABLES)
		return 0;
	bind_code(mm_id, first);
	if (!is_known_code(mm_id, last, last + 1))
		bind_code(mm_id, last);
	if (!is_known_code(mm_id, entry, entry + 1))
		bind_code(mm_id, entry);
	bind_vdso(mm_id);
	return 0;
}

/* Gives a child the mappings of its parent: the code lies at the same addresses, so its first stacks are complete
 * too. */
__noinline int copy_space(__u32 from, __u32 to)
{
	struct edit_ctx c = { .space = bpf_map_lookup_elem(&unwind_spaces, &from) };
	struct unwind_space *copy;

	if (!c.space || !to || from == to)
		return 0;
	if (!lock_space(&c)) {
		count_loss(LOSS_MAPPINGS);
		return 0;
	}
	if (bpf_map_update_elem(&unwind_spaces, &to, c.space, BPF_ANY))
		count_loss(LOSS_SPACES);
	unlock_space(&c);
	copy = bpf_map_lookup_elem(&unwind_spaces, &to);
	if (copy)
		copy->version = 0;
	return 0;
}

/* The process whose code the next run of the iterator binds, in memprof's pid namespace; 0 for all followed ones. */
__u32 bind_pid = 0;

SEC("iter/task_vma")
int bind_process(struct bpf_iter__task_vma *ctx)
{
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	struct bind_ctx c = {};
	struct mm_info *info;
	struct mm_struct *mm;
	__u32 pid;

	if (!task || !vma || !(vma->vm_flags & VM_EXEC))
		return 0;
	/* Before 6.1 (f0d74c4da1f0) the iterator visits every process. */
	pid = view_pid(task);
	mm = task->mm;
	if (!mm || (bind_pid && pid != bind_pid))
		return 0;
	info = find_mm(mm);
	if (!info && !bind_pid)
		return 0;
	c.mm_id = info ? info->mm_id : 0;
	look_at_vma(task, vma, &c);
	if (c.m.anonymous && (__u64)mm->context.vdso == c.m.start) {
		c.m.anonymous = 0;
		c.file.size = c.m.end - c.m.start;
	}
	bind_found(&c, pid);
	return 0;
}

#endif
