/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * jemalloc's own functions, some of which tcmalloc has, too.
 *
 * Programs check whether such functions exist, and then use them. Therefore these functions also work without jemalloc,
 * by calling those of the C library. Programs that check for all of jemalloc do not find mallctl() then.
 *
 * Names with a prefix (je_mallocx, tc_malloc, mi_malloc) are omitted for this reason: each family has functions that
 * the C library cannot replace, and a program that finds one of them calls the others.
 */
#include "sampler.h"
#include "samples.h"

extern void *aligned_alloc(size_t, size_t), *calloc(size_t, size_t), *realloc(void *, size_t);
extern void free(void *);
extern __attribute__((weak)) size_t malloc_usable_size(void *);

/* Flags: log2 of the alignment, and whether new bytes are zero. */
#define ALIGN(flags) ((size_t)1 << ((flags)&63))
#define ZERO 0x40
/* Every allocator aligns blocks to USUAL_ALIGN bytes at least. */
#define USUAL_ALIGN 16

/* The functions themselves, defined below. */
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
	struct symbol_request requests[] = {{.symbol = "mallocx"},
					    {.symbol = "rallocx"},
					    {.symbol = "dallocx"},
					    {.symbol = "sdallocx"},
					    {.symbol = "xallocx"}};
	struct own own;
	find_next(requests, sizeof requests / sizeof *requests, &own);
	next_mallocx = requests[0].address;
	next_rallocx = requests[1].address;
	next_dallocx = requests[2].address;
	next_sdallocx = requests[3].address;
	next_xallocx = requests[4].address;
	found = true;
	add_import("mallocx", requests[0].address, mallocx);
	add_import("rallocx", requests[1].address, rallocx);
	add_import("dallocx", requests[2].address, dallocx);
	add_import("sdallocx", requests[3].address, sdallocx);
	add_import("xallocx", requests[4].address, xallocx);
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
		/* Only the allocator knows how many bytes to clear or to copy. */
		return ALIGN(flags) <= USUAL_ALIGN && !(flags & ZERO) ? realloc(old, size) : NULL;
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	void *ptr = next_rallocx(old, size, flags);
	if (unlikely(resizing != NULL))
		resize_end(resizing, old, ptr == NULL);
	return counted(ptr, size);
}

/*
 * Resizes a block in place, to between size and size + extra bytes. Returns its usable size, which may be larger. If
 * that is below size, the block is unchanged.
 */
EXPORTED size_t xallocx(void *ptr, size_t size, size_t extra, int flags)
{
	ready();
	if (!next_xallocx)
		return malloc_usable_size ? malloc_usable_size(ptr) : 0;
	slot *resizing = may_be_sample(ptr) ? resize_begin(ptr) : NULL;
	size_t usable = next_xallocx(ptr, size, extra, flags);
	bool failed = usable < size;
	if (unlikely(resizing != NULL))
		resize_end(resizing, ptr, failed);
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
