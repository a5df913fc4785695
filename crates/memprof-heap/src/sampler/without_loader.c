/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The library in a program that is linked statically. memprof maps it there, relocates it, and writes the jumps of the
 * detours; no code of the library runs for that (src/sampler/without_loader.rs).
 */
#if defined(__x86_64__)

#define WITHOUT_LOADER
#include "replacements.h"

struct threads EXPORTED memprof_heap_threads;

const struct tables EXPORTED memprof_heap_tables_without_loader = {
	.functions = FUNCTIONS,
	.quick = {
		[ALLOCATES] = memprof_heap_threads.places,
		[ALLOCATES_OR_THROWS] = memprof_heap_threads.places,
		[FREES] = filter,
	},
};

/* A number that differs between the children of a process. There is no system call that every sandbox allows. */
static uint64_t unique(void)
{
	uint64_t number = 0;
	if (memprof_heap_config.flags & CONFIG_RDRAND)
		__asm__ volatile("rdrand %0" : "+r"(number) : : "cc");
	return number;
}

/*
 * The first thread of a process that finds no others, because the process has just got the library, or was forked from
 * one that has it.
 */
static void begin(void)
{
	static bool is_seeded;
	reseed(is_seeded ? unique() : memprof_heap_config.seed);
	is_seeded = true;
}

COLD struct thread *find_place(struct place *first, uintptr_t owner)
{
	struct threads *all = &memprof_heap_threads;
	if (!__atomic_exchange_n(&all->known, 1, __ATOMIC_RELAXED))
		begin();
	struct place *free = NULL;
	for (struct place *place = first; place < first + NEIGHBORS; place++) {
		uintptr_t other = __atomic_load_n(&place->owner, __ATOMIC_RELAXED);
		if (other == owner)
			return &place->thread;
		if (other == 0 && free == NULL)
			free = place;
	}
	/* Threads that have ended keep their places, so one may have to be taken away. */
	if (free == NULL)
		free = first + mix(owner ^ first->thread.left) % NEIGHBORS;
	__atomic_store_n(&free->owner, owner, __ATOMIC_RELAXED);
	new_thread(&free->thread);
	return &free->thread;
}

#endif
