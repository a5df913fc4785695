/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * sample.c: the interface for the replaced functions.
 */
#ifndef MEMPROF_SAMPLER_SAMPLES_H
#define MEMPROF_SAMPLER_SAMPLES_H

#include "sampler.h"

/* Calls a function whose own allocations are not counted. */
#define UNCOUNTED(call) \
	({ \
		struct thread *caller = this_thread(); \
		uint64_t left_before = caller->left; \
		caller->left = UINT64_MAX; \
		__auto_type result = (call); \
		caller->left = left_before; \
		result; \
	})

/* Called before the free of a block that may be a sample. */
void freed(void *ptr);
/* Called before the resize of a block that may be a sample. Returns NULL if it is not a sample. */
slot *resize_begin(void *ptr);
void resize_end(slot *resizing, void *ptr, bool failed);

#endif
