/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Perf maps and jitdump files. A runtime writes a line "START SIZE NAME" to a perf map before it runs new JIT code.
 * From this write on, stacks with these addresses are other stacks, and user space reads the file up to here before it
 * names later stacks. The records of jitdump files are not parsed here. The writes of followed processes are examined
 * only after one of them has mapped memory for JIT code (space.bpf.h).
 */
#ifndef MEMPROF_NAMES_H
#define MEMPROF_NAMES_H

#include "base.bpf.h"
#include "code.bpf.h"
#include "compat.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "mappings.bpf.h"

/* Bytes of a line that are examined. LINE_NUMBERS of them can contain the two numbers with "0x", and two spaces. */
#define LINE_BYTES 64
#define LINE_NUMBERS 40
/* Maximum number of granules of one line. User space completes the rest. */
#define LINE_GRANULES 512

/* "perf", "jit-" and "py::" */
#define PERF_NAME 0x66726570u
#define JIT_NAME 0x2d74696au
#define PYTHON_NAME 0x3a3a7970u

/*
 * A line of a perf map. It is in a thread's scratch space, whose contents the verifier does not track: it would track
 * every digit.
 */
struct line {
	__u64 number[2]; /* start, size */
	__u32 field;
	__u32 name; /* index of the name in the text */
	char text[LINE_BYTES];
};

struct line_ctx {
	struct task_state *st;
};

/* Parses one character. */
static long line_step(__u64 i, struct line_ctx *c)
{
	struct line *line = (void *)&c->st->event;
	__u32 field = line->field & 1, value;
	char digit = line->text[INDEX(i, LINE_BYTES)];

	if (digit == ' ') {
		line->name = i + 1;
		return ++line->field > 1;
	}
	value = digit >= '0' && digit <= '9' ? digit - '0' : ((digit | 0x20) - 'a' + 10) & 0xff;
	if (value > 15) /* "0x" */
		value = 0;
	line->number[field] = line->number[field] << 4 | value;
	return 0;
}

static long granule_step(__u64 i, struct line_ctx *c)
{
	struct line *line = (void *)&c->st->event;
	__u64 slot = code_slot(c->st->mm_id, line->number[0] + (i << CODE_GRANULE_BITS));

	__sync_fetch_and_add(&code_generations[INDEX(slot, 1 << CODE_GENERATION_BITS)], 1);
	return 0;
}

/* Counts the code of a line as replaced. User space knows the previous code. */
static __always_inline void replace_code(struct task_state *st)
{
	struct line_ctx c = { .st = st };
	struct line *line = (void *)&st->event;
	__u64 granules;
	__u32 name = 0;

	line->number[0] = line->number[1] = 0;
	line->field = 0;
	bpf_loop(LINE_NUMBERS, line_step, &c, 0);
	if (line->field < 2 || !line->number[1])
		return;
#pragma unroll
	for (__u32 i = 0; i < 4; i++)
		name |= (__u32)(__u8)line->text[INDEX(line->name + i, LINE_BYTES)] << 8 * i;
	if (name == PYTHON_NAME)
		code_has_epilogues = 1;
	granules = (line->number[1] >> CODE_GRANULE_BITS) + 2;
	bpf_loop(granules < LINE_GRANULES ? granules : LINE_GRANULES, granule_step, &c, 0);
	__sync_fetch_and_add(&unwind_generation, 1);
}

/* The open file of a descriptor of the current task, or NULL. */
static __always_inline struct file *find_file(struct task_struct *task, __u64 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd), *file = NULL;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return file;
}

/* Notes a write to a perf map or jitdump file, and notifies user space. Global: verified once. */
__noinline int note_names(struct task_state *st, __u64 file_address, __u64 text, __u64 bytes, __u32 lines)
{
	struct names_event e = { .kind = EVENT_NAMES };
	struct file *file = (void *)file_address;
	struct line *line;

	if (!st)
		return 0;
	st->t.window_words = 0;
	line = (void *)&st->event;
	if (!lines) {
		/* Any code may have been replaced. */
		__sync_fetch_and_add(&code_generation_of_all, 1);
		__sync_fetch_and_add(&unwind_generation, 1);
	} else if (!bpf_probe_read_user(line->text, bytes < LINE_BYTES ? bytes : LINE_BYTES, (void *)text)) {
		replace_code(st);
	}
	e.mm_id = st->mm_id;
	e.ino = BPF_CORE_READ(file, f_inode, i_ino);
	e.end = BPF_CORE_READ(file, f_pos);
	/* If the record does not fit into the ring buffer, the next one contains the same information. */
	emit(&e, sizeof(e));
	return 0;
}

/* Handles a write of `bytes` bytes by the current task. Global: verified once. */
__noinline int names_written(__u64 bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	const unsigned char *name;
	struct task_state *st;
	struct file *file;
	__u32 start = 0;

	file = find_file(task, SYSCALL_ARG1(regs));
	name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	if (bpf_probe_read_kernel(&start, sizeof(start), name) || (start != PERF_NAME && start != JIT_NAME))
		return 0;
	st = followed_state_with_mm(task, task->mm);
	if (st && !is_compat(task))
		note_names(st, (__u64)file, SYSCALL_ARG2(regs), bytes, start == PERF_NAME);
	return 0;
}

#endif
