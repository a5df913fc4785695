// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Allocates on command, in functions that tests look for. One command per line on standard input, answered by `ok` on
// standard output: `hold N SIZE` (kept, touched), `churn N SIZE` (freed at once), `release N` (the newest of `hold`),
// `threads N SIZE` (four threads hold N each, and end), `child N SIZE` (a forked child holds N and goes on).

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "common.h"

static void *volatile held[1 << 20];
static size_t nr;

static NOINLINE void hold(size_t n, size_t size)
{
	for (size_t i = 0; i < n; i++) {
		char *at = malloc(size);

		memset(at, 1, size);
		held[nr++] = at;
	}
}

static NOINLINE void churn(size_t n, size_t size)
{
	for (size_t i = 0; i < n; i++) {
		void *volatile at = malloc(size);

		free(at);
	}
}

static size_t thread_n, thread_size;

static NOINLINE void *thread_holds(void *first)
{
	for (size_t i = 0; i < thread_n; i++)
		held[(uintptr_t)first + i] = malloc(thread_size);
	return NULL;
}

static void threads(size_t n, size_t size)
{
	pthread_t ids[4];

	thread_n = n;
	thread_size = size;
	for (int i = 0; i < 4; i++)
		pthread_create(&ids[i], NULL, thread_holds, (void *)(nr + i * n));
	for (int i = 0; i < 4; i++)
		pthread_join(ids[i], NULL);
	nr += 4 * n;
}

static NOINLINE void child_holds(size_t n, size_t size)
{
	hold(n, size);
	keep_frame();
}

int main(void)
{
	static char line[128];

	page_size = 4096;
	while (fgets(line, sizeof(line), stdin)) {
		char word[32] = "";
		unsigned long n = 0, size = 0;

		sscanf(line, "%31s %lu %lu", word, &n, &size);
		if (!strcmp(word, "hold"))
			hold(n, size);
		else if (!strcmp(word, "churn"))
			churn(n, size);
		else if (!strcmp(word, "threads"))
			threads(n, size);
		else if (!strcmp(word, "release"))
			for (; n && nr; n--)
				free(held[--nr]);
		else if (!strcmp(word, "child")) {
			pid_t child = fork();

			if (!child) {
				child_holds(n, size);
			} else {
				waitpid(child, NULL, 0);
				return 0;
			}
		}
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
