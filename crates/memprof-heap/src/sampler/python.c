/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions that CPython calls in place of its own allocator's: pymalloc, and the mimalloc of free-threaded builds.
 * python_tables.c writes their addresses into CPython's tables.
 */
#include "python.h"
#include "samples.h"

typedef void *malloc_function(void *, size_t);
typedef void *calloc_function(void *, size_t, size_t);
typedef void *realloc_function(void *, void *, size_t);
typedef void free_function(void *, void *);

/* The functions of an allocator. Written once, in the order of enum python_function. */
struct originals {
	malloc_function *malloc;
	calloc_function *calloc;
	realloc_function *realloc;
	free_function *free;
};
/* pymalloc serves both domains; mimalloc has functions for each of them. */
static struct originals pymalloc, mimalloc_mem, mimalloc_obj;

/* pymalloc passes larger requests to the raw domain, so malloc() counts them. */
#define MAX_SMALL 512

static inline bool is_small(size_t size)
{
	return size - 1 < MAX_SMALL;
}

/*
 * Counts a block before it is allocated, so that the fast path ends with a jump to the allocator. False if it is to be
 * sampled. pymalloc's own tables come from the raw domain, and malloc() counts them as allocations.
 */
static inline __attribute__((always_inline)) bool is_counted(size_t size)
{
	struct thread *thread = this_thread();
	uint64_t left;
	if (unlikely(__builtin_sub_overflow(thread->left, (uint64_t)size, &left)))
		return false;
	thread->left = left;
	return true;
}

/*
 * Without memory for an arena, pymalloc passes a small request to the raw domain, too. Then malloc() has counted the
 * block if it was not to be sampled here, so it is not sampled here either.
 */
#define SAMPLED_SMALL(call, size) \
	({ \
		struct thread *thread = this_thread(); \
		uint64_t before = thread->left; \
		thread->left = UINT64_MAX; \
		void *block = (call); \
		bool is_small_one = thread->left != UINT64_MAX - (size); \
		thread->left = before; \
		sampled(thread, is_small_one ? block : NULL, size); \
		block; \
	})

static COLD void *sampled_malloc(void *context, size_t size)
{
	return SAMPLED_SMALL(pymalloc.malloc(context, size), size);
}

static COLD void *sampled_calloc(void *context, size_t count, size_t size)
{
	return SAMPLED_SMALL(pymalloc.calloc(context, count, size), count * size);
}

static void *pymalloc_malloc(void *context, size_t size)
{
	if (!is_small(size) || likely(is_counted(size)))
		return pymalloc.malloc(context, size);
	return sampled_malloc(context, size);
}

static void *pymalloc_calloc(void *context, size_t count, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(count, size, &bytes) || !is_small(bytes) || likely(is_counted(bytes)))
		return pymalloc.calloc(context, count, size);
	return sampled_calloc(context, count, size);
}

/* As realloc() in functions.c. A block may move between pymalloc and the raw domain; CPython never resizes to 0 bytes. */
static inline __attribute__((always_inline)) void *resized(realloc_function *next, void *context, void *old, size_t size)
{
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	void *ptr = UNCOUNTED(next(context, old, size));
	if (unlikely(resizing != NULL))
		resize_end(resizing, old, ptr == NULL);
	return counted(ptr, size);
}

/* The rare part has the same parameters, so that the fast path moves none. */
#define RESIZE_AND_FREE(name) \
	static void *name##_realloc(void *context, void *old, size_t size) \
	{ \
		return resized(name.realloc, context, old, size); \
	} \
	static COLD void name##_free_sample(void *context, void *ptr) \
	{ \
		freed(ptr); \
		name.free(context, ptr); \
	} \
	static void name##_free(void *context, void *ptr) \
	{ \
		if (may_be_sample(ptr)) \
			name##_free_sample(context, ptr); \
		else \
			name.free(context, ptr); \
	}

/* mimalloc takes its memory from the kernel. */
#define ALLOCATE(name) \
	static void *name##_malloc(void *context, size_t size) \
	{ \
		return counted(name.malloc(context, size), size); \
	} \
	static void *name##_calloc(void *context, size_t count, size_t size) \
	{ \
		return counted(name.calloc(context, count, size), count * size); \
	}

RESIZE_AND_FREE(pymalloc)
ALLOCATE(mimalloc_mem)
RESIZE_AND_FREE(mimalloc_mem)
ALLOCATE(mimalloc_obj)
RESIZE_AND_FREE(mimalloc_obj)

#define ALLOCATOR(name) \
	{ \
		(void **)&name, {name##_malloc, name##_calloc, name##_realloc, name##_free} \
	}
const struct python_allocator python_pymalloc = ALLOCATOR(pymalloc);
const struct python_allocator python_mimalloc[PYTHON_DOMAINS] = {
	[PYTHON_MEM] = ALLOCATOR(mimalloc_mem),
	[PYTHON_OBJ] = ALLOCATOR(mimalloc_obj),
};
