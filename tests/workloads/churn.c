// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that changes its memory as fast as it can, for tests of lost events and memory growth.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o churn churn.c
//
// `churn N` runs N threads, each of which repeatedly maps 4 to 512 KiB, writes each page (churn_touch),
// sometimes drops half of it, grows or moves it, and unmaps it; one thread that continuously starts and joins
// threads (churn_thread), each writing 32 KiB of its stack; and one that grows and shrinks the heap by brk
// (churn_heap). It prints `ready` and ends with status 0 at the end of its input.

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>

#include "common.h"

static NOINLINE void churn_touch(unsigned char *start, size_t len)
{
	store_each_page(start, len);
}

static NOINLINE void one_round(uint32_t dice)
{
	size_t len = page_size << (dice % 8);
	unsigned char *p = map_memory(len);

	churn_touch(p, len);
	if (dice & 0x100) {
		drop_pages(p, len / 2);
		churn_touch(p, len / 4);
	}
	if (dice & 0x200) {
		p = resize(p, len, len * 2);
		len *= 2;
		churn_touch(p, len);
	}
	if (munmap(p, len))
		die("munmap");
}

static NOINLINE void *churn_rounds(void *seed)
{
	uint32_t dice = (uint32_t)(uintptr_t)seed;

	for (;;) {
		dice = dice * 1664525 + 1013904223;
		one_round(dice >> 16);
	}
	return NULL;
}

static NOINLINE void *churn_thread(void *unused)
{
	unsigned char on_stack[32 * 1024];

	churn_touch(on_stack, sizeof(on_stack));
	return unused;
}

static NOINLINE void *churn_threads(void *unused)
{
	pthread_t thread;

	for (;;)
		if (pthread_create(&thread, NULL, churn_thread, NULL) || pthread_join(thread, NULL))
			die("pthread_create");
	return unused;
}

// malloc does not move the break meanwhile: see main.
static NOINLINE void *churn_heap(void *unused)
{
	for (size_t pages = 1;; pages = pages % 64 + 1) {
		unsigned char *p = sbrk((intptr_t)(pages * page_size));

		if (p == (void *)-1)
			die("sbrk");
		churn_touch(p, pages * page_size);
		if (sbrk(-(intptr_t)(pages * page_size)) == (void *)-1)
			die("sbrk");
	}
	return unused;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t thread;
	char byte;

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	// malloc grows the heap here by all that the threads will need, and never shrinks it.
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	mallopt(M_TOP_PAD, 16 << 20);
	free(malloc(1));
	for (int i = 0; i < n; i++)
		if (pthread_create(&thread, NULL, churn_rounds, (void *)(uintptr_t)(i + 1)))
			die("pthread_create");
	if (pthread_create(&thread, NULL, churn_threads, NULL) || pthread_create(&thread, NULL, churn_heap, NULL))
		die("pthread_create");
	say("ready\n");
	while (read(STDIN_FILENO, &byte, 1) == 1)
		;
	_exit(0);
}
