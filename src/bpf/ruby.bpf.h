/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Ruby's frames (CRuby). Each native thread has in thread-local storage (ruby_current_ec) a pointer to the execution
 * context of the fiber that it runs. The pointer stays valid when the thread releases the VM's lock; fibers and ractors
 * change it. Since 3.3, ruby_current_ec has no symbol in a stripped library. So the word is found by its target: an
 * execution context whose innermost frame lies on its own VM stack.
 *
 * The flag FINISH of a frame means that vm_exec() returns after it. Each vm_exec() has a tag on the C stack to which
 * exceptions jump, in a list of the execution context. Tags of other functions jump to other code. So the tags that
 * jump into vm_exec() and the frames with FINISH represent the same calls, and the tags give the calls their addresses.
 */
#ifndef MEMPROF_RUBY_H
#define MEMPROF_RUBY_H

#include "base.bpf.h"
#include "interpreter.bpf.h"
#include "thread.bpf.h"

/* Maximum number of frames examined: more than a VM stack of 1 MiB has. */
#define RUBY_MAX_FRAMES 16384
#define RUBY_MAX_TAGS 1024
/* Maximum number of words of thread-local storage examined. User space knows their real number. */
#define RUBY_TLS_WORDS 8
/* Maximum size of a VM stack, in words. */
#define RUBY_MAX_STACK (1 << 27)

/* Flags of an object: its type, whether its text is elsewhere, the kind of an internal object. */
#define RUBY_TYPE(flags) ((flags) & 0x1f)
#define RUBY_CLASS 2
#define RUBY_MODULE 3
#define RUBY_STRING 5
#define RUBY_ARRAY 7
#define RUBY_IMEMO 0x1a
#define RUBY_USER1 (1 << 13) /* text: not embedded; array: embedded; class: singleton class */
#define RUBY_EMBEDDED_LENGTH(flags) ((flags) >> 14 & 0x1f)
#define RUBY_KIND(flags) ((flags) >> 12 & 0xf)
#define RUBY_SVAR 2
#define RUBY_METHOD_ENTRY 6
#define RUBY_ISEQ 7

/* Flags of a frame's environment. */
#define RUBY_FINISH 0x20
#define RUBY_LOCAL 2

/* rb_iseq_constant_body: the same in all versions, up to the label. */
#define RUBY_BODY_BYTES 184
#define RUBY_BODY_USED 128 /* bytes that a walk reads */
#define RUBY_BODY_SIZE 4
#define RUBY_BODY_CODE 8
#define RUBY_BODY_PATH 64
#define RUBY_BODY_LABEL 80
#define RUBY_BODY_FIRST_LINE 88
/* Types of an instruction sequence. */
#define RUBY_RESCUE 4
#define RUBY_EVAL 6
/* Maximum number of instruction sequences around a rescue clause or an eval. */
#define RUBY_MAX_NESTED 4
/* Maximum number of environments around a block in the search for its method. */
#define RUBY_MAX_ENVIRONMENTS 8

/* struct succ_index_table: ranks of the first positions, nine in a word, then blocks. */
#define RUBY_FIRST_RANKS 54
#define RUBY_FIRST_RANKS_BYTES 48
#define RUBY_BLOCK_BYTES 80
#define RUBY_ENTRY_BYTES 12

/*
 * Bits of a function's address in interpreted_frame.code. The bits above them are the distance from the innermost
 * frame, in frames.
 */
#define RUBY_CODE_BITS 48

static __always_inline int is_context(struct interpreter_stack *is, __u64 ec)
{
	__u64 stack, size, frame;

	if (!ec || ec & 7 || bpf_probe_read_user(is->buffer, 4 * 8, (void *)ec))
		return 0;
	/* { vm_stack, vm_stack_size, cfp, tag } */
	stack = is->buffer[0];
	size = is->buffer[1];
	frame = is->buffer[2];
	return size && size <= RUBY_MAX_STACK && !(frame & 7) && frame > stack && frame < stack + size * 8;
}

/* This thread's storage for the interpreter's module. glibc has pairs of a pointer and the pointer to free. */
static __always_inline __u64 thread_storage(struct interpreter_space *space)
{
	__u64 thread = thread_pointer(), storage;

	if (!thread)
		return 0;
	if (!space->module)
		space->module = space->ruby.is_program ? 1 : (__u32)read_word(space->runtime);
	if (!space->module || space->module > 0xffff)
		return 0;
	storage = read_word(read_word(thread + 8) + 16 * (__u64)space->module);
	/* -1: not allocated in this thread. */
	return storage & 7 ? 0 : storage;
}

struct slot_ctx {
	struct interpreter_stack *is;
	struct interpreter_space *space;
	__u64 storage;
};

static long slot_step(__u64 i, struct slot_ctx *c)
{
	if (!is_context(c->is, read_word(c->storage + 8 * i)))
		return 0;
	c->space->slot = i + 1;
	return 1;
}

/* Finds the word of the storage that is ruby_current_ec. */
static __noinline int find_context_slot(struct interpreter_stack *is, struct interpreter_space *space, __u64 storage)
{
	struct slot_ctx c = { .is = is, .space = space, .storage = storage };
	__u32 words = space->ruby.tls_words;

	if (!may_try(is))
		return 0;
	bpf_loop(words < RUBY_TLS_WORDS ? words : RUBY_TLS_WORDS, slot_step, &c, 0);
	if (!space->slot)
		return 0;
	is->tries = 0;
	return 1;
}

struct ruby_ctx {
	struct interpreter_stack *is;
	struct interpreter_space *space;
	__u64 end; /* of the VM stack */
	__u64 guard; /* the value that the C library mixes into addresses in jump buffers */
	__u32 mm_id;
	__u16 left_out; /* skip the next frame: its rescue clause represents it */
	__u16 single; /* read frames one by one: the memory after them is unreadable */
};

/* Frames per read. A read costs about as much as the rest of the work on a frame. */
#define RUBY_BATCH 4

/* Adds one frame and continues with its caller. */
static long ruby_step(__u64 i, struct ruby_ctx *c)
{
	struct ruby_layout *l = &c->space->ruby;
	struct interpreter_stack *is = c->is;
	struct interpreted_frame f = {};
	__u64 frame = is->frame, pc, iseq, environment, position;
	__u32 nr = is->nr, type, at = i % RUBY_BATCH * (l->frame_size >> 3);

	if (frame + l->frame_size > c->end)
		return 1;
	is->frame = frame + l->frame_size;
	if (!at && bpf_probe_read_user(is->batch, sizeof(is->batch), (void *)frame))
		c->single = 1;
	if (c->single) {
		at = 0;
		if (bpf_probe_read_user(is->batch, 5 * 8, (void *)frame))
			return 1;
	}
	/* { pc, sp, iseq, self, ep } */
	pc = is->batch[INDEX(at, BUFFER_WORDS)];
	iseq = is->batch[INDEX(at + 2, BUFFER_WORDS)];
	environment = is->batch[INDEX(at + 4, BUFFER_WORDS)];
	/* A method written in C, or a library in C that is being loaded: vm_exec() does not run it. */
	if (!iseq || !pc)
		return 0;
	if (nr < MAX_INTERPRETED && !c->left_out) {
		/* { flags, wrapper, body } */
		if (bpf_probe_read_user(is->buffer, 3 * 8, (void *)iseq) || RUBY_TYPE(is->buffer[0]) != RUBY_IMEMO ||
		    RUBY_KIND(is->buffer[0]) != RUBY_ISEQ || iseq >> RUBY_CODE_BITS)
			return 1;
		if (bpf_probe_read_user(is->buffer, RUBY_BODY_USED, (void *)is->buffer[2]))
			return 1;
		/* The saved position is after the instruction. */
		position = (pc - word_at(is, RUBY_BODY_CODE)) >> 3;
		position -= position != 0;
		f.instruction = position < half_at(is, RUBY_BODY_SIZE) ? position : FRAME_NO_INSTRUCTION;
		f.check = (__u32)word_at(is, RUBY_BODY_FIRST_LINE) ^
			  (__u32)(word_at(is, RUBY_BODY_LABEL) * 0x9e3779b1u >> 4) ^
			  (__u32)(word_at(is, RUBY_BODY_PATH) * 0x85ebca6bu >> 4) ^
			  (__u32)(word_at(is, l->insns_info) * 0xc2b2ae35u >> 4);
		f.code = iseq;
		type = half_at(is, 0);
		c->left_out = l->joins_rescue && (type == RUBY_RESCUE || type == RUBY_RESCUE + 1);
		add_interpreted(is, c->mm_id, &f);
		is->frames[INDEX(nr, MAX_INTERPRETED)].code = iseq | i << RUBY_CODE_BITS;
	} else if (c->left_out) {
		c->left_out = 0;
	} else {
		is->flags |= INTERPRETER_LEFT_OUT;
	}
	if (read_word(environment) & RUBY_FINISH)
		end_evaluator(is, 0);
	return 0;
}

/* Examines one tag. Notes its address if it jumps into vm_exec(). */
static long ruby_tag_step(__u64 i, struct ruby_ctx *c)
{
	struct interpreter_stack *is = c->is;
	__u64 tag = is->frame, target;
	__u32 libc = c->space->jump_buffer == JUMP_BUFFER_LIBC, nr = is->tags;

	/* { tag, retval, jump buffer of 5 or 25 words, prev } */
	if (!tag || bpf_probe_read_user(is->buffer, libc ? 28 * 8 : 8 * 8, (void *)tag))
		return 1;
	target = is->buffer[3];
	is->frame = is->buffer[7];
	if (libc) {
		target = is->buffer[9];
		target = (target >> 17 | target << 47) ^ c->guard;
		is->frame = is->buffer[27];
	}
	if (target - c->space->evaluator >= c->space->evaluator_end - c->space->evaluator)
		return 0;
	is->tag_addresses[INDEX(nr, MAX_FRAMES)] = tag;
	is->tags = nr + 1;
	return nr + 1 >= MAX_FRAMES;
}

static __always_inline void find_tags(struct ruby_ctx *c, __u64 first, __u32 jump_buffer)
{
	c->space->jump_buffer = jump_buffer;
	c->is->tags = 0;
	c->is->frame = first;
	bpf_loop(RUBY_MAX_TAGS, ruby_tag_step, c, 0);
}

/* Assigns the addresses of tags to the calls of vm_exec(). */
struct locate_ctx {
	struct interpreter_stack *is;
	__u32 skipped; /* number of tags without an evaluator */
	__u32 pad;
};

static long locate_evaluator(__u64 i, struct locate_ctx *c)
{
	c->is->all[INDEX(i + c->is->unstarted, MAX_EVALUATORS)].address =
		c->is->tag_addresses[INDEX(i + c->skipped, MAX_FRAMES)];
	return 0;
}

static __always_inline void locate_evaluators(struct interpreter_stack *is, __u32 tags)
{
	struct locate_ctx c = { .is = is };
	__u32 calls = is->evaluators, nr;

	if (is->flags & INTERPRETER_LEFT_OUT || tags >= MAX_FRAMES) {
		/* Some frames or tags are unknown: they correspond from the innermost on. */
	} else if (calls == tags + 1) {
		/* A frame was pushed, and vm_exec() is about to be called. */
		is->unstarted = 1;
	} else if (tags == calls + 1) {
		/* A frame was popped, and vm_exec() is about to return. */
		c.skipped = 1;
	} else if (tags != calls) {
		return;
	}
	nr = tags - c.skipped;
	if (nr > calls - is->unstarted)
		nr = calls - is->unstarted;
	bpf_loop(nr < MAX_EVALUATORS ? nr : 0, locate_evaluator, &c, 0);
}

/* Reads the interpreter's frames of the current thread. Returns their number. */
static __noinline __u32 walk_ruby(struct interpreter_stack *is, struct interpreter_space *space, __u32 mm_id)
{
	struct ruby_ctx c = { .is = is, .space = space, .mm_id = mm_id };
	__u64 storage = thread_storage(space), first;

	if (!storage || (!space->slot && !find_context_slot(is, space, storage)))
		return 0;
	if (!is_context(is, read_word(storage + 8 * (space->slot - 1))))
		return 0;
	/* The outermost frame exists from the start and runs nothing. */
	c.end = is->buffer[0] + is->buffer[1] * 8 - space->ruby.frame_size;
	is->frame = is->cframe = is->buffer[2];
	first = is->buffer[3];
	bpf_loop(RUBY_MAX_FRAMES, ruby_step, &c, 0);
	if (!is->nr)
		return 0;
	c.guard = read_word(thread_pointer() + 0x30);
	if (space->jump_buffer) {
		find_tags(&c, first, space->jump_buffer);
	} else {
		find_tags(&c, first, JUMP_BUFFER_BUILTIN);
		if (!is->tags)
			find_tags(&c, first, JUMP_BUFFER_LIBC);
		if (!is->tags)
			space->jump_buffer = JUMP_BUFFER_UNKNOWN;
	}
	locate_evaluators(is, is->tags);
	return is->nr;
}

#endif
