/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * CPython's frames. The interpreter stores a thread's state for its own use while it has released the GIL: in the
 * thread's specific data of the C library, under a key in _PyRuntime. The state names its thread, and every code object
 * names its type, so wild pointers are detected.
 */
#ifndef MEMPROF_PYTHON_H
#define MEMPROF_PYTHON_H

#include "base.bpf.h"
#include "interpreter.bpf.h"
#include "thread.bpf.h"

/* Bytes read of a thread's state, and of a frame that is an object (up to 3.10). */
#define THREAD_BYTES 192
#define FRAME_OBJECT_BYTES 112
/* Bytes of a whole thread's state in 3.10: the first CFrame is at its end. */
#define THREAD_STATE_BYTES 280
#define FRAME_BYTES 72
#define FRAME_BYTES_3_14 80
/* Maximum number of words of frames in one read. */
#define FRAMES_WORDS 128
/* Bytes read of a code object, up to the last field in use. */
#define CODE_BYTES 144
/* Maximum number of frames examined, including those that are left out. */
#define MAX_EXAMINED 1024
/* Since 3.12: a frame on the C stack, in the evaluator's stack frame. */
#define OWNED_BY_C_STACK 3

/* The thread's value of a key whose entry is `at` bytes after the pointer at `pointer`. */
static __always_inline __u64 specific(__u64 thread, __u32 pointer, __u32 at)
{
	__u64 block = read_word(thread + pointer);

	return block ? read_word(block + at) : 0;
}

#define SLOT_POINTER_SHIFT 16

static __always_inline int is_thread(struct interpreter_space *space, __u64 state, __u64 thread)
{
	return state && read_word(state + space->python.thread_id) == thread;
}

/*
 * Finds the position of the thread's state in the C library's data of this process. glibc (tested with 2.36 and 2.43)
 * has pointers to blocks of 32 entries of 16 bytes at 0x510 in struct pthread. musl (not tested) has a pointer to an
 * array, at 0x80 or 0x78 in struct pthread. Only a state that names this thread is accepted.
 */
static __noinline int find_slot_of_thread(struct interpreter_stack *is, struct interpreter_space *space, __u64 thread)
{
	__u64 key = read_word(space->runtime + space->python.key);
	__u32 at, pointer;

	/* { int _is_initialized; pthread_key_t _key; } */
	if ((__u32)key != 1 || key >> 32 >= 1024)
		return 0;
	if (!may_try(is))
		return 0;
	key >>= 32;
	pointer = 0x510 + 8 * (key / 32);
	at = 16 * (key % 32) + 8;
	if (!is_thread(space, specific(thread, pointer, at), thread)) {
		pointer = 0x80;
		at = 8 * key;
		if (!is_thread(space, specific(thread, pointer, at), thread)) {
			pointer = 0x78;
			if (!is_thread(space, specific(thread, pointer, at), thread))
				return 0;
		}
	}
	space->slot = pointer << SLOT_POINTER_SHIFT | at;
	is->tries = 0;
	return 1;
}

/* Reads a thread's state. Fails if the state names another thread. */
static __always_inline int read_thread(struct interpreter_stack *is, struct python_layout *l, __u64 state, __u64 thread)
{
	is->thread = state;
	return state && !bpf_probe_read_user(is->buffer, THREAD_BYTES, (void *)state) &&
	       word_at(is, l->thread_id) == thread;
}

/* Finds the thread's state in the interpreter and its innermost frame. Returns whether there is a frame. */
static __always_inline int find_thread(struct interpreter_stack *is, struct interpreter_space *space)
{
	struct python_layout *l = &space->python;
	__u64 thread = thread_pointer(), state;

	if (!thread)
		return 0;
	/*
	 * First try the state of the running thread, which is right in a subinterpreter, too. 3.12 has no such word;
	 * 3.13 changes the value of the key.
	 */
	if (l->current && read_thread(is, l, read_word(space->runtime + l->current), thread))
		goto found;
	if (!space->slot && !find_slot_of_thread(is, space, thread))
		return 0;
	state = specific(thread, space->slot >> SLOT_POINTER_SHIFT, space->slot & 0xffff);
	if (!read_thread(is, l, state, thread))
		return 0;
found:
	is->frame = word_at(is, l->thread_frame);
	is->cframe = 0;
	if (l->frames == PYTHON_OBJECTS_CFRAMES)
		is->cframe = word_at(is, l->cframe_frame);
	if (l->frames == PYTHON_CFRAMES || l->frames == PYTHON_SHIMS_CFRAME) {
		is->cframe = is->frame;
		is->frame = is->cframe ? read_word(is->cframe + l->cframe_frame) : 0;
	}
	return is->frame || is->cframe;
}

struct python_ctx {
	struct task_state *st; /* the window is free after the native walk */
	struct interpreter_stack *is;
	struct interpreter_space *space;
	__u32 mm_id;
	__u32 pad;
};

/*
 * Skips an evaluator that is starting. In 3.11 and 3.12 its _PyCFrame is in the thread's state before the frame in it
 * is set. Continues with the caller's _PyCFrame. Returns whether there is none.
 */
static __always_inline long skip_starting(struct interpreter_stack *is, struct python_layout *l)
{
	if (l->frames == PYTHON_OBJECTS_CFRAMES || !is->cframe)
		return 1;
	is->cframe = read_word(is->cframe + l->cframe_previous);
	is->frame = is->cframe ? read_word(is->cframe + l->cframe_frame) : 0;
	return !is->frame;
}

/*
 * Reads a frame into the window. Returns the index of its first word, or WINDOW_WORDS if it cannot be read. Since 3.11
 * the frames of a thread are adjacent, with callers at lower addresses: one long read serves many frames. The read
 * begins in the frame's own page, because reading an absent page takes a microsecond.
 */
static __always_inline __u32 frame_at(struct task_state *st, __u64 frame, __u32 bytes, int objects)
{
	__u64 base = st->t.window_base, first = frame & ~4095ull;
	__u32 size;

	if (frame & 7)
		return WINDOW_WORDS;
	if (frame >= base && frame + bytes <= base + 8 * (__u64)st->t.window_words)
		return (frame - base) >> 3;
	if (objects)
		first = frame;
	else if (first < frame + bytes - 8 * FRAMES_WORDS)
		first = frame + bytes - 8 * FRAMES_WORDS;
	/* The mask gives the verifier the bound. */
	size = INDEX(frame + bytes - first, 16 * FRAMES_WORDS);
	st->t.window_base = first;
	st->t.window_words = size / 8;
	if (!bpf_probe_read_user(st->window, size, (void *)first))
		return (size - bytes) / 8;
	st->t.window_words = 0;
	return WINDOW_WORDS;
}

static __always_inline __u64 frame_word(struct task_state *st, __u32 at, __u32 offset)
{
	return st->window[INDEX(at + (offset >> 3), WINDOW_WORDS)];
}

/*
 * Reads a code object. Sets `check`, which distinguishes it from other code objects. Returns 0, or -1 if it is not a
 * code object.
 */
static __always_inline int check_code(struct interpreter_stack *is, struct interpreter_space *space,
				      struct interpreted_frame *f)
{
	struct seen_code *seen = &is->seen[INDEX(f->code * 0x9e3779b97f4a7c15ull >> 56, 1 << SEEN_CODES_BITS)];
	struct python_layout *l = &space->python;

	if (seen->code == f->code && seen->walk == is->walk) {
		f->check = seen->check;
		return 0;
	}
	if (bpf_probe_read_user(is->buffer, CODE_BYTES, (void *)f->code) || is->buffer[1] != space->code_type)
		return -1;
	f->check = half_at(is, l->code_first_line) ^ half_at(is, l->code_flags) << 20 ^
		   (__u32)(word_at(is, l->code_name) * 0x9e3779b1u >> 4) ^
		   (__u32)(word_at(is, l->code_file) * 0x85ebca6bu >> 4);
	seen->code = f->code;
	seen->check = f->check;
	seen->walk = is->walk;
	return 0;
}

/* Adds one frame and continues with its caller. */
static long python_step(__u64 i, struct python_ctx *c)
{
	struct python_layout *l = &c->space->python;
	struct interpreter_stack *is = c->is;
	struct interpreted_frame f = {};
	__u64 frame = is->frame, instruction;
	__u32 objects = l->frames <= PYTHON_OBJECTS_CFRAMES, bytes, at;
	__u8 entry;

	if (!frame)
		return is->nr || skip_starting(is, l);
	bytes = objects ? FRAME_OBJECT_BYTES : l->version < 14 ? FRAME_BYTES : FRAME_BYTES_3_14;
	at = frame_at(c->st, frame, bytes, objects);
	if (at >= WINDOW_WORDS)
		return is->nr || skip_starting(is, l);
	is->frame = frame_word(c->st, at, l->frame_previous);
	entry = frame_word(c->st, at, l->frame_entry) >> (l->frame_entry & 7) * 8;
	if (l->frames >= PYTHON_SHIMS_CFRAME && entry == OWNED_BY_C_STACK) {
		end_evaluator(is, frame);
		return 0;
	}
	f.code = frame_word(c->st, at, l->frame_code) & ~3ull; /* 3.14: the lowest bits are a tag */
	instruction = frame_word(c->st, at, l->frame_instruction);
	if (objects)
		instruction = (__u32)(instruction >> (l->frame_instruction & 4) * 8);
	if (check_code(is, c->space, &f))
		return is->nr || skip_starting(is, l);
	instruction = objects ? instruction * l->instruction_size : instruction - f.code - l->code_start;
	f.instruction = instruction < FRAME_NO_INSTRUCTION ? instruction : FRAME_NO_INSTRUCTION;
	add_interpreted(is, c->mm_id, &f);
	if (l->frames == PYTHON_OBJECTS_CFRAMES && is->cframe - is->thread < THREAD_STATE_BYTES) {
		/*
		 * No evaluator has the first CFrame. An evaluator that is ending removes its CFrame from the list a few
		 * instructions before its frame: then each frame got the evaluator of the next one.
		 */
		is->evaluators = 0;
		return 1;
	}
	if (l->frames == PYTHON_OBJECTS_CFRAMES || (l->frames == PYTHON_CFRAMES && entry)) {
		end_evaluator(is, is->cframe);
		if (is->cframe)
			is->cframe = read_word(is->cframe + l->cframe_previous);
	}
	return 0;
}

/* Reads the interpreter's frames of the current thread. Returns their number. */
static __noinline __u32 walk_python(struct task_state *st, struct interpreter_stack *is,
				    struct interpreter_space *space)
{
	struct python_ctx c = { .st = st, .is = is, .space = space, .mm_id = st->mm_id };

	if (!find_thread(is, space))
		return 0;
	is->walk++;
	st->t.window_words = 0;
	bpf_loop(MAX_EXAMINED, python_step, &c, 0);
	return is->nr;
}

/*
 * Copies at most `max` bytes of a text object: the first bytes, or the last bytes. Returns the number of bytes.
 * `header` is scratch space for five words, because the BPF stack is short.
 */
static __always_inline __u32 copy_python_text(struct python_layout *layout, __u64 object, struct sent_text *text,
					      void *to, __u32 max, int last, __u64 *header)
{
	__u32 state, width, size;
	__u64 at;

	text->length = text->sent = text->width = text->ascii = 0;
	/* Reference count, type, length, hash, state. */
	if (bpf_probe_read_user(header, 5 * 8, (void *)object))
		return 0;
	state = header[4];
	/* Bits of the state, from text_kind on: the width of a character (3 bits), compact, ASCII. */
	width = state >> layout->text_kind & 7;
	text->ascii = state >> (layout->text_kind + 4) & 1;
	if (width != 1 && width != 2 && width != 4)
		return 0;
	text->width = width;
	text->length = header[2] < 0xffffff ? header[2] : 0xffffff;
	size = text->length * width;
	at = object + (text->ascii ? layout->text_ascii : layout->text_compact);
	if (size > max) {
		if (last)
			at += size - max;
		size = max;
	}
	if (size > max || bpf_probe_read_user(to, size, (void *)at))
		return 0;
	text->sent = size;
	return size;
}

/* Represents every larger size of a table of lines. */
#define MAX_LINES_SIZE 0xffffffff

/*
 * Describes a function: its names and its table of lines. Returns the number of table bytes to send, or -1 if the code
 * object cannot be read.
 */
static __always_inline long describe_python(struct interpreter_stack *is, struct interpreter_space *space, __u64 code,
					    struct function_event *e)
{
	struct python_layout *l = &space->python;
	__u64 size;

	if (bpf_probe_read_user(is->buffer, CODE_BYTES, (void *)code))
		return -1;
	e->version = l->version;
	e->first_line = half_at(is, l->code_first_line);
	e->lines = word_at(is, l->code_lines);
	copy_python_text(l, word_at(is, l->code_name), &e->name, e->name_text, MAX_NAME, 0, (__u64 *)e->lines_table);
	copy_python_text(l, word_at(is, l->code_file), &e->file, e->file_text, MAX_FILE_NAME, 1,
			 (__u64 *)e->lines_table);
	e->owner.width = e->owner.sent = e->singleton = 0;
	/* A bytes object: reference count, type, size, hash, bytes. */
	size = read_word(e->lines + 16);
	e->lines_size = size < MAX_LINES_SIZE ? size : MAX_LINES_SIZE;
	if (size > MAX_LINES || bpf_probe_read_user(e->lines_table, size, (void *)(e->lines + 32)))
		size = 0;
	return size;
}

#endif
