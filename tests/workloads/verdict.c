// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Heaps in known states, of which `memprof heap` has known things to say.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o verdict verdict.c
//
//   verdict STATE
//
// STATE is one of:
//   fragments   some pages are full of blocks in use, and on most pages at most one block is: {"kept":…,"size":…,"freed":…,
//               "beside":…}, the blocks in use, the bytes of each, the bytes of the free ones, and those of them that are on
//               the same pages as blocks in use
//   leaks       forgets sessions, each of which is a block that refers to a text: {"groups":…,"chunks":…,"bytes":…}
//   fine        almost all blocks are in use: {"bytes":…}
//   arenas      threads have free blocks: {"arenas":…}, their number as glibc's malloc_info counts them
//   emptied     all blocks are free: {"freed":…}
// It prints what it did, as JSON, and waits for lines on stdin. It answers `trim` with `ok` after a malloc_trim(0).

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>

#include "common.h"

enum { BLOCKS = 80000, DENSE = 10000, SIZE = 400, KEEP = 16, SESSIONS = 5000, THREADS = 11, EACH = 1000 };

// (Volatile: they are only written.)
static void *volatile blocks[BLOCKS];
static pthread_barrier_t ready;

static NOINLINE void *take(size_t size)
{
	void *block = malloc(size);

	if (!block)
		die("malloc");
	memset(block, 0, size);
	return block;
}

static NOINLINE void take_all(void)
{
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = take(SIZE);
}

static NOINLINE void fragments(void)
{
	unsigned long size, sparse = 0, pages = 0, freed = 0;
	uintptr_t last = 0;

	take_all();
	size = malloc_usable_size(blocks[0]);
	for (int i = DENSE; i < BLOCKS; i++) {
		uintptr_t start = (uintptr_t)blocks[i], end = start + size;

		if (i % KEEP) {
			free(blocks[i]);
			blocks[i] = NULL;
			freed++;
			continue;
		}
		sparse++;
		// (The blocks are in the order of their addresses.)
		for (uintptr_t page = start / page_size; page <= (end - 1) / page_size; page++) {
			pages += page != last;
			last = page;
		}
	}
	printf("{\"kept\":%lu,\"size\":%lu,\"freed\":%lu,\"beside\":%lu}\n", DENSE + sparse, size, freed * size,
	       pages * page_size - sparse * size);
}

struct session {
	long number;
	char *user;
	long rest[3];
};

static NOINLINE size_t forget_session(int number)
{
	struct session *session = take(sizeof(*session));

	session->number = number;
	session->user = take(100);
	memset(session->user, 'a' + number % 26, 99);
	return malloc_usable_size(session) + malloc_usable_size(session->user);
}

static NOINLINE void leaks(void)
{
	size_t bytes = 0;

	for (int i = 0; i < SESSIONS; i++)
		bytes += forget_session(i);
	for (int i = 0; i < SESSIONS; i++)
		blocks[i] = take(SIZE);
	printf("{\"groups\":%d,\"chunks\":%d,\"bytes\":%zu}\n", SESSIONS, 2 * SESSIONS, bytes);
}

static NOINLINE void fine(void)
{
	size_t bytes = 0;

	take_all();
	for (int i = 0; i < BLOCKS; i++) {
		if (i % 20 == 0) {
			free(blocks[i]);
			blocks[i] = NULL;
		} else {
			bytes += malloc_usable_size(blocks[i]);
		}
	}
	printf("{\"bytes\":%zu}\n", bytes);
}

static NOINLINE void emptied(void)
{
	size_t bytes = 0;

	take_all();
	for (int i = 0; i < BLOCKS; i++) {
		bytes += malloc_usable_size(blocks[i]);
		free(blocks[i]);
		blocks[i] = NULL;
	}
	printf("{\"freed\":%zu}\n", bytes);
}

static void *of_a_thread(void *own)
{
	void *volatile *mine = own;

	for (int i = 0; i < EACH; i++)
		mine[i] = take(SIZE);
	for (int i = 0; i < EACH - 1; i++) {
		free(mine[i]);
		mine[i] = NULL;
	}
	pthread_barrier_wait(&ready);
	pause();
	return NULL;
}

static NOINLINE void arenas(void)
{
	char *info;
	size_t size;
	FILE *out;
	int count = 0;

	pthread_barrier_init(&ready, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, of_a_thread, (void *)&blocks[i * EACH]))
			die("pthread_create");
	}
	pthread_barrier_wait(&ready);
	out = open_memstream(&info, &size);
	if (!out || malloc_info(0, out) || fclose(out))
		die("malloc_info");
	for (char *at = info; (at = strstr(at, "<heap nr=")); at++)
		count++;
	free(info);
	printf("{\"arenas\":%d}\n", count);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*enter)(void);
	} states[] = {
		{ "fragments", fragments }, { "leaks", leaks }, { "fine", fine }, { "arenas", arenas }, { "emptied", emptied },
	};
	char line[16];

	page_size = sysconf(_SC_PAGESIZE);
	for (size_t i = 0; i < sizeof(states) / sizeof(*states); i++)
		if (argc == 2 && !strcmp(argv[1], states[i].name))
			states[i].enter();
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		malloc_trim(0);
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
