/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Included by every other header: the kernel's types, the BPF helpers, the shared records.
 */
#ifndef MEMPROF_BASE_H
#define MEMPROF_BASE_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "memprof.h"

#ifndef NULL
#define NULL ((void *)0)
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

/*
 * Reduces an index below `n`, a power of two. The compiler drops a mask that it can prove redundant, and the
 * verifier, which cannot prove that, then rejects the access. The inline assembly hides the mask from the compiler.
 */
#if defined(__bpf__)
#define INDEX(i, n)                                                      \
	({                                                               \
		__u64 _index = (i);                                      \
		asm volatile("%0 &= %1" : "+r"(_index) : "i"((n) - 1));  \
		_index;                                                  \
	})
#else /* user space, in a test */
#define INDEX(i, n) ((__u64)(i) & ((n) - 1))
#endif

/*
 * Adds an entry to a map. The entry is a copy of the only value of the array `initial`, because the value is too large
 * for the BPF stack. Returns 0 if the entry is new.
 */
static __always_inline long insert_initial(void *map, const void *key, void *initial)
{
	__u32 zero = 0;
	void *value = bpf_map_lookup_elem(initial, &zero);

	return value ? bpf_map_update_elem(map, key, value, BPF_NOEXIST) : -1;
}

#endif
