/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What every other header needs: the kernel's types, the BPF helpers, the shared records.
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
 * An index below `n`, a power of two. The compiler drops a mask that it can prove useless, and then
 * the verifier, which cannot prove that, refuses the access: so the mask is hidden from it.
 */
#if defined(__bpf__)
#define INDEX(i, n)                                                      \
	({                                                               \
		__u64 _index = (i);                                      \
		asm volatile("%0 &= %1" : "+r"(_index) : "i"((n) - 1));  \
		_index;                                                  \
	})
#else /* compiled for user space, by a test */
#define INDEX(i, n) ((__u64)(i) & ((n) - 1))
#endif

#endif
