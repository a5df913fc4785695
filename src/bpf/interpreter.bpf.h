/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Frames of interpreted programs. Evaluators are C functions: a native stack shows that they run interpreted functions,
 * but not which ones. The probe also reads the interpreter's own list of frames (python.bpf.h, ruby.bpf.h), and
 * includes it in the identity of the stack.
 *
 * When a new stack is sent, each group of interpreted frames goes before the frame of the evaluator that runs it. The
 * evaluator is found by address: a structure of the interpreter lies in the evaluator's frame on the C stack. If the
 * native walk was cut off, the groups of the evaluators beyond its end go after its end: they are callers of the frames
 * found.
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

/* Maximum number of interpreted frames in a stack. Frames beyond it are left out, with a mark. */
#define MAX_INTERPRETED 256
/* Maximum number of evaluators that run these frames. */
#define MAX_EVALUATORS 128

#define BUFFER_WORDS 32

struct interpreted_frame {
	__u64 code; /* address of the code object */
	__u32 instruction; /* distance from the start of the code, bytes; or FRAME_NO_INSTRUCTION */
	__u32 check; /* of the code object; while the stack is sent: the function's number */
};

/* An evaluator and the frames that it runs, which begin where the previous evaluator's end. */
struct evaluator {
	__u64 address; /* an address in its frame on the C stack; 0: unknown */
	__u32 end; /* index after its last frame */
	__u32 pad;
};

/* Python: a code object that this walk has already read. Recursion and nested imports repeat few code objects often. */
struct seen_code {
	__u64 code;
	__u32 check;
	__u32 walk;
};

#define SEEN_CODES_BITS 3

enum interpreter_flag {
	INTERPRETER_LEFT_OUT = 1, /* more than MAX_INTERPRETED frames */
};

/* The interpreter's frames of a thread, innermost first. Only threads of interpreters have this state. */
struct interpreter_stack {
	__u64 frame; /* the next frame */
	__u64 cframe; /* the evaluator's structure for this frame */
	__u64 thread; /* the thread's state in the interpreter */
	struct stack_hash hash;
	__u32 nr;
	__u32 evaluators;
	__u32 flags;
	/* Progress of sending. */
	__u32 at; /* next frame */
	__u32 evaluator;
	__u32 native; /* native frames of this record's part that are done */
	__u32 out; /* frames in the current record */
	__u32 sent; /* frames in earlier records */
	__u32 unmerged;
	__u8 by_order; /* evaluators have no addresses, and each runs one frame; user space merges them by order */
	__u8 rest; /* once all native frames are sent, the remaining interpreted frames go after them */
	__u16 tries; /* attempts to find the thread's state since the last success; see may_try() */
	__u32 marked; /* native frames of this part, up to the last one marked as an evaluator's */
	__u32 unstarted; /* evaluators that are not on the stack yet: their call is being set up */
	__u32 tags; /* Ruby: number of tags found */
	__u32 walk; /* number of this walk */
	__u64 above; /* stack pointer above the native frames that are sent */
	__u64 evaluator_start; /* address range of the evaluator's code */
	__u64 evaluator_end;
	union {
		__u64 encoded[MAX_FRAMES]; /* the native frames to send, by encode_frame() */
		__u64 tag_addresses[MAX_FRAMES]; /* Ruby, during its walk: addresses of the tags found */
	};
	__u64 buffer[BUFFER_WORDS]; /* a structure of the interpreter */
	__u64 batch[BUFFER_WORDS]; /* Ruby: frames that are read together */
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

/* Files with an interpreter, by file number. User space writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct interpreter_file);
} interpreter_files SEC(".maps");

/* Interpreters by address space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct interpreter_space);
} interpreter_spaces SEC(".maps");

/* Number of files in interpreter_files. While it is 0, nothing here runs. */
__u32 interpreters = 0;

/*
 * Attempts of a thread to find its state in the interpreter before only one attempt in TRIES is made: threads that the
 * interpreter does not know have no state.
 */
#define TRIES 64

/*
 * Whether this thread may try to find its state. Counted per thread: threads without a state that are busy would use up
 * the attempts of a whole process before a thread with a state makes its first one.
 */
static __always_inline int may_try(struct interpreter_stack *is)
{
	__u32 tries = ++is->tries;

	return tries <= TRIES || tries % TRIES == 0;
}

static __always_inline __u64 word_at(struct interpreter_stack *is, __u32 offset)
{
	return is->buffer[INDEX(offset >> 3, BUFFER_WORDS)];
}

static __always_inline __u32 half_at(struct interpreter_stack *is, __u32 offset)
{
	return word_at(is, offset) >> (offset & 4) * 8;
}

/* Adds a frame. Leaves it out, with a mark, if there are MAX_INTERPRETED frames. */
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

/* Adds an evaluator, which runs the frames added since the previous evaluator. */
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

/* Initial value of new entries. */
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
	/* Written last: from then on, other threads use the entry. */
	*(volatile __u64 *)&c->found->runtime = file->runtime + m->bias;
	return 1;
}

/* The interpreter of an address space; NULL if it has none. */
static __noinline struct interpreter_space *find_interpreter(__u32 mm_id)
{
	struct attach_ctx c = { .found = bpf_map_lookup_elem(&interpreter_spaces, &mm_id) };
	__u32 nr, now;

	if (c.found && c.found->runtime)
		return c.found;
	c.space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	if (!c.space)
		return NULL;
	/* Search again after code was mapped, or after another file with an interpreter was found. */
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

/* Frames to send: those of the walk, and among them those of an interpreter. */
struct fill_ctx {
	struct task_state *st;
	union {
		__u64 *encoded; /* encoded native frames: in the record, or in interpreter_stack for merging */
		struct interpreter_stack *is; /* during merging */
	};
};

static __always_inline int is_evaluator(struct interpreter_stack *is, __u64 ip)
{
	return ip >= is->evaluator_start && ip < is->evaluator_end;
}

/* Whether the native frame that spans the stack range [low, high) belongs to the next evaluator. */
static __always_inline int runs_next(struct interpreter_stack *is, __u64 low, __u64 high)
{
	__u32 next = is->evaluator;
	struct evaluator *e;

	if (next >= is->evaluators)
		return 0;
	e = &is->all[INDEX(next, MAX_EVALUATORS)];
	return e->address >= low && e->address < high;
}

/* Writes a frame to the record, which shares its memory with the window. The mask gives 6.1's verifier the bound. */
static __always_inline void put_frame(struct task_state *st, __u32 at, __u64 frame)
{
	st->window[INDEX(offsetof(struct stack_event, frames) / 8 + at, WINDOW_WORDS)] = frame;
}

/* Leaves out the frames of the next evaluator. */
static __always_inline void skip_evaluator(struct interpreter_stack *is)
{
	__u32 next = is->evaluator, end = is->all[INDEX(next, MAX_EVALUATORS)].end;

	is->unmerged += end - is->at;
	is->at = end;
	is->evaluator = next + 1;
}

/* Writes the next interpreted frame to the record, or the mark for omitted frames. */
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

/* Whether interpreted frames remain that go after the native frames. */
static __always_inline int has_rest(struct interpreter_stack *is)
{
	return is->rest && (is->at < is->nr || is->flags & INTERPRETER_LEFT_OUT);
}

/* Writes one frame to the record: an interpreted one or a native one. */
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
		high = low; /* its end on the stack is unknown */
	/* An evaluator that is not on this stack, for example another greenlet's. */
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

/* Completes a stack whose frames were all sent: notes the number of interpreted frames without a position on it. */
static __always_inline void end_merged(struct interpreter_stack *is, struct stack_event *s)
{
	s->unmerged = is->unmerged + is->nr - is->at;
	s->by_order = is->by_order;
}

#endif
