/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The parts of the library that a target preloads, as they see each other. docs/sampler.md describes the
 * whole.
 *
 * The library has no dependency at run time and serves any C library, so it includes only the compiler's own
 * headers. It takes no lock and makes no system call: it runs in signal handlers, after fork() in threads, and
 * under seccomp.
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

/* What memprof writes into its copy of the file before anything loads it: src/sampler.rs. */
struct config {
	uint64_t magic;
	uint64_t interval; /* mean bytes between two samples; 0: every allocation that is not empty */
	uint64_t seed;     /* 0: another one in each process */
	uint64_t flags;
	uint64_t sets;     /* sets of the table of live samples, behind the library's own memory; 0: those within it */
};
enum {
	CONFIG_LEAVE_ENVIRONMENT = 1, /* programs that the target executes are not to preload the library */
	CONFIG_INJECTED = 2,          /* the process was running already when it loaded the library */
};

extern const volatile struct config memprof_heap_config;

/* What memprof reads from the target. */
struct stats {
	uint64_t state;         /* enum state */
	uint64_t dropped;       /* samples that the table had no room for: nobody was told of them */
	uint64_t dropped_bytes; /* their weights */
	uint64_t tracked;       /* samples in the table */
};
enum state {
	STATE_NEW = 0,
	STATE_ACTIVE = 1,
	STATE_OWN_MALLOC = 2, /* the program has a malloc of its own, which comes before the library's */
};
extern struct stats memprof_heap_stats;

/* What memprof reads from a target that was running already: places in it that contain the address of a function. */
struct imports {
	uint64_t files;   /* loaded files in which some were patched */
	uint64_t patched; /* they lead to the library now */
	uint64_t other;   /* they do not lead to the function that the others lead to, and were left as they are */
	uint64_t failed;  /* they could not be written */
	uint64_t done;    /* 1: all loaded files were looked at */
};
extern struct imports memprof_heap_imports;

static inline bool is_injected(void)
{
	return memprof_heap_config.flags & CONFIG_INJECTED;
}

/* A thread's part. Initial-exec: the library is loaded at the start, and this is one instruction to reach. */
struct thread {
	uint64_t left;   /* bytes that are allocated before the next sample; 0 in a new thread */
	uint64_t random; /* state of the generator; 0 in a new thread */
};
extern __thread struct thread thread __attribute__((tls_model("initial-exec")));

/* next.c: the functions that the program would call without the library. */
struct wanted {
	const char *symbol;
	void *address;  /* NULL: no library after this one has it */
	uintptr_t file; /* the load address of the one that has it */
};
struct own {
	const char *path;
	bool program_has_malloc; /* the program, or what it preloads before this library */
};
void find_next(struct wanted *wanted, size_t count, struct own *own);

/*
 * functions.c, operators.c, jemalloc.c: their functions of the allocator. Called once, before the first of
 * them is.
 */
void find_functions(void);
void find_operators(uintptr_t malloc_file);
void find_jemalloc(void);

/* imports.c: in a process that was running already. */
struct import {
	const char *symbol;
	void *from; /* what the process calls by this name */
	void *to;   /* what it calls from then on */
};
/* Nothing if there is no such function. */
void add_import(const char *symbol, void *from, void *to);
void patch_imports(void);

/* start.c */
void start(const char *own_path);
void finish_start(void);
void new_thread(void);

/* random.c: sampling intervals and weights. */
uint64_t mix(uint64_t x);
uint64_t draw_interval(uint64_t *random);
uint64_t weighted_bytes(size_t size, uint64_t *random);

/* sample.c */
void *sampled(void *ptr, size_t size);

/* Counts an allocation's bytes, and samples it if the next sample lies among them. Returns ptr. */
static inline __attribute__((always_inline)) void *counted(void *ptr, size_t size)
{
	uint64_t left;
	if (unlikely(__builtin_sub_overflow(thread.left, (uint64_t)size, &left)))
		return sampled(ptr, size);
	thread.left = left;
	return ptr;
}

/* table.c: the addresses of the samples that are live. */
#define FILTER_BITS 16
extern uint8_t filter[1 << FILTER_BITS];
typedef uintptr_t slot;

/* Neighbours share a cache line of the filter, which then costs a program as much cache as its heap is large. */
static inline __attribute__((always_inline)) size_t filter_index(const void *ptr)
{
	uintptr_t address = (uintptr_t)ptr >> 10;
	return (address ^ (address >> FILTER_BITS)) & ((1 << FILTER_BITS) - 1);
}
/* False if ptr is no sample's address. */
static inline __attribute__((always_inline)) bool may_be_sample(const void *ptr)
{
	return unlikely(__atomic_load_n(&filter[filter_index(ptr)], __ATOMIC_RELAXED) != 0);
}

enum inserted { NO_ROOM, INSERTED, REPLACED };
enum inserted table_insert(void *ptr);
/* Whether there was such a sample. */
bool table_remove(void *ptr);
/* The sample's slot, now held: its block may be free already. NULL: no sample. */
slot *table_hold(void *ptr);
/* Takes a held sample out; false if that block's address is another sample's by now. */
bool table_drop(slot *held, void *ptr);
/* A held sample is as before. */
void table_restore(slot *held, void *ptr);

#endif
