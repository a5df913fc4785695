/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * jemalloc's own functions, some of which tcmalloc has, too.
 *
 * Programs look whether such functions exist, and use them if so. Therefore they work without jemalloc as
 * well, by those of the C library. Programs that look for all of jemalloc do not find mallctl() then.
 *
 * Names with a prefix (je_mallocx, tc_malloc, mi_malloc) are not here for that reason: each family has functions that
 * the C library cannot stand for, and a program that finds one of them calls the others.
 */
#include "sampler.h"
#include "samples.h"

extern void *aligned_alloc(size_t, size_t), *calloc(size_t, size_t), *realloc(void *, size_t);
extern void free(void *);
extern __attribute__((weak)) size_t malloc_usable_size(void *);

/* In the flags: log2 of the alignment, and whether the new bytes are zero. */
#define ALIGN(flags) ((size_t)1 << ((flags)&63))
#define ZERO 0x40
/* Every allocator's blocks are aligned to as much. */
#define USUAL_ALIGN 16

/* The functions themselves, below. */
void *mallocx(size_t size, int flags), *rallocx(void *old, size_t size, int flags);
void dallocx(void *ptr, int flags), sdallocx(void *ptr, size_t size, int flags);
size_t xallocx(void *ptr, size_t size, size_t extra, int flags);

static void *(*next_mallocx)(size_t, int);
static void *(*next_rallocx)(void *, size_t, int);
static void (*next_dallocx)(void *, int);
static void (*next_sdallocx)(void *, size_t, int);
static size_t (*next_xallocx)(void *, size_t, size_t, int);
static bool found;

COLD void find_jemalloc(void)
{
	struct wanted wanted[] = {{.symbol = "mallocx"},
				  {.symbol = "rallocx"},
				  {.symbol = "dallocx"},
				  {.symbol = "sdallocx"},
				  {.symbol = "xallocx"}};
	struct own own;
	find_next(wanted, sizeof wanted / sizeof *wanted, &own);
	next_mallocx = wanted[0].address;
	next_rallocx = wanted[1].address;
	next_dallocx = wanted[2].address;
	next_sdallocx = wanted[3].address;
	next_xallocx = wanted[4].address;
	found = true;
	add_import("mallocx", wanted[0].address, mallocx);
	add_import("rallocx", wanted[1].address, rallocx);
	add_import("dallocx", wanted[2].address, dallocx);
	add_import("sdallocx", wanted[3].address, sdallocx);
	add_import("xallocx", wanted[4].address, xallocx);
}

static inline void ready(void)
{
	if (unlikely(!found))
		find_functions();
}

EXPORTED void *mallocx(size_t size, int flags)
{
	ready();
	if (next_mallocx)
		return counted(next_mallocx(size, flags), size);
	size_t align = ALIGN(flags);
	if (align <= USUAL_ALIGN)
		return calloc(1, size);
	if (size > SIZE_MAX / 2)
		return NULL;
	size_t bytes = (size + align - 1) & -align;
	uint8_t *ptr = aligned_alloc(align, bytes);
	for (volatile uint8_t *at = ptr; ptr && flags & ZERO && at < ptr + size; at++)
	 *at = 0;
	return ptr;
}

EXPORTED void *rallocx(void *old, size_t size, int flags)
{
	ready();
	if (!next_rallocx)
		/* How many bytes to clear or to copy is known to the allocator only. */
		return ALIGN(flags) <= USUAL_ALIGN && !(flags & ZERO) ? realloc(old, size) : NULL;
	slot *held = may_be_sample(old) ? resize_begin(old) : NULL;
	void *ptr = next_rallocx(old, size, flags);
	if (unlikely(held != NULL))
		resize_end(held, old, ptr == NULL);
	return counted(ptr, size);
}

/*
 * Resizes in place, to between size and size + extra bytes, and returns how large the block is, which may be more. Smaller than
 * size: it is as it was.
 */
EXPORTED size_t xallocx(void *ptr, size_t size, size_t extra, int flags)
{
	ready();
	if (!next_xallocx)
		return malloc_usable_size ? malloc_usable_size(ptr) : 0;
	slot *held = may_be_sample(ptr) ? resize_begin(ptr) : NULL;
	size_t usable = next_xallocx(ptr, size, extra, flags);
	bool failed = usable < size;
	if (unlikely(held != NULL))
		resize_end(held, ptr, failed);
	if (!failed)
		counted(ptr, usable - size < extra ? usable : size + extra);
	return usable;
}

EXPORTED void dallocx(void *ptr, int flags)
{
	ready();
	if (!next_dallocx) {
		free(ptr);
		return;
	}
	if (may_be_sample(ptr))
		freed(ptr);
	next_dallocx(ptr, flags);
}

EXPORTED void sdallocx(void *ptr, size_t size, int flags)
{
	ready();
	if (!next_sdallocx) {
		free(ptr);
		return;
	}
	if (may_be_sample(ptr))
		freed(ptr);
	next_sdallocx(ptr, size, flags);
}
