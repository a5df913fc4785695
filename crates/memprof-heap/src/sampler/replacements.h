/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions to which detours lead, for each kind of function. They call the original function by the instructions
 * that the jump has displaced. Included by detours.c, and by without_loader.c with other threads.
 *
 * The allocator's functions may call each other: nothing is counted while one of them runs, except in those that may
 * throw, where what was counted is not counted again.
 */
#ifndef MEMPROF_SAMPLER_REPLACEMENTS_H
#define MEMPROF_SAMPLER_REPLACEMENTS_H

#include "detours.h"
#include "samples.h"

typedef uintptr_t word;

/* A function with a detour. Its address is the fifth argument of the functions below, which the original lacks. */
struct detour {
	word (*next)(word, word, word, word);
	uint8_t size, count, pointer;
	/* Most calls need not come here (crates/memprof-code/src/allocators/detours/slot.rs). */
	uint8_t is_quick;
	uint8_t nested, in_a_row;
};
_Static_assert(offsetof(struct detour, is_quick) == 11, "slot.rs");

#define PARAMETERS (word a, word b, word c, word d, struct detour *of)

static inline __attribute__((always_inline)) word argument(uint8_t index, word a, word b, word c, word d)
{
	return index == 0 ? a : index == 1 ? b : index == 2 ? c : d;
}

#define ARGUMENT(index) argument(of->index, a, b, c, d)

static inline __attribute__((always_inline)) size_t bytes_of PARAMETERS
{
	size_t size = ARGUMENT(size);
	return of->count == NO_ARGUMENT ? size : size * ARGUMENT(count);
}

/*
 * A quick call counts its bytes, and does not know that it has been called by a quick call. So no function is quick that may
 * call others that count: calls of it must first have called none many times in a row, and not have called one in a few
 * of the calls that come here, which are all those that are sampled.
 */
enum { NESTED = 4, IN_A_ROW = 16 };

static inline __attribute__((always_inline)) void learn(struct detour *of, bool nested)
{
	if (unlikely(nested)) {
		of->is_quick = 0;
		of->in_a_row = 0;
		of->nested += of->nested < NESTED;
	} else if (!of->is_quick && of->nested < NESTED && ++of->in_a_row >= IN_A_ROW) {
		of->is_quick = 1;
	}
}

/* malloc() and others like it. */
static word allocates_first PARAMETERS
{
	struct thread *caller = this_thread();
	uint64_t left = caller->left;
	caller->left = UINT64_MAX;
	void *ptr = (void *)of->next(a, b, c, d);
	learn(of, caller->left != UINT64_MAX);
	caller->left = left;
	return (word)counted(ptr, a);
}

static word allocates PARAMETERS
{
	size_t size = bytes_of(a, b, c, d, of);
	return (word)counted((void *)UNCOUNTED(of->next(a, b, c, d)), size);
}

/* An exception may pass through, so there is nothing to undo. */
static word allocates_or_throws PARAMETERS
{
	size_t size = bytes_of(a, b, c, d, of);
	uint64_t left = this_thread()->left;
	void *ptr = (void *)of->next(a, b, c, d);
	bool nested = this_thread()->left != left;
	learn(of, nested);
	return (word)(nested ? ptr : counted(ptr, size));
}

static inline __attribute__((always_inline)) word resized(bool frees, word a, word b, word c, word d,
							   struct detour *of)
{
	void *old = (void *)ARGUMENT(pointer);
	size_t size = bytes_of(a, b, c, d, of), product;
	bool overflow = of->count != NO_ARGUMENT && __builtin_mul_overflow(ARGUMENT(size), ARGUMENT(count), &product);
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	void *ptr = (void *)UNCOUNTED(of->next(a, b, c, d));
	/* Without a new block, a block resized to 0 bytes is free. */
	bool failed = !frees && ptr == NULL && (size != 0 || overflow);
	if (unlikely(resizing != NULL))
		resize_end(resizing, old, failed);
	return (word)counted(ptr, size);
}

static word resizes PARAMETERS
{
	return resized(false, a, b, c, d, of);
}

static word resizes_or_frees PARAMETERS
{
	return resized(true, a, b, c, d, of);
}

static word stores PARAMETERS
{
	size_t size = bytes_of(a, b, c, d, of);
	void **ptr = (void **)ARGUMENT(pointer);
	word error = UNCOUNTED(of->next(a, b, c, d));
	if ((int)error == 0)
		counted(*ptr, size);
	return error;
}

static word frees_first PARAMETERS
{
	if (may_be_sample((void *)a))
		freed((void *)a);
	return of->next(a, b, c, d);
}

static word frees PARAMETERS
{
	void *ptr = (void *)ARGUMENT(pointer);
	if (may_be_sample(ptr))
		freed(ptr);
	return of->next(a, b, c, d);
}

typedef word(*replacement) PARAMETERS;

/* What detours lead to, which memprof reads from the library's file. */
struct tables {
	/* By the kind, and whether quick calls are possible: the size, or the block of a function that frees, is the first argument. */
	replacement functions[KINDS][2];
	/* Where quick calls find what they need, by the kind; NULL: in the thread-local memory. */
	const void *quick[KINDS];
};
#define FUNCTIONS \
	{ \
		[ALLOCATES] = {allocates, allocates_first}, \
		[ALLOCATES_OR_THROWS] = {allocates_or_throws, allocates_or_throws}, \
		[RESIZES] = {resizes, resizes}, \
		[RESIZES_OR_FREES] = {resizes_or_frees, resizes_or_frees}, \
		[STORES] = {stores, stores}, \
		[FREES] = {frees, frees_first}, \
	}

#endif
