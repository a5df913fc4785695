/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The ring of records, its losses, and the sockets whose bytes are not wanted.
 */
#ifndef RECORDER_RECORDS_H
#define RECORDER_RECORDS_H

#include "network.bpf.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "recorder.h"

/* Maximum bytes of a record. */
#define MAX_PART 65536u

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counted SEC(".maps");

/* Numbers of sockets that user space ignores. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u8);
} ignored SEC(".maps");

/* Fill levels of the ring, in bytes. Above the first, user space is woken; above the second, there is room only for records without data. */
const volatile __u64 wake_level = 4 << 20;
const volatile __u64 data_level = 31 << 20;

/*
 * True from a wakeup until user space has read down to the level: it sleeps only when the ring is empty, so until then it needs no other
 * wakeup. A wakeup is an interrupt, which costs a virtual machine microseconds.
 */
__u8 woken = 0;

/* Adds to a counter of this processor. Atomic: from 7.0 on, programs are preempted by others on the same processor. */
#define COUNT(field, amount)                                                       \
	do {                                                                       \
		__u32 _zero = 0;                                                   \
		struct counters *_counters = bpf_map_lookup_elem(&counted, &_zero); \
		if (_counters)                                                     \
			__sync_fetch_and_add(&_counters->field, (amount));         \
	} while (0)

static __always_inline void count_lost(__u32 length)
{
	COUNT(lost_records, 1);
	COUNT(lost_bytes, length);
}

static __always_inline int is_ignored(__u64 socket, __u32 length)
{
	if (!bpf_map_lookup_elem(&ignored, &socket))
		return 0;
	COUNT(ignored_bytes, length);
	return 1;
}

/* The number whose lower half is `low`, nearest to `near`. */
static __always_inline __u64 nearest(__u64 near, __u32 low)
{
	return near + (__s32)(low - (__u32)near);
}

/*
 * Hides a number from the compiler, which leaves out comparisons that the verifier needs. Lengths are compared as the index of
 * the last byte, because 6.1's verifier does not learn from a comparison with 0 that a length is at least 1.
 */
static __always_inline __u32 opaque(__u32 number)
{
	asm volatile("" : "+r"(number));
	return number;
}

struct sized_record {
	struct record head;
	__u8 data[];
};

#define RESERVE(size)    \
	if (last < size) \
		return bpf_ringbuf_reserve(&records, sizeof(struct record) + size, 0)

/*
 * A record with room for `last` + 1 bytes, at most MAX_PART. The verifier wants constants: at most twice as many bytes are
 * reserved.
 */
static __always_inline struct sized_record *reserve(__u32 last)
{
	if (bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > data_level)
		return NULL;
	RESERVE(256);
	RESERVE(512);
	RESERVE(1024);
	RESERVE(2048);
	RESERVE(4096);
	RESERVE(8192);
	RESERVE(16384);
	RESERVE(32768);
	RESERVE(MAX_PART);
	return NULL;
}

/* Sends a record. Wakes user space if told to, or if enough waits. */
static __always_inline void submit(void *record, int wake)
{
	int enough = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > wake_level;
	__u64 flags = wake || (enough && !woken) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;

	if (woken != enough)
		woken = enough;
	bpf_ringbuf_submit(record, flags);
}

/* Sends a record without data. */
static __always_inline void send(const struct record *head, int wake)
{
	struct record *to = bpf_ringbuf_reserve(&records, sizeof(*to), 0);

	if (!to) {
		count_lost(0);
		return;
	}
	*to = *head;
	submit(to, wake);
}

#endif
