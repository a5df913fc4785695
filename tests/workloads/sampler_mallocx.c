// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Allocates, resizes and frees by jemalloc's own functions, and compares what the sampler reports with what the program has done
// and with jemalloc's counters. Links jemalloc, and preloads the sampler as it is built for tests, with an interval of 0: every
// allocation is a sample.
//
//   MALLOC_CONF=tcache:false sampler_mallocx
//
// Prints how often each function was called, and exits with an error if a figure differs. (Without threads' caches, what jemalloc
// counts as allocated are the program's blocks.)

#include <string.h>

#include "sampler_listener.h"

#define BLOCKS 1000
#define STEPS 20000
#define ALIGN_LOG2 12
#define ZERO 0x40

void *mallocx(size_t, int), *rallocx(void *, size_t, int);
void dallocx(void *, int), sdallocx(void *, size_t, int);
size_t xallocx(void *, size_t, size_t, int), sallocx(const void *, int);
int mallctl(const char *, void *, size_t *, void *, size_t);

static struct block {
	unsigned char *ptr;
	size_t size;
	int align;
} blocks[BLOCKS];

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

// From some bytes to some pages.
static size_t any(void)
{
	return (size_t)1 << (next_random() % 16) | next_random() % 16;
}

// What jemalloc has allocated.
static size_t counter(void)
{
	uint64_t epoch = 1;
	size_t bytes, size = sizeof bytes;

	if (mallctl("epoch", NULL, NULL, &epoch, sizeof epoch) || mallctl("stats.allocated", &bytes, &size, NULL, 0))
		abort();
	return bytes;
}

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s\n", what);
		exit(1);
	}
}

static void check_block(const struct block *block, int is_zero, size_t from)
{
	must(block->ptr != NULL, "no memory");
	must((uintptr_t)block->ptr % ((size_t)1 << block->align) == 0, "not aligned");
	for (size_t n = from; is_zero && n < block->size; n++)
		must(block->ptr[n] == 0, "not zero");
}

int main(void)
{
	// What the program has asked for, and how often it has called each function.
	double bytes = 0, count = 0, held = 0, held_count = 0;
	unsigned calls[6] = {0};
	size_t usable = 0;

	// The buffer of stdout, and what jemalloc needs for its first statistics.
	puts("mallocx rallocx xallocx in-vain dallocx sdallocx");
	counter();
	size_t before = counter();
	listener_reset();
	for (int step = 0; step < STEPS; step++) {
		struct block *block = &blocks[next_random() % BLOCKS];
		int zero = next_random() % 2 ? ZERO : 0;
		size_t size = any(), extra = next_random() % 3 * 1000, old;

		if (!block->ptr) {
			block->align = next_random() % 2 ? (int)(next_random() % (ALIGN_LOG2 + 1)) : 0;
			block->ptr = mallocx(block->size = size, block->align | zero);
			check_block(block, zero, 0);
			memset(block->ptr, 0xa5, size);
			calls[0]++, bytes += (double)size, count++;
			continue;
		}
		switch (next_random() % 4) {
		case 0:
			old = sallocx(block->ptr, block->align);
			block->ptr = rallocx(block->ptr, block->size = size, block->align | zero);
			// What the block had already is not cleared.
			check_block(block, zero, old);
			calls[1]++, bytes += (double)size, count++;
			break;
		case 1:
			old = xallocx(block->ptr, size, extra, block->align | zero);
			must(old == sallocx(block->ptr, block->align), "another size than jemalloc's");
			calls[old < size ? 3 : 2]++;
			if (old >= size) {
				block->size = old < size + extra ? old : size + extra;
				bytes += (double)block->size, count++;
			}
			break;
		case 2:
			dallocx(block->ptr, block->align);
			calls[4]++, block->ptr = NULL;
			break;
		default:
			sdallocx(block->ptr, sallocx(block->ptr, block->align), block->align);
			calls[5]++, block->ptr = NULL;
		}
	}
	CHANGED_BY_LISTENER();
	// Live blocks, as the program has them, as the samples have them, and as jemalloc rounds them.
	for (struct block *block = blocks; block < blocks + BLOCKS; block++)
		if (block->ptr) {
			struct live *slot = slot_of(block->ptr);
			must(slot->ptr == block->ptr && slot->size == (double)block->size, "a block is no sample");
			held += (double)block->size, held_count++;
			usable += sallocx(block->ptr, block->align);
		}
	must(counter() - before == usable, "jemalloc has allocated something else");
	must(allocated.bytes == bytes && allocated.count == count, "something else was reported as allocated");
	must(now.bytes == held && now.count == held_count, "something else was reported as live");
	for (struct block *block = blocks; block < blocks + BLOCKS; block++)
		if (block->ptr)
			dallocx(block->ptr, block->align);
	CHANGED_BY_LISTENER();
	must(now.bytes == 0 && now.count == 0 && frees_of_others == 0, "not all frees were reported");
	must(counter() == before, "something is left");
	for (int n = 0; n < 6; n++) {
		must(calls[n] > 100, "a function was hardly called");
		printf("%u ", calls[n]);
	}
	return 0;
}
