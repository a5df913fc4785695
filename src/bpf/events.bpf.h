/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The ring buffer that carries records to user space.
 */
#ifndef MEMPROF_EVENTS_H
#define MEMPROF_EVENTS_H

#include "base.bpf.h"
#include "settings.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

/*
 * User space's read position at the last wakeup. Until user space reads on, it needs no other wakeup: a wakeup is an
 * interrupt, which costs a virtual machine microseconds.
 */
__u64 woken_at = ~0ull;

/* Sends a record. If `wake`, wakes user space unless it was woken since its last read. */
static __always_inline int output(void *record, __u64 size, __u32 wake)
{
	__u64 read = bpf_ringbuf_query(&events, BPF_RB_CONS_POS);
	int failed;

	wake = wake && woken_at != read;
	if (wake)
		woken_at = read;
	failed = bpf_ringbuf_output(&events, record, size, wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	if (wake && failed)
		woken_at = ~0ull;
	return failed;
}

/* Sends a record and wakes user space. */
static __always_inline int emit_now(void *record, __u64 size)
{
	return output(record, size, 1);
}

/* Sends a record. Wakes user space once `wake_bytes` are pending. */
static __always_inline int emit(void *record, __u64 size)
{
	return output(record, size, bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_bytes);
}

#endif
