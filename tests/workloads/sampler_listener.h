// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Listens to the sampler inside the process, as built for tests (MEMPROF_SAMPLER_TEST), and estimates as a profiler
// does: a sample of `size` bytes and `weight` was taken with probability p = size / weight.
#pragma once
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LIVE_SLOTS (1 << 14)

// Compilers assume that malloc() and free() change no variable of the program.
#define CHANGED_BY_LISTENER() __asm__ volatile("" ::: "memory")

struct estimate {
	double bytes, bytes_variance, count, count_variance;
};

static struct live {
	void *ptr;
	double size, weight;
} live[LIVE_SLOTS];
static struct estimate allocated, now;
static volatile uint64_t samples, frees, frees_of_others;
static char listening_lock;
static void (*volatile on_sample)(void);

static void add(struct estimate *to, double size, double weight, double sign)
{
	double p = size / weight;
	to->bytes += sign * weight;
	to->bytes_variance += sign * weight * weight * (1 - p);
	to->count += sign / p;
	to->count_variance += sign * (1 - p) / p / p;
}

static struct live *slot_of(void *ptr)
{
	size_t at = ((uintptr_t)ptr * 0x9E3779B97F4A7C15u) >> 50;
	while (live[at].ptr && live[at].ptr != ptr)
		at = (at + 1) % LIVE_SLOTS;
	return &live[at];
}

static void lock(void)
{
	while (__atomic_test_and_set(&listening_lock, __ATOMIC_ACQUIRE)) {
	}
}

// Called by the library.
void sampler_test_alloc(void *ptr, size_t size, uint64_t weight)
{
	lock();
	samples++;
	add(&allocated, (double)size, (double)weight, 1);
	add(&now, (double)size, (double)weight, 1);
	struct live *slot = slot_of(ptr);
	// The library reports the free of an address before it reports the address again.
	assert(slot->ptr != ptr || slot->size == 0);
	slot->ptr = ptr, slot->size = (double)size, slot->weight = (double)weight;
	__atomic_clear(&listening_lock, __ATOMIC_RELEASE);
	if (on_sample)
		on_sample();
}

void sampler_test_free(void *ptr)
{
	lock();
	struct live *slot = slot_of(ptr);
	if (slot->ptr == ptr && slot->size > 0) {
		frees++;
		add(&now, slot->size, slot->weight, -1);
		slot->size = 0; // it remains as a marker, since others may lie behind it
	} else
		frees_of_others++;
	__atomic_clear(&listening_lock, __ATOMIC_RELEASE);
}

// Forgets everything.
static void listener_reset(void)
{
	CHANGED_BY_LISTENER();
	for (size_t n = 0; n < LIVE_SLOTS; n++)
		live[n].ptr = NULL, live[n].size = 0;
	allocated = now = (struct estimate){0, 0, 0, 0};
	samples = frees = frees_of_others = 0;
	CHANGED_BY_LISTENER();
}

// One run's line: what was allocated and is live, and what is estimated.
__attribute__((unused)) static void print_run(double bytes, double count, double live_bytes, double live_count)
{
	CHANGED_BY_LISTENER();
	printf("%.0f %.3f %.3f %.0f %.5f %.5f %.0f %.3f %.3f %.0f %.5f %.5f\n", bytes, allocated.bytes,
		   allocated.bytes_variance, count, allocated.count, allocated.count_variance, live_bytes, now.bytes,
		   now.bytes_variance, live_count, now.count, now.count_variance);
}
