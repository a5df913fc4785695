/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * python.c: the interface for the start of a process, and for functions that check CPython's tables from time to time.
 */
#ifndef MEMPROF_SAMPLER_PYTHON_H
#define MEMPROF_SAMPLER_PYTHON_H

#include "sampler.h"

struct dl_phdr_info;
struct symbols;

/* What memprof reads from the target about its Python interpreter. */
struct python_stats {
	uint64_t state; /* enum python_state */
};
enum python_state {
	PYTHON_NONE = 0,        /* no file exports CPython's functions */
	PYTHON_SAMPLED = 1,     /* the blocks of CPython's own allocator are sampled */
	PYTHON_USES_MALLOC = 2, /* CPython is configured to use malloc, whose blocks are sampled */
	PYTHON_HIDDEN = 3,      /* another allocator is installed, or the tables were not found */
};
extern struct python_stats memprof_heap_python;

/* Calls of realloc() that are still followed by a look at the tables. */
extern uint32_t python_watch;

/* Called by the constructor: examines the loaded files. */
void find_python(void);
/* Examines a file. Returns true if it, or an earlier one, is a Python interpreter. */
bool find_python_in(const struct dl_phdr_info *file, const struct symbols *symbols, bool is_permanent);
/* Looks at the tables again: the interpreter may have reset them. */
void restore_python(void);

#endif
