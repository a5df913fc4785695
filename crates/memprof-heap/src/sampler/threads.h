/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The state of threads in a process without a loader, which has no thread-local memory for the library: a table by the
 * address that %fs contains, which differs between the threads of a process.
 *
 * A thread may lose its place to another one. It then begins as a new thread: the bytes left before the next sample are
 * distributed as at the beginning at any time, so no estimate changes.
 */
#ifndef MEMPROF_SAMPLER_THREADS_H
#define MEMPROF_SAMPLER_THREADS_H

/* crates/memprof-code/src/allocators/detours/slot.rs has the same search in machine code. */
#define PLACE_BITS 12
#define NEIGHBORS 8

struct place {
	struct thread thread; /* first: the functions that get it find the place */
	uintptr_t owner;
};

/* memprof has a forked child find zeroes in these pages. */
struct threads {
	uint64_t known; /* 0: the process has taken no sample since it began */
	struct place places[(1 << PLACE_BITS) + NEIGHBORS];
} __attribute__((aligned(4096)));
extern struct threads memprof_heap_threads;

/* The thread's place among the neighbors of the first one. */
struct thread *find_place(struct place *first, uintptr_t owner);

static inline __attribute__((always_inline)) struct thread *this_thread(void)
{
	uintptr_t owner;
	/* All C libraries have %fs point to its own address. */
	__asm__("mov %%fs:0, %0" : "=r"(owner));
	struct place *first = &memprof_heap_threads.places[owner * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PLACE_BITS)];
	return __atomic_load_n(&first->owner, __ATOMIC_RELAXED) == owner ? &first->thread : find_place(first, owner);
}

#endif
