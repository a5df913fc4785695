// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Shared code of the workloads: errors, frames, the store loop, output.

#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
// Inlined even with -fno-inline.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// Not every workload stores to its pages.
#define MAY_BE_UNUSED __attribute__((unused))

static MAY_BE_UNUSED size_t page_size;

static inline void die(const char *what)
{
	perror(what);
	_exit(1);
}

// Does nothing. Compilers omit the frame of functions without calls, even with
// -fno-omit-frame-pointer; a function that calls this one has a frame.
static MAY_BE_UNUSED NOINLINE void keep_frame(void)
{
	__asm__ volatile("" ::: "memory");
}

// Overwrites what the calls before have left on the stack.
static MAY_BE_UNUSED NOINLINE void clean_stack(void)
{
	volatile char zero[1 << 16];

	for (size_t i = 0; i < sizeof(zero); i++)
		zero[i] = 0;
}

// The store loop. It is a macro, so that the stores belong to the caller: an
// inlined function would be a frame of its own.
#define store_each_page(start, len)                                            \
	do {                                                                   \
		unsigned char *const first_ = (start), *const end_ = first_ + (len); \
                                                                               \
		keep_frame();                                                  \
		for (volatile unsigned char *p_ = first_; p_ < end_; p_ += page_size) \
			*p_ = 0x5a;                                            \
	} while (0)

// New private memory.
static inline unsigned char *map_memory(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static inline unsigned char *resize(unsigned char *start, size_t len, size_t new_len)
{
	void *p = mremap(start, len, new_len, MREMAP_MAYMOVE);

	if (p == MAP_FAILED)
		die("mremap");
	return p;
}

static inline void drop_pages(unsigned char *start, size_t len)
{
	if (madvise(start, len, MADV_DONTNEED))
		die("madvise");
}

// Prints by write(2): stdio would allocate a buffer under another stack.
static inline void say(const char *text)
{
	size_t len = strlen(text);

	if (write(STDOUT_FILENO, text, len) != (ssize_t)len)
		die("write");
}

// Seconds of CLOCK_MONOTONIC.
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
