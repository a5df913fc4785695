/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * python.c and python_tables.c: the blocks of CPython's own allocators.
 */
#ifndef MEMPROF_SAMPLER_PYTHON_H
#define MEMPROF_SAMPLER_PYTHON_H

#include "sampler.h"

struct dl_phdr_info;
struct symbols;

/* What memprof reads from the target about its Python interpreter. */
enum python_state {
	PYTHON_NEW = 0,         /* the loaded files were not examined yet */
	PYTHON_SAMPLED = 1,     /* the blocks of CPython's own allocator are sampled */
	PYTHON_USES_MALLOC = 2, /* CPython is configured to use malloc, whose blocks are sampled */
	PYTHON_HIDDEN = 3,      /* another allocator is installed, or the tables were not found */
	PYTHON_NONE = 4,        /* no file exports CPython's functions */
};

/* The order of the functions in CPython's tables. */
enum python_function { PYTHON_MALLOC, PYTHON_CALLOC, PYTHON_REALLOC, PYTHON_FREE, PYTHON_FUNCTIONS };
/* PyMemAllocatorDomain. */
enum python_domain { PYTHON_RAW, PYTHON_MEM, PYTHON_OBJ, PYTHON_DOMAINS };

/* python.c: an allocator's functions, and those of this library that call and replace them. */
struct python_allocator {
	void **originals; /* NULL: not found yet */
	void *own[PYTHON_FUNCTIONS];
};
/* pymalloc serves both domains; mimalloc has functions for each of them. */
extern const struct python_allocator python_pymalloc, python_mimalloc[PYTHON_DOMAINS];

/* Calls of realloc() that are still followed by a look at the tables. */
extern uint32_t python_watch;

/* Called by the constructor: examines the loaded files. */
void find_python(void);
/* Examines a file. Returns true if it, or an earlier one, is a Python interpreter. */
bool find_python_in(const struct dl_phdr_info *file, const struct symbols *symbols, bool is_permanent);
/* Looks at the tables again: the interpreter may have reset them. */
void restore_python(void);

#endif
