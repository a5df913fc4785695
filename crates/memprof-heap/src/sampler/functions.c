/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions that programs call in place of their C library's.
 *
 * calloc(), realloc() and others may call other functions that this library replaces, as musl's do: nothing is counted
 * while they run. Allocations of a signal handler that interrupts one of them are not counted either.
 */
#include "detours.h"
#include "python.h"
#include "sampler.h"
#include "samples.h"

/*
 * The type of each function, and its substitute if the C library lacks it. The members of `next` are the functions that
 * the program would call without this library.
 */
#define FUNCTIONS(F) \
	F(void *, malloc, (size_t size), (size), missing) \
	F(void, free, (void *ptr), (ptr), missing) \
	F(void *, calloc, (size_t count, size_t size), (count, size), missing) \
	F(void *, realloc, (void *old, size_t size), (old, size), missing) \
	F(void *, reallocarray, (void *old, size_t count, size_t size), (old, count, size), own_reallocarray) \
	F(int, posix_memalign, (void **ptr, size_t align, size_t size), (ptr, align, size), missing_posix_memalign) \
	F(void *, aligned_alloc, (size_t align, size_t size), (align, size), missing) \
	F(void *, memalign, (size_t align, size_t size), (align, size), missing) \
	F(void *, valloc, (size_t size), (size), missing) \
	F(void *, pvalloc, (size_t size), (size), missing) \
	F(void, free_sized, (void *ptr, size_t size), (ptr, size), own_free_sized) \
	F(void, free_aligned_sized, (void *ptr, size_t align, size_t size), (ptr, align, size), own_free_aligned_sized)

/* The functions themselves, defined below. */
#define DECLARED(type, name, parameters, arguments, otherwise) type name parameters;
FUNCTIONS(DECLARED)

/* Initial members: the first call of any function finds the real ones. */
#define FIRST_DECLARED(type, name, parameters, arguments, otherwise) static type first_##name parameters;
#define MEMBER(type, name, parameters, arguments, otherwise) type(*name) parameters;
#define FIRST(type, name, parameters, arguments, otherwise) .name = first_##name,
FUNCTIONS(FIRST_DECLARED)
static struct {
	FUNCTIONS(MEMBER)
} next = {FUNCTIONS(FIRST)};

#define FIRST_DEFINED(type, name, parameters, arguments, otherwise) \
	static COLD type first_##name parameters \
	{ \
		find_functions(); \
		return next.name arguments; \
	}
FUNCTIONS(FIRST_DEFINED)

#define ENOSYS 38
extern __attribute__((weak)) int *__errno_location(void);

static void *missing(void)
{
	if (__errno_location)
		*__errno_location() = ENOSYS;
	return NULL;
}

static int missing_posix_memalign(void **ptr, size_t align, size_t size)
{
	(void)ptr, (void)align, (void)size;
	return ENOSYS;
}

static void *own_reallocarray(void *old, size_t count, size_t size)
{
	return __builtin_mul_overflow(count, size, &size) ? missing() : next.realloc(old, size);
}

static void own_free_sized(void *ptr, size_t size)
{
	(void)size;
	next.free(ptr);
}

static void own_free_aligned_sized(void *ptr, size_t align, size_t size)
{
	(void)align, (void)size;
	next.free(ptr);
}

/* Two threads that do this at once find the same functions. */
COLD void find_functions(void)
{
#define REQUEST(type, name, parameters, arguments, otherwise) {.symbol = #name},
	struct symbol_request requests[] = {FUNCTIONS(REQUEST)};
	struct own own = {0};
	find_next(requests, sizeof requests / sizeof *requests, &own);
	memprof_heap_stats.state = own.program_has_malloc ? STATE_OWN_MALLOC : STATE_ACTIVE;
	start(own.path);
	find_operators(requests[0].file);
	find_jemalloc();
	struct symbol_request *at = requests;
#define ASSIGN(type, name, parameters, arguments, otherwise) \
	next.name = at->address ? at->address : (void *)otherwise; \
	add_import(#name, at->address, name); \
	at++;
	FUNCTIONS(ASSIGN)
}

__attribute__((constructor)) static void constructor(void)
{
	if (next.malloc == first_malloc)
		find_functions();
	place_detours(finish_start());
	find_python();
	if (is_injected())
		patch_imports();
}

EXPORTED void *malloc(size_t size)
{
	return counted(next.malloc(size), size);
}

static COLD void free_sample(void *ptr)
{
	/* Before the free: once the block is free, another thread may get it. */
	freed(ptr);
	next.free(ptr);
}

EXPORTED void free(void *ptr)
{
	if (may_be_sample(ptr))
		free_sample(ptr);
	else
		next.free(ptr);
}

EXPORTED void *calloc(size_t count, size_t size)
{
	return counted(UNCOUNTED(next.calloc(count, size)), count * size);
}

/*
 * The sample is marked before the call, because another thread may own the block after the call. It stays if the call
 * fails. The block counts as a new allocation with the new size, even if it did not move.
 */
static inline void *resized(void *old, slot *resizing, void *ptr, size_t size, bool overflow)
{
	/* Without a new block, a block resized to 0 bytes is free, except in C libraries that always return a block. */
	bool failed = ptr == NULL && (size != 0 || overflow);
	if (unlikely(resizing != NULL))
		resize_end(resizing, old, failed);
	return counted(ptr, size);
}

EXPORTED void *realloc(void *old, size_t size)
{
	if (unlikely(python_watch != 0))
		restore_python();
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	return resized(old, resizing, UNCOUNTED(next.realloc(old, size)), size, false);
}

EXPORTED void *reallocarray(void *old, size_t count, size_t size)
{
	size_t bytes;
	bool overflow = __builtin_mul_overflow(count, size, &bytes);
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	return resized(old, resizing, UNCOUNTED(next.reallocarray(old, count, size)), bytes, overflow);
}

EXPORTED int posix_memalign(void **ptr, size_t align, size_t size)
{
	int error = UNCOUNTED(next.posix_memalign(ptr, align, size));
	if (error == 0)
		counted(*ptr, size);
	return error;
}

EXPORTED void *aligned_alloc(size_t align, size_t size)
{
	return counted(UNCOUNTED(next.aligned_alloc(align, size)), size);
}

EXPORTED void *memalign(size_t align, size_t size)
{
	return counted(UNCOUNTED(next.memalign(align, size)), size);
}

EXPORTED void *valloc(size_t size)
{
	return counted(UNCOUNTED(next.valloc(size)), size);
}

/* pvalloc() rounds up to whole pages. The caller did not request the extra bytes, so they are not counted. */
EXPORTED void *pvalloc(size_t size)
{
	return counted(UNCOUNTED(next.pvalloc(size)), size);
}

EXPORTED void free_sized(void *ptr, size_t size)
{
	if (may_be_sample(ptr))
		freed(ptr);
	next.free_sized(ptr, size);
}

EXPORTED void free_aligned_sized(void *ptr, size_t align, size_t size)
{
	if (may_be_sample(ptr))
		freed(ptr);
	next.free_aligned_sized(ptr, align, size);
}
