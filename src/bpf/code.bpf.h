/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * JIT code. Runtimes reuse its addresses for other code, so a stack with the same addresses may be another stack.
 */
#ifndef MEMPROF_CODE_H
#define MEMPROF_CODE_H

#include "base.bpf.h"

/*
 * For each granule of addresses, how often its code was replaced. Granules share counters, which is harmless: a stack
 * then gets one more id. User space increments a counter when it reads that a runtime has written other code
 * (probe/code.rs).
 */
__u32 code_generations[1 << CODE_GENERATION_BITS];

/* How often a jitdump file was written: replaces the code of all granules. */
__u32 code_generation_of_all;

/* Whether a followed process has mapped memory for JIT code. */
__u32 jit_code_seen;

/*
 * Whether the walk examines the code after a call before it uses the frame pointer. Set once a process has code that
 * needs it (epilogue_step()).
 */
__u32 code_has_epilogues;

static __always_inline __u64 code_slot(__u32 mm_id, __u64 addr)
{
	return (addr >> CODE_GRANULE_BITS) + (__u64)mm_id * 0x9e3779b1;
}

/* The generation of the code at an address, mixed for hashing. */
static __always_inline __u64 code_generation(__u32 mm_id, __u64 addr)
{
	__u64 slot = code_slot(mm_id, addr);
	__u64 generation = (__u64)code_generation_of_all << 32;

	generation += code_generations[INDEX(slot, 1 << CODE_GENERATION_BITS)];
	return generation * 0xbf58476d1ce4e5b9ull;
}

#endif
