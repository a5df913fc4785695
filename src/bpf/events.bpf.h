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

/* Sends a record and wakes user space. */
static __always_inline int emit_now(void *record, __u64 size)
{
	return bpf_ringbuf_output(&events, record, size, BPF_RB_FORCE_WAKEUP);
}

/* Sends a record; wakes user space once `wake_bytes` are waiting. */
static __always_inline int emit(void *record, __u64 size)
{
	__u64 flags = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_bytes ?
			      BPF_RB_FORCE_WAKEUP :
			      BPF_RB_NO_WAKEUP;

	return bpf_ringbuf_output(&events, record, size, flags);
}

#endif
