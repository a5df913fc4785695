// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Calls each allocation function of C a known number of times, in functions that tests look for. One command per line on
// standard input, answered by `ok` on standard output: `all` (all functions), `hold N SIZE`, `release N` (the newest of
// `hold`).

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "common.h"

static void *volatile held[1 << 20];
static size_t nr;
static volatile size_t too_much = PTRDIFF_MAX;

static void keep(void *block)
{
	held[nr++] = block;
}

static NOINLINE void hold(size_t n, size_t size)
{
	for (size_t i = 0; i < n; i++)
		keep(malloc(size));
}

static NOINLINE void by_malloc(void)
{
	for (int i = 0; i < 1000; i++) {
		void *block = malloc(100);

		if (i % 2)
			free(block);
		else
			keep(block);
	}
}

static NOINLINE void by_calloc(void)
{
	for (int i = 0; i < 100; i++)
		keep(calloc(7, 30));
}

static NOINLINE void by_realloc(void)
{
	for (int i = 0; i < 100; i++) {
		void *block = realloc(NULL, 10);

		block = realloc(block, 100000);
		block = realloc(block, 20);
		/* glibc and tcmalloc free it; others return a small one. */
		free(realloc(block, 0));
	}
}

static NOINLINE void by_reallocarray(void)
{
	for (int i = 0; i < 10; i++)
		keep(reallocarray(reallocarray(NULL, 10, 20), 30, 40));
}

static NOINLINE void by_aligned(void)
{
	for (int i = 0; i < 20; i++) {
		void *block;

		keep(aligned_alloc(64, 128));
		keep(memalign(64, 100));
		if (posix_memalign(&block, 64, 200))
			abort();
		keep(block);
		keep(valloc(300));
		keep(pvalloc(5000));
	}
}

static NOINLINE void by_failing(void)
{
	/* Volatile: the compiler takes a block that could not be resized for freed. */
	void *volatile block = malloc(50), *unused, *volatile none;

	none = malloc(too_much);
	none = calloc(too_much, 4);
	if (realloc(block, too_much))
		abort();
	none = aligned_alloc(64, too_much);
	if (none || !posix_memalign(&unused, 64, too_much))
		abort();
	keep(block);
}

static NOINLINE void by_nothing(void)
{
	for (int i = 0; i < 5; i++)
		keep(malloc(0));
}

static NOINLINE void by_strdup(void)
{
	for (int i = 0; i < 7; i++)
		keep(strdup("12345678"));
}

static NOINLINE void in_handler(int signal)
{
	(void)signal;
	keep(malloc(33));
}

static NOINLINE void *in_thread(void *first)
{
	for (size_t i = 0; i < 5000; i++) {
		void *volatile block = malloc(16 + i % 100);

		free(block);
		held[(uintptr_t)first + i] = malloc(48);
	}
	return NULL;
}

static NOINLINE void in_threads(void)
{
	pthread_t ids[4];

	for (size_t i = 0; i < 4; i++)
		pthread_create(&ids[i], NULL, in_thread, (void *)(nr + i * 5000));
	for (int i = 0; i < 4; i++)
		pthread_join(ids[i], NULL);
	nr += 4 * 5000;
}

static NOINLINE void in_child(void)
{
	pid_t child = fork();

	if (!child) {
		for (size_t i = 0; i < 500; i++)
			free(held[i]);
		hold(500, 70);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void all(void)
{
	by_malloc();
	by_calloc();
	by_realloc();
	by_reallocarray();
	by_aligned();
	by_failing();
	by_nothing();
	by_strdup();
	signal(SIGUSR1, in_handler);
	for (int i = 0; i < 10; i++)
		raise(SIGUSR1);
	in_threads();
	in_child();
}

int main(void)
{
	static char line[128];

	while (fgets(line, sizeof(line), stdin)) {
		char word[32] = "";
		unsigned long n = 0, size = 0;

		sscanf(line, "%31s %lu %lu", word, &n, &size);
		if (!strcmp(word, "all"))
			all();
		else if (!strcmp(word, "hold"))
			hold(n, size);
		else if (!strcmp(word, "release"))
			for (; n && nr; n--)
				free(held[--nr]);
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
