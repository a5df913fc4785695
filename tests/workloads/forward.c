// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A preloaded library that only forwards: what any library costs that is called in place of the C library's.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define FUNCTIONS(F) \
	F(void *, malloc, (size_t size), (size)) \
	F(void, free, (void *ptr), (ptr)) \
	F(void *, calloc, (size_t count, size_t size), (count, size)) \
	F(void *, realloc, (void *old, size_t size), (old, size)) \
	F(int, posix_memalign, (void **ptr, size_t align, size_t size), (ptr, align, size)) \
	F(void *, aligned_alloc, (size_t align, size_t size), (align, size)) \
	F(void *, memalign, (size_t align, size_t size), (align, size))

#define FORWARD(type, name, parameters, arguments) \
	static type first_##name parameters; \
	static type(*next_##name) parameters = first_##name; \
	static type first_##name parameters \
	{ \
		next_##name = dlsym(RTLD_NEXT, #name); \
		return next_##name arguments; \
	} \
	type name parameters \
	{ \
		return next_##name arguments; \
	}

FUNCTIONS(FORWARD)
