/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interfaces between the files of the library that a target preloads. docs/sampler.md describes the whole.
 *
 * The library has no dependency at run time and works with any C library, so it includes only the compiler's own
 * headers. It takes no lock and, after its start, makes no system call: it runs in signal handlers, after fork() in
 * threads, and under seccomp.
 */
#ifndef MEMPROF_SAMPLER_H
#define MEMPROF_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))
#define COLD __attribute__((cold, noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define CONFIG_MAGIC UINT64_C(0x31706165685f6d70) /* "pm_heap1" */

/* Configuration that memprof writes into its copy of the file before a process loads it: src/sampler.rs. */
struct config {
	uint64_t magic;
	uint64_t interval; /* mean bytes between two samples; 0: every nonempty allocation */
	uint64_t seed;     /* 0: a different seed in each process */
	uint64_t flags;
	uint64_t sets;     /* sets of the table of live samples, after the library's memory; 0: the built-in table */
	uint64_t plan;     /* offset of a plan of detours in the file, whole pages; 0: none */
	uint64_t plan_bytes;
};
enum {
	CONFIG_LEAVE_ENVIRONMENT = 1, /* programs that the target executes do not preload the library */
	CONFIG_INJECTED = 2,          /* the process was already running when it loaded the library */
	CONFIG_RDRAND = 4,            /* the processor has the instruction; set if no loader has loaded the library */
};

extern const volatile struct config memprof_heap_config;

/* Counters that memprof reads from the target. */
struct stats {
	uint64_t state;         /* enum state */
	uint64_t dropped;       /* samples that did not fit into the table, and were not reported */
	uint64_t dropped_bytes; /* weights of the dropped samples */
	uint64_t tracked;       /* samples in the table */
	uint64_t python;        /* enum python_state, in python.h */
};
enum state {
	STATE_NEW = 0,
	STATE_ACTIVE = 1,
	STATE_OWN_MALLOC = 2, /* the program has its own malloc, which takes precedence over the library's */
};
extern struct stats memprof_heap_stats;

/* Counters of patched imports, which memprof reads from a target that was already running. */
struct imports {
	uint64_t files;   /* loaded files with patched imports */
	uint64_t patched; /* imports that lead to the library now */
	uint64_t other;   /* unchanged imports, because they lead to another function */
	uint64_t failed;  /* imports that could not be written */
	uint64_t done;    /* 1: all loaded files were examined */
};
extern struct imports memprof_heap_imports;

static inline bool is_injected(void)
{
	return memprof_heap_config.flags & CONFIG_INJECTED;
}

/* State of a thread. */
struct thread {
	uint64_t left;   /* bytes to allocate before the next sample; 0 in a new thread */
	uint64_t random; /* state of the random generator; 0 in a new thread */
};
#ifdef WITHOUT_LOADER
#include "threads.h"
#else
/* Initial-exec TLS, because the library is loaded at the start: access takes one instruction. */
extern __thread struct thread thread_state __attribute__((tls_model("initial-exec")));
static inline __attribute__((always_inline)) struct thread *this_thread(void)
{
	return &thread_state;
}
#endif

/* next.c: the functions that the program would call without the library. */
struct symbol_request {
	const char *symbol;
	void *address;  /* NULL: no library after this one defines it */
	uintptr_t file; /* load address of the defining file */
};
struct own {
	const char *path;
	bool program_has_malloc; /* in the program, or in a library preloaded before this one */
};
void find_next(struct symbol_request *requests, size_t count, struct own *own);

/*
 * functions.c, operators.c, jemalloc.c: each finds its functions of the allocator. Called once, before the first call
 * of any of them.
 */
void find_functions(void);
void find_operators(uintptr_t malloc_file);
void find_jemalloc(void);

/* imports.c: for a process that was already running. */
struct import {
	const char *symbol;
	void *from; /* the function that the process calls by this name */
	void *to;   /* the function that it calls from then on */
};
/* Does nothing if `from` is NULL. */
void add_import(const char *symbol, void *from, void *to);
void patch_imports(void);

/* start.c */
void start(const char *own_path);
const char *finish_start(void);
void new_thread(struct thread *thread);
/* Continues with other random numbers, in a process that has inherited these. */
void reseed(uint64_t with);

/* random.c: sampling intervals and weights. */
uint64_t mix(uint64_t x);
uint64_t draw_interval(uint64_t *random);
uint64_t weighted_bytes(size_t size, uint64_t *random);

/* sample.c */
void *sampled(struct thread *thread, void *ptr, size_t size);

/* Counts an allocation's bytes, and samples the allocation if the next sampling point lies in them. Returns ptr. */
static inline __attribute__((always_inline)) void *counted(void *ptr, size_t size)
{
	struct thread *thread = this_thread();
	uint64_t left;
	if (unlikely(__builtin_sub_overflow(thread->left, (uint64_t)size, &left)))
		return sampled(thread, ptr, size);
	thread->left = left;
	return ptr;
}

/* table.c: addresses of live samples. */
#define FILTER_BITS 16
extern uint8_t filter[1 << FILTER_BITS];
typedef uintptr_t slot;

/*
 * Neighbours share a cache line of the filter, so the filter occupies cache in proportion to the heap of the program.
 */
static inline __attribute__((always_inline)) size_t filter_index(const void *ptr)
{
	uintptr_t address = (uintptr_t)ptr;
	return ((address ^ address >> FILTER_BITS) >> 10) & ((1 << FILTER_BITS) - 1);
}
/* False if no sample has this address. */
static inline __attribute__((always_inline)) bool may_be_sample(const void *ptr)
{
	/* A volatile access is compared in memory, an atomic one is loaded first. */
	return unlikely(*(volatile uint8_t *)&filter[filter_index(ptr)] != 0);
}

enum inserted { NO_ROOM, INSERTED, REPLACED };
enum inserted table_insert(void *ptr);
/* Returns whether the sample existed. */
bool table_remove(void *ptr);
/* Marks a sample whose block may be freed by a resize. Returns its slot, or NULL if there is no sample. */
slot *table_begin_resize(void *ptr);
/* Removes a marked sample. Returns false if another sample has the address by now. */
bool table_finish_resize(slot *resizing, void *ptr);
/* Removes the mark: the resize has failed. */
void table_cancel_resize(slot *resizing, void *ptr);

#endif
