/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Ruby's functions: their names, and the lines of their instructions. Read when a new stack is sent.
 */
#ifndef MEMPROF_RUBY_FUNCTIONS_H
#define MEMPROF_RUBY_FUNCTIONS_H

#include "base.bpf.h"
#include "interpreter.bpf.h"
#include "ruby.bpf.h"

static __always_inline __u32 bits_set(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ull;
	word = (word & 0x3333333333333333ull) + (word >> 2 & 0x3333333333333333ull);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return word * 0x0101010101010101ull >> 56;
}

/* Number of entries up to a position. */
static __always_inline __u32 ruby_rank(__u64 table, __u32 position)
{
	__u64 block, small;
	__u32 bit, part, rank;

	if (position < RUBY_FIRST_RANKS)
		return read_word(table + 8 * (position / 9)) >> 7 * (position % 9) & 0x7f;
	position -= RUBY_FIRST_RANKS;
	block = table + RUBY_FIRST_RANKS_BYTES + RUBY_BLOCK_BYTES * (__u64)(position / 512);
	bit = position % 512;
	part = bit / 64;
	rank = read_word(block);
	small = part ? read_word(block + 8) >> 9 * (part - 1) & 0x1ff : 0;
	return rank + small + bits_set(read_word(block + 16 + 8 * part) << (63 - bit % 64));
}

/*
 * The line of a frame's instruction, or FRAME_NO_INSTRUCTION. User space would need two tables of each function, which
 * may soon cease to exist. Global: verified once.
 */
__noinline __u32 ruby_line(struct interpreter_stack *is, struct interpreter_space *space, struct interpreted_frame *f)
{
	__u32 size, rank = 1, line = 0;
	__u64 body;

	if (!is || !space || !f || f->instruction == FRAME_NO_INSTRUCTION)
		return FRAME_NO_INSTRUCTION;
	body = read_word((f->code & ((1ull << RUBY_CODE_BITS) - 1)) + 16);
	/* { entries, positions, size, ranks } */
	if (!body || bpf_probe_read_user(is->buffer, 4 * 8, (void *)(body + space->ruby.insns_info)))
		return FRAME_NO_INSTRUCTION;
	size = is->buffer[2];
	if (size > 1)
		rank = ruby_rank(is->buffer[3], f->instruction);
	if (!rank || rank > size)
		return FRAME_NO_INSTRUCTION;
	bpf_probe_read_user(&line, sizeof(line), (void *)(is->buffer[0] + RUBY_ENTRY_BYTES * (__u64)(rank - 1)));
	return line && line < FRAME_NO_INSTRUCTION ? line : FRAME_NO_INSTRUCTION;
}

/* Copies at most `max` bytes of a text object: the first bytes, or the last bytes. */
static __always_inline void copy_ruby_text(struct interpreter_stack *is, struct ruby_layout *l, __u64 object,
					   struct sent_text *text, void *to, __u32 max, int last)
{
	__u64 at, length;
	__u32 size;

	text->length = text->sent = text->width = text->ascii = 0;
	/* { flags, class, length, pointer } */
	if (!object || bpf_probe_read_user(is->buffer, 4 * 8, (void *)object) ||
	    RUBY_TYPE(is->buffer[0]) != RUBY_STRING)
		return;
	length = is->buffer[2];
	at = is->buffer[3];
	if (!(is->buffer[0] & RUBY_USER1)) {
		at = object + l->text_embedded;
		if (!l->text_length)
			length = RUBY_EMBEDDED_LENGTH(is->buffer[0]);
	}
	text->width = TEXT_UTF8;
	text->length = length < 0xffffff ? length : 0xffffff;
	size = text->length;
	if (size > max) {
		if (last)
			at += size - max;
		size = max;
	}
	if (size > max || bpf_probe_read_user(to, size, (void *)at))
		return;
	text->sent = size;
}

/* The class of the method to which a frame belongs; 0 if there is none. */
static __always_inline __u64 ruby_owner(struct interpreter_stack *is, __u64 frame)
{
	__u64 environment = read_word(frame + 4 * 8), entry, outer;
	__u32 local;

#pragma clang loop unroll(disable)
	for (int i = 0; i < RUBY_MAX_ENVIRONMENTS; i++) {
		/* { method entry or class reference, the outer environment, flags } */
		if (bpf_probe_read_user(is->buffer, 3 * 8, (void *)(environment - 2 * 8)))
			return 0;
		entry = is->buffer[0];
		outer = is->buffer[1];
		local = is->buffer[2] & RUBY_LOCAL;
		if (entry && !(entry & 7) && !bpf_probe_read_user(is->buffer, 5 * 8, (void *)entry)) {
			/* In a method that uses $~, the method entry is inside. */
			if (RUBY_KIND(is->buffer[0]) == RUBY_SVAR &&
			    bpf_probe_read_user(is->buffer, 5 * 8, (void *)is->buffer[1]))
				return 0;
			if (RUBY_TYPE(is->buffer[0]) == RUBY_IMEMO && RUBY_KIND(is->buffer[0]) == RUBY_METHOD_ENTRY)
				return is->buffer[4];
		}
		if (local)
			return 0;
		environment = outer & ~3ull;
	}
	return 0;
}

/* Finds the name of a method's class. Returns the text object, or 0 if the class has no name of its own. */
static __always_inline __u64 ruby_class_name(struct interpreter_stack *is, struct ruby_layout *l, __u64 owner,
					     struct function_event *e)
{
	__u64 flags = read_word(owner), permanent;

	e->singleton = RUBY_TYPE(flags) == RUBY_CLASS && flags & RUBY_USER1;
	if (e->singleton) {
		owner = read_word(owner + l->class_attached);
		flags = read_word(owner);
	}
	if (RUBY_TYPE(flags) != RUBY_CLASS && RUBY_TYPE(flags) != RUBY_MODULE)
		return 0;
	/*
	 * permanent_classpath is bit 40 of the word before class_path: the lowest bit of the third byte from its end.
	 */
	permanent = read_word(owner + l->class_path - 8) >> 40 & 1;
	return permanent ? read_word(owner + l->class_path) : 0;
}

static __always_inline __u32 ruby_first_line(struct interpreter_stack *is, struct ruby_layout *l)
{
	return l->first_line_shift ? word_at(is, RUBY_BODY_FIRST_LINE) >> 1 : half_at(is, RUBY_BODY_FIRST_LINE);
}

/*
 * Describes a function: its names. Returns the number of bytes to send in addition to the fixed ones, or -1 if it
 * cannot be read.
 */
static __always_inline long describe_ruby(struct interpreter_stack *is, struct interpreter_space *space, __u64 code,
					  struct function_event *e)
{
	struct ruby_layout *l = &space->ruby;
	__u64 label, path, frame = is->cframe + (code >> RUBY_CODE_BITS) * l->frame_size;
	__u32 type, in_eval = 0;

	code &= (1ull << RUBY_CODE_BITS) - 1;
	if (bpf_probe_read_user(is->buffer, RUBY_BODY_BYTES, (void *)read_word(code + 16)))
		return -1;
	e->version = l->version;
	e->first_line = ruby_first_line(is, l);
	path = word_at(is, RUBY_BODY_PATH);
	/* A rescue clause and an eval have the name of the surrounding function. */
#pragma clang loop unroll(disable)
	for (int i = 0; i < RUBY_MAX_NESTED; i++) {
		type = half_at(is, 0);
		if (!l->joins_rescue || type < RUBY_RESCUE || type > RUBY_EVAL)
			break;
		in_eval |= type == RUBY_EVAL;
		if (bpf_probe_read_user(is->buffer, RUBY_BODY_BYTES,
					(void *)read_word(word_at(is, l->parent) + 16)))
			return -1;
		if (!in_eval)
			e->first_line = ruby_first_line(is, l);
	}
	e->lines = e->lines_size = e->singleton = 0;
	e->owner.width = e->owner.sent = 0;
	label = word_at(is, RUBY_BODY_LABEL);
	copy_ruby_text(is, l, label, &e->name, e->name_text, MAX_NAME, 0);
	/* A text, or an array of the path and the real path. */
	if (!bpf_probe_read_user(is->buffer, 5 * 8, (void *)path) && RUBY_TYPE(is->buffer[0]) == RUBY_ARRAY)
		path = is->buffer[0] & RUBY_USER1 ? is->buffer[2] : read_word(is->buffer[4]);
	copy_ruby_text(is, l, path, &e->file, e->file_text, MAX_FILE_NAME, 1);
	if (!l->class_path)
		return 0;
	copy_ruby_text(is, l, ruby_class_name(is, l, ruby_owner(is, frame), e), &e->owner, e->lines_table, MAX_NAME, 0);
	return e->owner.sent;
}

#endif
