// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Has jemalloc speak the samplers' contract: jemalloc's hooks for its own samples fire the probes. To be preloaded with a jemalloc
// that has these hooks (after 5.3.0), with MALLOC_CONF=prof:true,prof_active:false. Says on standard error if it has none, and when
// somebody listens for the first time.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "contract.h"

PROBES;

extern __attribute__((weak)) int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size);

static double interval;

/* jemalloc samples by usable bytes; the program's figures are of requested ones. */
static void sampled(const void *at, size_t size, void **frames, unsigned nr_frames, size_t usable)
{
	static const char text[] = "jemalloc is listened to\n";
	static int told;
	uint64_t weight = (uint64_t)((double)size / -expm1(-(double)usable / interval) + 0.5);

	(void)frames, (void)nr_frames;
	if (otel_memory_alloc_semaphore && !told++ && write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(1);
	if (otel_memory_alloc_semaphore)
		__asm__ volatile(NOTE("alloc", "8@%[at] 8@%[size] 8@%[weight]")::[at] "r"(at), [size] "r"(size),
				 [weight] "r"(weight)
				 : "memory");
}

static void freed(const void *at, size_t usable)
{
	(void)usable;
	if (otel_memory_free_semaphore)
		__asm__ volatile(NOTE("free", "8@%[at]")::[at] "r"(at) : "memory");
}

/* The stack is memprof's matter. */
static void no_backtrace(void **frames, unsigned *nr_frames, unsigned most)
{
	(void)frames, (void)most;
	*nr_frames = 0;
}

static int set(const char *name, void *value, size_t size)
{
	return !mallctl || mallctl(name, NULL, NULL, value, size);
}

__attribute__((constructor)) static void start(void)
{
	static const char text[] = "this jemalloc has no hooks for samples\n";
	void (*on_sample)(const void *, size_t, void **, unsigned, size_t) = sampled;
	void (*on_free)(const void *, size_t) = freed;
	void (*backtrace)(void **, unsigned *, unsigned) = no_backtrace;
	size_t lg = 0, size = sizeof(lg);
	_Bool on = 1;

	if (set("experimental.hooks.prof_backtrace", &backtrace, sizeof(backtrace)) ||
	    set("experimental.hooks.prof_sample", &on_sample, sizeof(on_sample)) ||
	    set("experimental.hooks.prof_sample_free", &on_free, sizeof(on_free)) ||
	    mallctl("prof.lg_sample", &lg, &size, NULL, 0) || set("prof.active", &on, sizeof(on))) {
		if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
			_exit(1);
		return;
	}
	interval = (double)((uint64_t)1 << lg);
}
