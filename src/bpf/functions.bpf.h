/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Functions of interpreted programs. Each function gets a number. The probe describes a function to user space when a
 * stack contains it for the first time, because then its frame ensures that it exists. Each interpreter has a header of
 * its own; the functions here choose between them.
 */
#ifndef MEMPROF_FUNCTIONS_H
#define MEMPROF_FUNCTIONS_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "interpreter.bpf.h"
#include "python.bpf.h"
#include "ruby.bpf.h"
#include "ruby_functions.bpf.h"
#include "thread.bpf.h"

/*
 * Numbers of the functions that user space knows. User space deletes functions of address spaces that no longer exist.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct function_key);
	__type(value, __u32);
} functions SEC(".maps");

__u32 last_function = 0;

/* The address in interpreted_frame.code. Ruby's bits above it contain something else. */
#define FUNCTION_ADDRESS ((1ull << RUBY_CODE_BITS) - 1)

/* The number of an unreadable function; no function has it. */
#define FUNCTION_UNREADABLE 0xffffffff

/*
 * Sends the description of a function to user space. Returns its number, FUNCTION_UNREADABLE, or 0 if the record does
 * not fit into the ring buffer. Global: verified once.
 */
__noinline __u32 send_function(struct task_state *st, struct interpreter_stack *is, struct interpreter_space *space,
			       struct interpreted_frame *f)
{
	struct function_event *e;
	__u32 function;
	__u64 size;
	long sent;

	if (!st || !is || !space || !f)
		return 0;
	e = &st->function;
	sent = space->kind == INTERPRETER_RUBY ? describe_ruby(is, space, f->code, e) :
						 describe_python(is, space, f->code, e);
	if (sent < 0)
		return FUNCTION_UNREADABLE;
	function = __sync_fetch_and_add(&last_function, 1) + 1;
	e->kind = EVENT_FUNCTION;
	e->mm_id = st->mm_id;
	e->pid = st->pid;
	e->function = function;
	e->code = f->code & FUNCTION_ADDRESS;
	e->check = f->check;
	e->interpreter = space->kind;
	/* The mask gives 6.1's verifier the bound. */
	size = INDEX(sent + offsetof(struct function_event, lines_table), 2048);
	/* User space must read an unsent table at once: the function may soon cease to exist. */
	if (e->lines_size && !sent ? emit_now(e, size) : emit(e, size))
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
	struct function_key key = { .code = f->code & FUNCTION_ADDRESS, .mm_id = c->st->mm_id, .check = f->check };
	__u32 *known = bpf_map_lookup_elem(&functions, &key), function;

	if (c->space->kind == INTERPRETER_RUBY)
		f->instruction = ruby_line(c->is, c->space, f);
	if (known) {
		f->check = *known;
		return 0;
	}
	function = send_function(c->st, c->is, c->space, f);
	f->check = function;
	if (!function)
		return 1;
	if (function == FUNCTION_UNREADABLE)
		return 0;
	/*
	 * If another thread was faster, user space knows both numbers. Without memory for an entry, the function is
	 * described again with the next new stack.
	 */
	bpf_map_update_elem(&functions, &key, &function, BPF_NOEXIST);
	return 0;
}

/*
 * Prepares the interpreter's frames for sending with their stack. Returns 0, or -1 if the record of a function does not
 * fit into the ring buffer. Global: verified once.
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
	is->at = is->sent = is->unmerged = is->rest = 0;
	is->evaluator = is->unstarted;
	if (is->unstarted)
		is->at = is->all[0].end;
	is->by_order = c.space->python.frames == PYTHON_OBJECTS;
	is->evaluator_start = c.space->evaluator;
	is->evaluator_end = c.space->evaluator_end;
	return 0;
}

/*
 * Reads the interpreter's frames of the current thread. Returns a hash of them, or 0 if there are none. Global:
 * verified once.
 */
__noinline __u64 walk_interpreter(struct task_state *st)
{
	struct interpreter_space *space;
	struct interpreter_stack *is;
	__u32 mm_id, found;

	if (!st)
		return 0;
	mm_id = st->mm_id;
	space = find_interpreter(mm_id);
	if (!space)
		return 0;
	is = bpf_task_storage_get(&interpreter_stacks, bpf_get_current_task_btf(), NULL,
				  BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!is)
		return 0;
	is->nr = is->evaluators = is->flags = is->unstarted = 0;
	is->hash.key = is->hash.check = 0;
	found = space->kind == INTERPRETER_RUBY ? walk_ruby(is, space, mm_id) : walk_python(st, is, space);
	return found ? (is->hash.key ^ is->flags) | 1 : 0;
}

#endif
