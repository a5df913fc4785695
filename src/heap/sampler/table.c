/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The addresses of the samples that are live: a fixed table that threads and signal handlers change without
 * locks.
 *
 * An address may be in one of two sets of eight slots, and it is in one at most: only the thread that
 * allocates or frees a block changes its slot. In front of the table is a filter: for each slice of the
 * address space, how many samples lie in it.
 */
#include "sampler.h"

#define SETS (1 << 13)
#define WAYS 8
/* The end of the library's memory. With more sets, memprof has the loader map zeroes behind it for them. */
extern char _end[] __attribute__((visibility("hidden")));
/* Addresses of blocks are even. This bit marks one whose block realloc() may have freed. */
#define HELD 1

uint8_t filter[1 << FILTER_BITS];
static slot table[SETS][WAYS] __attribute__((aligned(64)));

/*
 * What a slot contains of an address: no address. A search of the process's memory for what refers to a block,
 * memprof's own or that of a leak checker, must not find the table.
 */
static slot hidden(uintptr_t address)
{
	return address ^ UINT64_C(0xffff) << 48;
}

/* Blocks of one size lie at regular distances, so every bit of the address matters for every bit of the set. */
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
 * The slot in which the value is; the sets are those of the address. None is NULL's, whose value is that of
 * empty slots.
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

/* Counts one sample more in the filter; false if that one counts as many as it can. */
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
 * A block that the table already contains was freed unseen (REPLACED): by another allocator's function, or by
 * a realloc() that has not come back to say so.
 */
enum inserted table_insert(void *ptr)
{
	uintptr_t address = (uintptr_t)ptr;
	slot own = hidden(address);
	slot *old = find(address, own);
	if (old)
		return REPLACED;
	old = find(address, own | HELD);
	if (old && change(old, own | HELD, own))
		return REPLACED;
	if (!filter_add(ptr))
		return NO_ROOM;
	/* The emptier one first: so neither is full before nearly all of the table is. */
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
	slot own = hidden((uintptr_t)ptr);
	slot *at = find((uintptr_t)ptr, own);
	if (!at || !change(at, own, 0))
		return false;
	filter_sub(ptr);
	return true;
}

slot *table_hold(void *ptr)
{
	uintptr_t address = (uintptr_t)ptr;
	slot own = hidden(address);
	slot *at = find(address, own);
	return at && change(at, own, own | HELD) ? at : NULL;
}

bool table_drop(slot *held, void *ptr)
{
	if (!change(held, hidden((uintptr_t)ptr) | HELD, 0))
		return false;
	filter_sub(ptr);
	return true;
}

void table_restore(slot *held, void *ptr)
{
	slot own = hidden((uintptr_t)ptr);
	change(held, own | HELD, own);
}
