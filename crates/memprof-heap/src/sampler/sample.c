/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reports the few sampled allocations, and their frees.
 */
#include "samples.h"

#include "probes.h"
#include "python.h"

__thread struct thread thread_state;
struct stats EXPORTED memprof_heap_stats;
volatile uint16_t alloc_semaphore __attribute__((section(".probes"))) = 0;
volatile uint16_t free_semaphore __attribute__((section(".probes"))) = 0;

/* One function for each probe, so that each probe has one address. */
static COLD void report_alloc(void *ptr, size_t size, uint64_t weight)
{
	probe_alloc(ptr, size, weight);
}

static COLD void report_free(void *ptr)
{
	if (FREE_LISTENED())
		probe_free(ptr);
}

static void report(void *ptr, size_t size, uint64_t weight)
{
	/* Without a listener for frees, samples need no table entry. */
	if (FREE_LISTENED()) {
		switch (table_insert(ptr)) {
		case NO_ROOM:
			__atomic_fetch_add(&memprof_heap_stats.dropped, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&memprof_heap_stats.dropped_bytes, weight, __ATOMIC_RELAXED);
			return;
		case REPLACED:
			report_free(ptr);
			break;
		case INSERTED:
			break;
		}
	}
	report_alloc(ptr, size, weight);
}

/*
 * The slow path of counted(). The bytes of a failed allocation (ptr is NULL) count, too: whether they count must not
 * depend on the position of the next sample.
 */
COLD void *sampled(struct thread *thread, void *ptr, size_t size)
{
	if (thread->random == 0) {
		new_thread(thread);
		uint64_t left;
		if (!__builtin_sub_overflow(thread->left, (uint64_t)size, &left)) {
			thread->left = left;
			return ptr;
		}
	}
	/*
	 * Set before the probe: the kernel delivers signals when it returns from the probe, and their handlers may
	 * allocate.
	 */
	thread->left = draw_interval(&thread->random);
	restore_python();
	if (ptr != NULL && ALLOC_LISTENED())
		report(ptr, size, weighted_bytes(size, &thread->random));
	return ptr;
}

COLD void freed(void *ptr)
{
	if (table_remove(ptr))
		report_free(ptr);
}

COLD slot *resize_begin(void *ptr)
{
	return table_begin_resize(ptr);
}

COLD void resize_end(slot *resizing, void *ptr, bool failed)
{
	if (failed)
		table_cancel_resize(resizing, ptr);
	else if (table_finish_resize(resizing, ptr))
		report_free(ptr);
}
