// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A malloc that samples by the samplers' contract, each allocation of a page or more, and gets it from the C library. To be
 * preloaded. Prints to standard error when somebody listens for the first time.
 */
#include <stddef.h>
#include <unistd.h>

#include "contract.h"

PROBES;

extern void *__libc_malloc(size_t size);
extern void __libc_free(void *at);

void *malloc(size_t size)
{
	static const char text[] = "the malloc is listened to\n";
	static int told;
	void *at = __libc_malloc(size);

	if (otel_memory_alloc_semaphore && !told++ && write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(1);
	if (otel_memory_alloc_semaphore && size >= 4096)
		asm volatile(NOTE("alloc", "8@%[at] 8@%[size] 8@%[size]")::[at] "r"(at), [size] "r"(size) : "memory");
	return at;
}

void free(void *at)
{
	if (otel_memory_free_semaphore)
		asm volatile(NOTE("free", "8@%[at]")::[at] "r"(at) : "memory");
	__libc_free(at);
}
