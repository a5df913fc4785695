/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Frames of interpreted programs. Their evaluators run in C: a native stack says that there are such frames, but not
 * whose. The interpreter's own list of frames is read beside the native stack (python.bpf.h,
 * ruby.bpf.h), as part of the stack's
 * identity. When a new stack is sent, each group of frames is put before the frame of the evaluator that runs it, which
 * is found by address: some structure of the interpreter lies in the evaluator's frame on the C stack. If the native walk
 * was cut off, the groups whose evaluators it did not reach are put behind its end: they are callers of what it found.
 */
#ifndef MEMPROF_INTERPRETER_H
#define MEMPROF_INTERPRETER_H

#include "base.bpf.h"
#include "counters.bpf.h"
#include "events.bpf.h"
#include "follow.bpf.h"
#include "frames.bpf.h"
#include "mappings.bpf.h"
#include "registers.bpf.h"
#include "unwind_tables.bpf.h"
#include "step.bpf.h"
#include "thread.bpf.h"
#include "window.bpf.h"

/* Maximum number of frames of interpreted functions in a stack. Those beyond are left out, with a mark. */
#define MAX_INTERPRETED 256
/* Maximum number of evaluators that run them. */
#define MAX_EVALUATORS 128

#define BUFFER_WORDS 32

struct interpreted_frame {
	__u64 code; /* address of the code object */
	__u32 instruction; /* distance from the code's start, bytes; or FRAME_NO_INSTRUCTION */
	__u32 check; /* of the code object; when the stack is sent: the function's number */
};

/* An evaluator, and the frames that it runs: those from the previous evaluator's on. */
struct evaluator {
	__u64 address; /* in its frame on the C stack; 0: not known */
	__u32 end; /* the first frame behind its own */
	__u32 pad;
};

/* Python: a code object that this walk has read already. Recursion and nested imports have few, again and again. */
struct seen_code {
	__u64 code;
	__u32 check;
	__u32 walk;
};

#define SEEN_CODES_BITS 3

enum interpreter_flag {
	INTERPRETER_LEFT_OUT = 1, /* more than MAX_INTERPRETED frames */
};

/* The interpreter's frames of a thread, innermost first. Only threads of interpreters have one. */
struct interpreter_stack {
	__u64 frame; /* the next frame */
	__u64 cframe; /* the evaluator's structure that belongs to it */
	__u64 thread; /* the thread's state in the interpreter */
	struct stack_hash hash;
	__u32 nr;
	__u32 evaluators;
	__u32 flags;
	/* Progress of sending. */
	__u32 at; /* next frame */
	__u32 evaluator;
	__u32 native; /* native frames of this part that are done */
	__u32 out; /* frames in the record */
	__u32 sent; /* frames in earlier records */
	__u32 unmerged;
	__u8 by_order; /* evaluators have no addresses: each runs one frame; user space puts them together */
	__u8 rest; /* the frames that are left when all native ones are sent are put behind them */
	__u16 pad;
	__u32 marked; /* native frames of this part up to the last one that was marked as an evaluator's */
	__u32 unstarted; /* evaluators that are not on the stack yet: of a call that is being set up */
	__u32 tags; /* Ruby: those that were found */
	__u32 walk; /* number of this walk */
	__u64 above; /* stack pointer behind the native frames that are sent */
	__u64 evaluator_start; /* the evaluator's code */
	__u64 evaluator_end;
	union {
		__u64 encoded[MAX_FRAMES]; /* the native frames to send, by encode_frame() */
		__u64 tag_addresses[MAX_FRAMES]; /* Ruby, during its walk: the tags found */
	};
	__u64 buffer[BUFFER_WORDS]; /* a structure of the interpreter */
	__u64 batch[BUFFER_WORDS]; /* Ruby: frames that were read together */
	struct interpreted_frame frames[MAX_INTERPRETED];
	struct evaluator all[MAX_EVALUATORS];
	struct seen_code seen[1 << SEEN_CODES_BITS];
};

_Static_assert(sizeof(struct interpreter_stack) <= 8192 - 128, "interpreter_stack"); /* see struct task_state */

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct interpreter_stack);
} interpreter_stacks SEC(".maps");

/* Files with an interpreter, by their numbers. User space writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct interpreter_file);
} interpreter_files SEC(".maps");

/* By address space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct interpreter_space);
} interpreter_spaces SEC(".maps");

/* Number of files in interpreter_files: without any, nothing here runs. */
__u32 interpreters = 0;

static __always_inline __u64 word_at(struct interpreter_stack *is, __u32 offset)
{
	return is->buffer[INDEX(offset >> 3, BUFFER_WORDS)];
}

static __always_inline __u32 half_at(struct interpreter_stack *is, __u32 offset)
{
	return word_at(is, offset) >> (offset & 4) * 8;
}

/* Adds a frame; one beyond the maximum is left out. */
static __always_inline void add_interpreted(struct interpreter_stack *is, __u32 mm_id, struct interpreted_frame *f)
{
	__u32 nr = is->nr;

	if (nr >= MAX_INTERPRETED) {
		is->flags |= INTERPRETER_LEFT_OUT;
		return;
	}
	is->frames[INDEX(nr, MAX_INTERPRETED)] = *f;
	is->nr = nr + 1;
	hash_word(&is->hash, f->code ^ mm_id * 0x9e3779b97f4a7c15ull);
	hash_word(&is->hash, (__u64)f->check << 32 | f->instruction);
}

/* The frames that were added since the last evaluator are run by this one. */
static __always_inline void end_evaluator(struct interpreter_stack *is, __u64 address)
{
	__u32 nr = is->evaluators;

	if (nr >= MAX_EVALUATORS) {
		is->flags |= INTERPRETER_LEFT_OUT;
		return;
	}
	is->all[INDEX(nr, MAX_EVALUATORS)].address = address;
	is->all[INDEX(nr, MAX_EVALUATORS)].end = is->nr;
	is->evaluators = nr + 1;
	hash_word(&is->hash, is->nr);
}

/* The initial value of new entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct interpreter_space);
} no_interpreter SEC(".maps");

struct attach_ctx {
	struct unwind_space *space;
	struct interpreter_space *found;
};

static long attach_step(__u64 i, struct attach_ctx *c)
{
	struct unwind_mapping *m = &c->space->at[INDEX(i, MAX_MAPPINGS)];
	struct interpreter_file *file;
	__u32 table = m->table;

	file = table ? bpf_map_lookup_elem(&interpreter_files, &table) : NULL;
	if (!file)
		return 0;
	c->found->python = file->python;
	c->found->ruby = file->ruby;
	c->found->kind = file->kind;
	c->found->code_type = file->code_type + m->bias;
	c->found->evaluator = file->evaluator + m->bias;
	c->found->evaluator_end = file->evaluator_end + m->bias;
	/* Last: other threads use it from then on. */
	*(volatile __u64 *)&c->found->runtime = file->runtime + m->bias;
	return 1;
}

/* The interpreter of an address space; NULL if there is none. */
static __noinline struct interpreter_space *find_interpreter(__u32 mm_id)
{
	struct attach_ctx c = { .found = bpf_map_lookup_elem(&interpreter_spaces, &mm_id) };
	__u32 nr, now;

	if (c.found && c.found->runtime)
		return c.found;
	c.space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	if (!c.space)
		return NULL;
	/* Looks again when code was mapped, or another file with an interpreter was found. */
	now = version_of(c.space) + (interpreters << 24);
	if (!c.found) {
		insert_initial(&interpreter_spaces, &mm_id, &no_interpreter);
		c.found = bpf_map_lookup_elem(&interpreter_spaces, &mm_id);
	} else if (c.found->checked == now) {
		return NULL;
	}
	if (!c.found)
		return NULL;
	nr = c.space->nr;
	bpf_loop(nr < MAX_MAPPINGS ? nr : MAX_MAPPINGS, attach_step, &c, 0);
	c.found->checked = now;
	return c.found->runtime ? c.found : NULL;
}

/* What is sent: frames of the walk, and those of an interpreter among them. */
struct fill_ctx {
	struct task_state *st;
	union {
		__u64 *encoded; /* for the native frames: in the record, or to be merged */
		struct interpreter_stack *is; /* while they are merged */
	};
};

static __always_inline int is_evaluator(struct interpreter_stack *is, __u64 ip)
{
	return ip >= is->evaluator_start && ip < is->evaluator_end;
}

/* Whether the native frame whose part of the stack is [low, high) is that of the next evaluator. */
static __always_inline int runs_next(struct interpreter_stack *is, __u64 low, __u64 high)
{
	__u32 next = is->evaluator;
	struct evaluator *e;

	if (next >= is->evaluators)
		return 0;
	e = &is->all[INDEX(next, MAX_EVALUATORS)];
	return e->address >= low && e->address < high;
}

/* Puts a frame into the record, which lies where the window was. (A mask tells 6.1's verifier the bound.) */
static __always_inline void put_frame(struct task_state *st, __u32 at, __u64 frame)
{
	st->window[INDEX(offsetof(struct stack_event, frames) / 8 + at, WINDOW_WORDS)] = frame;
}

/* Leaves the frames of the next evaluator out. */
static __always_inline void skip_evaluator(struct interpreter_stack *is)
{
	__u32 next = is->evaluator, end = is->all[INDEX(next, MAX_EVALUATORS)].end;

	is->unmerged += end - is->at;
	is->at = end;
	is->evaluator = next + 1;
}

/* Puts one of the interpreter's frames into the record, or the mark for those that were left out. */
static __always_inline void put_interpreted(struct task_state *st, struct interpreter_stack *is)
{
	struct interpreted_frame *in = &is->frames[INDEX(is->at, MAX_INTERPRETED)];
	__u64 frame = FRAME_INTERPRETED;

	if (is->at < is->nr) {
		frame |= (__u64)in->check << FRAME_FUNCTION_SHIFT | in->instruction;
		is->at++;
	} else {
		is->flags = 0;
	}
	put_frame(st, is->out, frame);
	is->out++;
}

/* Whether frames are left to be put behind the native ones. */
static __always_inline int has_rest(struct interpreter_stack *is)
{
	return is->rest && (is->at < is->nr || is->flags & INTERPRETER_LEFT_OUT);
}

/* Puts one frame into the record: an interpreter's, or a native one. */
static long merge_step(__u64 i, struct fill_ctx *c)
{
	struct interpreter_stack *is = c->is;
	struct task_state *st = c->st;
	__u32 out = is->out, next = is->evaluator;
	struct frame *f = &st->frames[INDEX(st->t.innermost - is->native, MAX_FRAMES)];
	struct frame *caller = &st->frames[INDEX(st->t.innermost - is->native - 1, MAX_FRAMES)];
	__u64 low = stack_address(st, f->sp), high = is->above;

	if (out >= MAX_SENT_FRAMES)
		return 1;
	if (is->native >= st->t.to_send) {
		if (!has_rest(is))
			return 1;
		put_interpreted(st, is);
		return 0;
	}
	if (is->by_order) {
		if (is_evaluator(is, f->ip) && is->marked <= is->native) {
			is->marked = is->native + 1;
			put_frame(st, out, FRAME_EVALUATOR);
			is->out = out + 1;
			return 0;
		}
		goto native;
	}
	if (is->native + 1 < st->t.to_send)
		high = stack_address(st, caller->sp);
	else if (is->rest && !is_evaluator(is, f->ip))
		high = low; /* its part of the stack ends nobody knows where */
	/* An evaluator that is nowhere on this stack: another greenlet's, for example. */
	if (next < is->evaluators && is->all[INDEX(next, MAX_EVALUATORS)].address < low) {
		skip_evaluator(is);
		return 0;
	}
	if (runs_next(is, low, high)) {
		__u32 end = is->all[INDEX(next, MAX_EVALUATORS)].end;

		if (is->at < end || (end == MAX_INTERPRETED && is->flags & INTERPRETER_LEFT_OUT)) {
			put_interpreted(st, is);
			return 0;
		}
		is->evaluator = next + 1;
	}
native:
	put_frame(st, out, is->encoded[INDEX(is->native, MAX_FRAMES)]);
	is->native++;
	is->out = out + 1;
	return 0;
}

/* Ends a stack whose frames were all sent: notes how many frames of the interpreter have no place on it. */
static __always_inline void end_merged(struct interpreter_stack *is, struct stack_event *s)
{
	s->unmerged = is->unmerged + is->nr - is->at;
	s->by_order = is->by_order;
}

#endif
