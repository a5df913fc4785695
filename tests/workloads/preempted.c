// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Many threads that hit the same probes at once, at stacks of other depths again and again: where the kernel preempts
 * programs, it preempts those of one thread for another's.
 *
 * Usage: preempted heap|marks|faults THREADS SECONDS
 *   heap     allocates and frees
 *   marks    sets marks
 *   faults   has pages copied, and has the kernel write to new ones; each thread keeps its last ones
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>

#include "common.h"
#include "mark.h"

#define MAX_THREADS 64
#define PAGES 16

static volatile int stop;
static int zeros;

static NOINLINE void allocate(unsigned random)
{
	void *block = malloc(16 + (random >> 20));

	__asm__ volatile("" : "+r"(block)); // or the compiler leaves both calls out
	free(block);
}

static NOINLINE void mark(unsigned random)
{
	set_mark(random & 1 ? "odd" : "even");
}

static NOINLINE void fault(unsigned random)
{
	static _Thread_local char *at;
	size_t size = PAGES * page_size;

	if (!at)
		at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || madvise(at, size, MADV_DONTNEED))
		die("mmap");
	for (size_t n = 0; n < PAGES; n++) {
		volatile char *page = at + n * page_size;

		if ((n ^ random) & 1)
			page[1] = page[0]; // the page of zeros, then a copy of it
		else if (read(zeros, (char *)page, 64) != 64)
			die("read");
	}
}

static void (*what)(unsigned random);

static NOINLINE void deep(unsigned depth, unsigned random)
{
	char frame[64];

	__asm__ volatile("" ::"r"(frame) : "memory");
	if (depth)
		deep(depth - 1, random);
	else
		what(random);
	keep_frame();
}

static void *work(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;

	while (!stop) {
		random = random * 1664525u + 1013904223u;
		deep((random >> 8) % 20, random);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[MAX_THREADS];
	unsigned nr;

	if (argc != 4 || (nr = (unsigned)atoi(argv[2])) > MAX_THREADS)
		return 2;
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	zeros = open("/dev/zero", O_RDONLY);
	what = !strcmp(argv[1], "heap") ? allocate : !strcmp(argv[1], "marks") ? mark : fault;
	for (unsigned n = 0; n < nr; n++)
		if (pthread_create(&threads[n], NULL, work, (void *)(uintptr_t)(n + 1)))
			die("pthread_create");
	sleep((unsigned)atoi(argv[3]));
	stop = 1;
	for (unsigned n = 0; n < nr; n++)
		pthread_join(threads[n], NULL);
	puts("done");
	return 0;
}
