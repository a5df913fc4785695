/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Binds mappings of code to their files. The probe finds the mappings itself, before the code runs: at exec, mmap and
 * mprotect, and with an iterator for earlier mappings. User space only assigns each file its number, once, and is
 * notified of files without a number.
 */
#ifndef MEMPROF_BIND_H
#define MEMPROF_BIND_H

#include "base.bpf.h"
#include "code.bpf.h"
#include "compat.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "mappings.bpf.h"
#include "settings.bpf.h"

#define VM_EXEC 0x4

#define TMPFS_MAGIC 0x01021994

/* Files with mapped code, by device, inode, size and modification time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct file_key);
	__type(value, struct code_file);
} code_files SEC(".maps");

/* Notifies user space of code that needs attention. */
static __always_inline void emit_code(struct code_event *e)
{
	e->kind = EVENT_CODE;
	if (emit_now(e, sizeof(*e)))
		count_loss(LOSS_RING_CODE);
}

/* A mapping under examination and its file. */
struct bind_ctx {
	struct unwind_mapping m;
	__u64 offset; /* in the file, bytes */
	struct file_key file;
	__u32 found;
	__u32 mm_id;
	__u32 again; /* the mapping existed before: the iterator found it */
	__u32 pad;
};

/* A mapping of a file, and the best matching segment of the file so far. */
struct segment_search {
	__u64 offset; /* in the file, bytes */
	__u64 end;
	__u64 overlap; /* bytes of the segment in the mapping; 0: no segment found yet */
	__u64 address; /* start of the mapping, in the file's own addresses */
	__u32 whole; /* the mapping covers exactly this segment */
	__u32 pad;
};

/*
 * Same choice as in elf.rs: prefer the segment that the mapping covers exactly, then the segment with the largest share
 * of the mapping. Global: verified once.
 */
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
	if (whole > c->whole || (whole == c->whole && to - from >= c->overlap)) {
		c->overlap = to - from;
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
	return c.overlap ? 0 : -1;
}

/* Notes the file of a mapping, by the address of its struct file. Global: verified once. */
__noinline int note_file(struct bind_ctx *c, __u64 address)
{
	struct file *file = (void *)address;
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	if (!c)
		return 0;
	/*
	 * Memory that several mappings share (memfd, shared anonymous memory). Erlang, .NET and PHP put their JIT code
	 * there.
	 */
	if (BPF_CORE_READ(inode, i_sb, s_magic) == TMPFS_MAGIC && !BPF_CORE_READ(inode, i_nlink))
		jit_code_seen = 1;
	c->file.ino = BPF_CORE_READ(inode, i_ino);
	c->file.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	c->file.size = BPF_CORE_READ(inode, i_size);
	c->file.modified = modified_ns(inode);
	return 0;
}

static long examine_vma(struct task_struct *task, struct vm_area_struct *vma, struct bind_ctx *c)
{
	__u64 file;

	if (!(vma->vm_flags & VM_EXEC))
		return 0;
	c->m.start = vma->vm_start;
	c->m.end = vma->vm_end;
	c->found = 1;
	/* As a number: a global function accepts no pointer to a kernel object. */
	file = (__u64)BPF_CORE_READ(vma, vm_file);
	if (!file) {
		c->m.origin = CODE_OF_NO_FILE;
		return 0;
	}
	c->offset = vma->vm_pgoff << page_shift;
	note_file(c, file);
	return 0;
}

/*
 * Moved code of the process that the next run of the iterator examines, and whether the list is complete. User space
 * has compared the code with the files.
 */
struct moved_code moved_code[MAX_MOVED];
__u32 moved_nr;
__u32 moved_are_known;

/*
 * Binds a mapping to its file's number. Notifies user space if the file has no number or is not ready. Returns whether
 * the number is known. Global: verified once.
 */
__noinline int bind_found(struct bind_ctx *c, __u32 pid)
{
	struct code_event e = {};
	struct unwind_space *space;
	struct code_file *file;
	__u64 address = 0;
	__u32 known = c && c->m.origin == CODE_MOVED;
	int failed, before;

	if (!c || !c->found || c->m.end <= c->m.start)
		return 0;
	e.mm_id = c->mm_id;
	e.pid = pid;
	e.start = c->m.start;
	if (c->m.origin == CODE_OF_FILE) {
		/* 6.1 accepts a map key only in memory of known location. */
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
	before = find_origin(c->mm_id, c->m.start, c->m.end);
	/* New memory at this address would have come by mmap(). */
	if (c->again && !known && (before == CODE_MOVED || (before == CODE_IN_PLACE && !moved_are_known)))
		return 0;
	if (c->m.origin == CODE_OF_NO_FILE) {
		jit_code_seen = 1;
		if (!c->again && (before == CODE_OF_FILE || before == CODE_MOVED))
			c->m.origin = CODE_IN_PLACE;
		/* Report the mapping only now: from here on it is known. */
		if (c->again && before <= CODE_OF_FILE)
			emit_code(&e);
	}
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

/* Binds the code mapped at an address of the current address space, if any. Returns whether the file has a number. */
__noinline int bind_code(__u32 mm_id, __u64 addr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bind_ctx c = { .mm_id = mm_id };

	if (unwind_mode < UNWIND_TABLES)
		return 0;
	/* bpf_find_vma(): 5.17, 7c7e3d31e785 */
	if (bpf_find_vma(task, addr, examine_vma, &c, 0))
		return 0;
	return bind_found(&c, view_pid(task));
}

/* Binds the vDSO. It has no file. All processes of one kind have the same image, which its size identifies. */
__noinline int bind_vdso(__u32 mm_id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bind_ctx c = { .mm_id = mm_id };
	__u64 addr = (__u64)BPF_CORE_READ(task, mm, context.vdso);

	if (!addr || bpf_find_vma(task, addr, examine_vma, &c, 0) || !c.found)
		return 0;
	c.m.origin = CODE_OF_FILE;
	c.file.size = c.m.end - c.m.start;
	return bind_found(&c, view_pid(task));
}

/*
 * Binds a starting program: its own code, its loader's code, and the vDSO. The loader's later mappings come by mmap().
 */
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

/* The process whose code the next run of the iterator binds; a pid in memprof's pid namespace. */
__u32 bind_pid = 0;
/* The thread whose mappings the iterator visits; 0 until the iterator meets a thread of the process. */
__u32 bind_thread = 0;

static long try_moved(__u64 i, struct bind_ctx *c)
{
	struct moved_code *moved = &moved_code[INDEX(i, MAX_MOVED)];

	if (c->m.start < moved->start || c->m.end > moved->end)
		return 0;
	c->m.table = moved->table;
	c->m.bias = moved->bias;
	c->m.origin = CODE_MOVED;
	return 1;
}

SEC("iter/task_vma")
int bind_process(struct bpf_iter__task_vma *ctx)
{
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	struct bind_ctx c = {};
	struct mm_info *info;
	struct mm_struct *mm;
	__u32 pid, thread;

	if (!task || !vma || !(vma->vm_flags & VM_EXEC))
		return 0;
	/* Before 6.1 (f0d74c4da1f0) the iterator visits every process. */
	pid = view_pid(task);
	mm = task->mm;
	if (!mm || pid != bind_pid)
		return 0;
	/* Once the first thread has ended, the iterator repeats the same mappings for each of the other threads. */
	thread = task->pid;
	if (!bind_thread)
		bind_thread = thread;
	if (thread != bind_thread)
		return 1;
	info = find_mm(mm);
	c.mm_id = info ? info->mm_id : 0;
	c.again = 1;
	examine_vma(task, vma, &c);
	if (c.m.origin && (__u64)mm->context.vdso == c.m.start) {
		c.m.origin = CODE_OF_FILE;
		c.file.size = c.m.end - c.m.start;
	}
	bpf_loop(moved_nr, try_moved, &c, 0);
	bind_found(&c, pid);
	return 0;
}

#endif
