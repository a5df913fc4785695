/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * C++'s operators. Most implementations call malloc() and free(), where the bytes are counted: the operators here then
 * only lead to them. The operators of jemalloc, tcmalloc and mimalloc do not, so they are counted here.
 *
 * A program without C++ may load a library with C++ later, which then finds these operators. They call malloc() and
 * free() themselves in that case, because the library with the real operators may be unloaded again.
 *
 * All parameters are words: sizes, alignments, and the address of std::nothrow. Exceptions may pass through, so there
 * is nothing to undo. jemalloc's operators sometimes call malloc(): the count of bytes shows it.
 */
#include "sampler.h"
#include "samples.h"

extern void *malloc(size_t), *aligned_alloc(size_t, size_t);
extern void free(void *);

#define WORDS (uintptr_t first, uintptr_t second, uintptr_t third)

#define OPERATORS(NEW, DELETE) \
	NEW(_Znwm, 0, false) \
	NEW(_Znam, 0, false) \
	NEW(_ZnwmRKSt9nothrow_t, 0, true) \
	NEW(_ZnamRKSt9nothrow_t, 0, true) \
	NEW(_ZnwmSt11align_val_t, second, false) \
	NEW(_ZnamSt11align_val_t, second, false) \
	NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, second, true) \
	NEW(_ZnamSt11align_val_tRKSt9nothrow_t, second, true) \
	DELETE(_ZdlPv) \
	DELETE(_ZdaPv) \
	DELETE(_ZdlPvm) \
	DELETE(_ZdaPvm) \
	DELETE(_ZdlPvRKSt9nothrow_t) \
	DELETE(_ZdaPvRKSt9nothrow_t) \
	DELETE(_ZdlPvSt11align_val_t) \
	DELETE(_ZdaPvSt11align_val_t) \
	DELETE(_ZdlPvmSt11align_val_t) \
	DELETE(_ZdaPvmSt11align_val_t) \
	DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t) \
	DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)

typedef void *(*operator_new) WORDS;
typedef void(*operator_delete) WORDS;

static COLD void *malloc_failed(const char *name, uintptr_t first, uintptr_t second, uintptr_t third)
{
	struct symbol_request request = {.symbol = name};
	struct own own;
	find_next(&request, 1, &own);
	/* The real operator calls the program's handler, or throws. */
	if (request.address)
		return ((operator_new)request.address)(first, second, third);
	__builtin_trap();
}

static void *plain_new(const char *name, uintptr_t align, bool nothrow, uintptr_t first, uintptr_t second,
		       uintptr_t third)
{
	size_t size = first ? first : 1;
	void *ptr = align ? aligned_alloc(align, (size + align - 1) & -align) : malloc(size);
	return ptr || nothrow ? ptr : malloc_failed(name, first, second, third);
}

/*
 * The target of each operator: before the first call, first_; without a real operator, plain_; if the allocator's own
 * operator is counted here, counted_; else the real operator.
 */
#define NEW(name, align, nothrow) \
	static void *first_##name WORDS; \
	static operator_new next_##name, chosen_##name = first_##name; \
	static COLD void *first_##name WORDS \
	{ \
		find_functions(); \
		return chosen_##name(first, second, third); \
	} \
	static void *plain_##name WORDS \
	{ \
		return plain_new(#name, align, nothrow, first, second, third); \
	} \
	static void *counted_##name WORDS \
	{ \
		uint64_t left = this_thread()->left; \
		void *ptr = next_##name(first, second, third); \
		return this_thread()->left == left ? counted(ptr, first) : ptr; \
	} \
	EXPORTED void *name WORDS \
	{ \
		return chosen_##name(first, second, third); \
	}

#define DELETE(name) \
	static void first_##name WORDS; \
	static operator_delete next_##name, chosen_##name = first_##name; \
	static COLD void first_##name WORDS \
	{ \
		find_functions(); \
		chosen_##name(first, second, third); \
	} \
	static void plain_##name WORDS \
	{ \
		(void)second, (void)third; \
		free((void *)first); \
	} \
	static void counted_##name WORDS \
	{ \
		if (may_be_sample((void *)first)) \
			freed((void *)first); \
		next_##name(first, second, third); \
	} \
	EXPORTED void name WORDS \
	{ \
		chosen_##name(first, second, third); \
	}

OPERATORS(NEW, DELETE)

void find_operators(uintptr_t malloc_file)
{
#define REQUEST_NEW(name, align, nothrow) {.symbol = #name},
#define REQUEST_DELETE(name) {.symbol = #name},
	struct symbol_request requests[] = {OPERATORS(REQUEST_NEW, REQUEST_DELETE)}, *at = requests;
	struct own own;
	find_next(requests, sizeof requests / sizeof *requests, &own);
#define CHOOSE(name) \
	next_##name = at->address; \
	chosen_##name = !at->address ? plain_##name : at->file == malloc_file ? counted_##name : next_##name; \
	/* The others call malloc() and free(), where they are counted. */ \
	if (chosen_##name == counted_##name) \
		add_import(#name, at->address, name); \
	at++;
#define CHOOSE_NEW(name, align, nothrow) CHOOSE(name)
	OPERATORS(CHOOSE_NEW, CHOOSE)
}
