/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The addresses of live samples: a fixed table that threads and signal handlers change without locks.
 *
 * An address may be in one of two sets of eight slots, and is in at most one: only the thread that allocates or frees a
 * block changes its slot. A filter precedes the table: for each slice of the address space, the number of samples in
 * it.
 */
#include "sampler.h"

#define SETS (1 << 13)
#define WAYS 8
/* The end of the library's memory. For a larger table, memprof has the loader map zeroes after it. */
extern char _end[] __attribute__((visibility("hidden")));
/* Addresses of blocks are even. This bit marks a block that realloc() may have freed. */
#define RESIZING 1

uint8_t filter[1 << FILTER_BITS];
static slot table[SETS][WAYS] __attribute__((aligned(64)));

/*
 * The value of a slot is not the address itself. A search of the process's memory for references to a block, by memprof
 * or by a leak checker, must not find the table.
 */
static slot slot_value(uintptr_t address)
{
	return address ^ UINT64_C(0xffff) << 48;
}

/* Blocks of one size lie at regular distances, so every bit of the address must affect every bit of the set. */
static slot *set_of(uintptr_t address, int choice)
{
	uint64_t sets = memprof_heap_config.sets, hash = mix(address);
	slot(*all)[WAYS] = table;
	if (sets != 0)
		all = (void *)(((uintptr_t)_end + sizeof *all - 1) & -sizeof *all);
	else
		sets = SETS;
	uint64_t set = hash % sets;
	return all[choice == 0 ? set : (set + 1 + (hash >> 32) % (sets - 1)) % sets];
}

static int used(const slot *set)
{
	int count = 0;
	for (int way = 0; way < WAYS; way++)
		count += __atomic_load_n(&set[way], __ATOMIC_RELAXED) != 0;
	return count;
}

static bool change(slot *at, slot from, slot to)
{
	return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/*
 * The slot with this value, in one of the two sets of the address. NULL has no slot, because its value is that of empty
 * slots.
 */
static slot *find(uintptr_t address, slot value)
{
	if (address == 0)
		return NULL;
	for (int choice = 0; choice < 2; choice++) {
		slot *set = set_of(address, choice);
		for (int way = 0; way < WAYS; way++)
			if (__atomic_load_n(&set[way], __ATOMIC_RELAXED) == value)
				return &set[way];
	}
	return NULL;
}

/* Counts one more sample in the filter. Returns false if its counter is at the maximum. */
static bool filter_add(const void *ptr)
{
	uint8_t *count = &filter[filter_index(ptr)], old = __atomic_load_n(count, __ATOMIC_RELAXED);
	do {
		if (old == UINT8_MAX)
			return false;
	} while (!__atomic_compare_exchange_n(count, &old, old + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	__atomic_fetch_add(&memprof_heap_stats.tracked, 1, __ATOMIC_RELAXED);
	return true;
}

static void filter_sub(const void *ptr)
{
	__atomic_fetch_sub(&filter[filter_index(ptr)], 1, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&memprof_heap_stats.tracked, 1, __ATOMIC_RELAXED);
}

/*
 * REPLACED: the table already contains the block, so its free was missed. Another allocator's function freed it, or a
 * realloc() that has not returned yet.
 */
enum inserted table_insert(void *ptr)
{
	uintptr_t address = (uintptr_t)ptr;
	slot own = slot_value(address);
	slot *old = find(address, own);
	if (old)
		return REPLACED;
	old = find(address, own | RESIZING);
	if (old && change(old, own | RESIZING, own))
		return REPLACED;
	if (!filter_add(ptr))
		return NO_ROOM;
	/* Fill the emptier set first: then neither set is full before nearly all of the table is. */
	int first = used(set_of(address, 1)) < used(set_of(address, 0));
	for (int choice = 0; choice < 2; choice++) {
		slot *set = set_of(address, choice ^ first);
		for (int way = 0; way < WAYS; way++)
			if (change(&set[way], 0, own))
				return INSERTED;
	}
	filter_sub(ptr);
	return NO_ROOM;
}

bool table_remove(void *ptr)
{
	slot own = slot_value((uintptr_t)ptr);
	slot *at = find((uintptr_t)ptr, own);
	if (!at || !change(at, own, 0))
		return false;
	filter_sub(ptr);
	return true;
}

slot *table_begin_resize(void *ptr)
{
	uintptr_t address = (uintptr_t)ptr;
	slot own = slot_value(address);
	slot *at = find(address, own);
	return at && change(at, own, own | RESIZING) ? at : NULL;
}

bool table_finish_resize(slot *resizing, void *ptr)
{
	if (!change(resizing, slot_value((uintptr_t)ptr) | RESIZING, 0))
		return false;
	filter_sub(ptr);
	return true;
}

void table_cancel_resize(slot *resizing, void *ptr)
{
	slot own = slot_value((uintptr_t)ptr);
	change(resizing, own | RESIZING, own);
}
