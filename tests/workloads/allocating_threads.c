// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Threads that do nothing but allocate, resize and free, also each other's blocks, and check what is in them.
//
//   allocating_threads N
//
// A line on stdin is answered by how many blocks had the wrong contents, and how many blocks each thread has had.

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "common.h"

enum { MAX_THREADS = 64, SLOTS = 1024 };

struct block {
	size_t size;
	unsigned char bytes[];
};

static _Atomic(struct block *) slots[SLOTS];
static atomic_long wrong, rounds[MAX_THREADS];

static unsigned char expected(size_t size, size_t at)
{
	return (unsigned char)(size * 7 + at);
}

static void fill(struct block *block, size_t size, size_t from)
{
	block->size = size;
	for (size_t at = from; at < size; at++)
		block->bytes[at] = expected(size, at);
}

static void check(struct block *block)
{
	for (size_t at = 0; at < block->size; at++)
		if (block->bytes[at] != expected(block->size, at)) {
			wrong++;
			return;
		}
}

static struct block *allocated(unsigned how, size_t bytes)
{
	void *at;

	switch (how % 4) {
	case 0:
		return calloc(1, bytes);
	case 1:
		return posix_memalign(&at, 64, bytes) ? NULL : at;
	default:
		return malloc(bytes);
	}
}

static void *allocates(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg + 1;

	for (;; rounds[(uintptr_t)arg]++) {
		size_t size = (size_t)rand_r(&seed) % ((unsigned)rand_r(&seed) % 100 ? 300 : 200000);
		unsigned how = (unsigned)rand_r(&seed);
		struct block *block = allocated(how, sizeof(*block) + size);

		if (!block)
			die("malloc");
		fill(block, size, 0);
		if (how % 16 > 12) {
			size_t more = size * 2;

			block = realloc(block, sizeof(*block) + more);
			if (!block)
				die("realloc");
			check(block);
			fill(block, more, 0);
		}
		block = atomic_exchange(&slots[(unsigned)rand_r(&seed) % SLOTS], block);
		if (block) {
			check(block);
			free(block);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 2;
	pthread_t thread;
	char line[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (long i = 0; i != n && i != MAX_THREADS; i++)
		if (pthread_create(&thread, NULL, allocates, (void *)i))
			die("pthread_create");
	while (fgets(line, sizeof(line), stdin)) {
		printf("%ld", wrong);
		for (long i = 0; i != n && i != MAX_THREADS; i++)
			printf(" %ld", rounds[i]);
		printf("\n");
	}
	return 0;
}
