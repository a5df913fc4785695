/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The functions of interpreted programs: each gets a number and is described to user space when a stack first has it,
 * while its frame keeps it alive.
 */
#ifndef MEMPROF_FUNCTIONS_H
#define MEMPROF_FUNCTIONS_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "interpreter.bpf.h"
#include "thread.bpf.h"

/* The numbers of functions that user space knows. User space deletes those of address spaces that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct function_key);
	__type(value, __u32);
} functions SEC(".maps");

__u32 last_function = 0;

/*
 * Copies at most `most` bytes of a text object: its first ones, or its last ones. Returns the number of bytes. `header` is
 * scratch space for five words: the BPF stack is short.
 */
static __always_inline __u32 copy_text(struct python_layout *layout, __u64 object, struct sent_text *text, void *to,
				       __u32 most, int last, __u64 *header)
{
	__u32 state, width, size;
	__u64 at;

	text->length = text->sent = text->width = text->ascii = 0;
	/* Reference count, type, length, hash, state. */
	if (bpf_probe_read_user(header, 5 * 8, (void *)object))
		return 0;
	state = header[4];
	/* Its bits from text_kind on: the width of a character (3), compact, ASCII. */
	width = state >> layout->text_kind & 7;
	text->ascii = state >> (layout->text_kind + 4) & 1;
	if (width != 1 && width != 2 && width != 4)
		return 0;
	text->width = width;
	text->length = header[2] < 0xffffff ? header[2] : 0xffffff;
	size = text->length * width;
	at = object + (text->ascii ? layout->text_ascii : layout->text_compact);
	if (size > most) {
		if (last)
			at += size - most;
		size = most;
	}
	if (size > most || bpf_probe_read_user(to, size, (void *)at))
		return 0;
	text->sent = size;
	return size;
}

/* What stands for the size of a table of lines that is larger. */
#define MAX_LINES_SIZE 0xffffffff

/* The number of a function that cannot be read: none has it. */
#define FUNCTION_UNREADABLE 0xffffffff

/*
 * Sends what user space needs to know of a function. Returns its number, FUNCTION_UNREADABLE, or 0 if it does not fit the
 * ring buffer. (Global: verified once.)
 */
__noinline __u32 send_function(struct task_state *st, struct interpreter_stack *is, struct interpreter_space *space,
			       __u64 code, __u32 check)
{
	struct function_event *e;
	__u32 function;
	__u64 size;

	if (!st || !is || !space)
		return 0;
	e = &st->function;
	if (bpf_probe_read_user(is->buffer, CODE_BYTES, (void *)code))
		return FUNCTION_UNREADABLE;
	function = __sync_fetch_and_add(&last_function, 1) + 1;
	e->kind = EVENT_FUNCTION;
	e->mm_id = st->mm_id;
	e->pid = st->pid;
	e->function = function;
	e->code = code;
	e->check = check;
	e->version = space->python.version;
	e->first_line = half_at(is, space->python.code_first_line);
	e->lines = word_at(is, space->python.code_lines);
	copy_text(&space->python, word_at(is, space->python.code_name), &e->name, e->name_text, MAX_NAME, 0,
		  (__u64 *)e->lines_table);
	copy_text(&space->python, word_at(is, space->python.code_file), &e->file, e->file_text, MAX_FILE_NAME, 1,
		  (__u64 *)e->lines_table);
	/* A bytes object: reference count, type, size, hash, bytes. */
	size = read_word(e->lines + 16);
	e->lines_size = size < MAX_LINES_SIZE ? size : MAX_LINES_SIZE;
	if (size > MAX_LINES || bpf_probe_read_user(e->lines_table, size, (void *)(e->lines + 32)))
		size = 0;
	/* (The mask tells 6.1's verifier the bound.) */
	size = INDEX(size + offsetof(struct function_event, lines_table), 2048);
	/* What was not sent has to be read at once: the function may soon be gone. */
	if (size > offsetof(struct function_event, lines_table) ? emit(e, size) : emit_now(e, size))
		return 0;
	return function;
}

struct functions_ctx {
	struct task_state *st;
	struct interpreter_stack *is;
	struct interpreter_space *space;
};

/* Replaces a frame's check by the number of its function, which user space knows from then on. */
static long number_function(__u64 i, struct functions_ctx *c)
{
	struct interpreted_frame *f = &c->is->frames[INDEX(i, MAX_INTERPRETED)];
	struct function_key key = { .code = f->code, .mm_id = c->st->mm_id, .check = f->check };
	__u32 *known = bpf_map_lookup_elem(&functions, &key), function;

	if (known) {
		f->check = *known;
		return 0;
	}
	function = send_function(c->st, c->is, c->space, f->code, f->check);
	f->check = function;
	if (!function)
		return 1;
	if (function == FUNCTION_UNREADABLE)
		return 0;
	/* If another thread was faster, both numbers are known. Without memory for an entry, the function is described
	 * again with the next new stack. */
	bpf_map_update_elem(&functions, &key, &function, BPF_NOEXIST);
	return 0;
}

/*
 * Prepares the frames to be sent with their stack. Returns 0, or -1 if a function does not fit the ring buffer. (Global:
 * verified once.)
 */
__noinline int number_functions(struct task_state *st, struct interpreter_stack *is)
{
	struct functions_ctx c = { .st = st, .is = is };
	__u32 mm_id;

	__u32 nr;

	if (!st || !is)
		return -1;
	mm_id = st->mm_id;
	c.space = bpf_map_lookup_elem(&interpreter_spaces, &mm_id);
	if (!c.space)
		return -1;
	/* The record overwrites the window. */
	st->t.window_words = 0;
	nr = is->nr;
	if (bpf_loop(nr < MAX_INTERPRETED ? nr : MAX_INTERPRETED, number_function, &c, 0) < nr ||
	    (nr && !is->frames[INDEX(nr - 1, MAX_INTERPRETED)].check))
		return -1;
	is->at = is->evaluator = is->sent = is->unmerged = is->rest = 0;
	is->by_order = c.space->python.frames == PYTHON_OBJECTS;
	is->evaluator_start = c.space->evaluator;
	is->evaluator_end = c.space->evaluator_end;
	return 0;
}

#endif
