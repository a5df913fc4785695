/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Copying what a system call moved from the memory of the process: a buffer, vectors, messages.
 */
#ifndef RECORDER_USER_H
#define RECORDER_USER_H

#include "records.bpf.h"

enum {
	/* Vectors of a call, as the kernel limits them, and their parts. */
	MAX_VECTORS = 1024,
	/* Messages of a call. */
	MAX_MESSAGES = 1024,
	/* Bytes of a call that are looked at, at most. */
	MAX_CALL = 64 << 20,
};

struct vector {
	__u64 address;
	__u64 length;
};

/* struct msghdr of user space, of a 64-bit program. */
struct message {
	__u64 name;
	__u64 name_length;
	__u64 vectors;
	__u64 vector_count;
	__u64 control;
	__u64 control_length;
	__u64 flags;
};

/* struct mmsghdr. */
struct counted_message {
	struct message message;
	__u32 length;
	__u32 unused;
};

/* Bytes of a call that are still to be copied: the context of loops. */
struct user_bytes {
	/* The part of memory. */
	__u64 address;
	__u64 part_end;
	/* The vectors after it. */
	__u64 vectors;
	__u64 vectors_end;
	/* Offset in the direction after the message. */
	__u64 end;
	/* Bytes of all messages. */
	__u64 total;
	/* struct counted_message of the call. */
	__u64 messages;
	struct record head;
};

/* Goes on to the next vector. Returns 0 if there is none. */
static __always_inline int next_vector(struct user_bytes *bytes)
{
	__u64 rest = bytes->end - bytes->head.offset;
	struct vector vector;

	if (bytes->vectors == bytes->vectors_end)
		return 0;
	if (bpf_probe_read_user(&vector, sizeof(vector), (void *)bytes->vectors))
		return 0;
	bytes->vectors += sizeof(vector);
	bytes->address = vector.address;
	bytes->part_end = vector.address + (vector.length < rest ? vector.length : rest);
	return 1;
}

/*
 * Copies a part of memory, of at most MAX_PART bytes. Returns 1 at the end. A global function, which the verifier checks once
 * instead of in every iteration with other values.
 */
__noinline int copy_part(struct user_bytes *bytes)
{
	struct sized_record *to;
	__u32 length, last;
	__u64 rest;

	if (!bytes || bytes->head.offset == bytes->end)
		return 1;
	if (bytes->address == bytes->part_end)
		return !next_vector(bytes);
	rest = bytes->part_end - bytes->address;
	last = opaque((rest > MAX_PART ? MAX_PART : rest) - 1);
	to = reserve(last);
	length = opaque(last) + 1;
	if (!to) {
		count_lost(length);
	} else {
		to->head = bytes->head;
		to->head.length = length;
		if (bpf_probe_read_user(to->data, length, (void *)bytes->address)) {
			COUNT(unreadable_bytes, length);
			bpf_ringbuf_discard(to, BPF_RB_NO_WAKEUP);
		} else {
			submit(to, 0);
		}
	}
	bytes->address += length;
	bytes->head.offset += length;
	return 0;
}

static long send_user_part(__u32 index, struct user_bytes *bytes)
{
	return copy_part(bytes) != 0;
}

/* Copies a message. What cannot be found of it is passed over. */
static __always_inline void send_user_bytes(struct user_bytes *bytes)
{
	/* Each vector takes an iteration, and each of its parts. */
	bpf_loop(2 * MAX_VECTORS + MAX_CALL / MAX_PART, send_user_part, bytes, 0);
	if (bytes->head.offset != bytes->end) {
		COUNT(unreadable_bytes, bytes->end - bytes->head.offset);
		bytes->head.offset = bytes->end;
	}
}

static __always_inline void set_vectors(struct user_bytes *bytes, __u64 vectors, __u64 count)
{
	bytes->address = bytes->part_end = 0;
	bytes->vectors = vectors;
	bytes->vectors_end = vectors + count * sizeof(struct vector);
}

static __always_inline void set_message(struct user_bytes *bytes, __u64 address)
{
	struct message message = {};

	bpf_probe_read_user(&message, sizeof(message), (void *)address);
	set_vectors(bytes, message.vectors, message.vector_count);
}

static long add_message(__u32 index, struct user_bytes *bytes)
{
	struct counted_message *messages = (void *)bytes->messages;
	__u32 length = 0;

	bpf_probe_read_user(&length, sizeof(length), &messages[index].length);
	bytes->total += length;
	return 0;
}

static long send_message(__u32 index, struct user_bytes *bytes)
{
	struct counted_message *messages = (void *)bytes->messages;
	__u32 length = 0;

	bpf_probe_read_user(&length, sizeof(length), &messages[index].length);
	set_message(bytes, (__u64)&messages[index]);
	bytes->end = bytes->head.offset + length;
	send_user_bytes(bytes);
	return 0;
}

#endif
