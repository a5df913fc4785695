// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A process whose first thread ends first, and whose further threads end one after another.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o relay relay.c
//
//   relay [STATUS | exec]
//
// Each of the threads waits for the end of the one before, and starts the next. The last one forgets some blocks, prints
// them as `leaks` does, waits for the end of stdin, and returns; or it ends the process with this exit status, beside
// threads that wait for ever, or executes a shell that exits with status 7.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "common.h"

enum { THREADS = 5, BLOCKS = 100, SIZE = 200, WAITING = 3 };

static void *volatile kept[BLOCKS];
static pthread_t before;
static const char *status;

static NOINLINE void *take(void)
{
	void *block = malloc(SIZE);

	if (!block)
		die("malloc");
	memset(block, 0, SIZE);
	return block;
}

static NOINLINE void forget(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		((volatile char *)take())[0] = 1;
		kept[i] = take();
	}
}

static void *wait_for_ever(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void *run(void *left)
{
	long threads = (long)left;
	pthread_t next;

	if (pthread_join(before, NULL))
		die("pthread_join");
	before = pthread_self();
	if (threads) {
		if (pthread_create(&next, NULL, run, (void *)(threads - 1)))
			die("pthread_create");
		return NULL;
	}
	for (int i = 0; status && i < WAITING; i++)
		if (pthread_create(&next, NULL, wait_for_ever, NULL))
			die("pthread_create");
	forget();
	clean_stack();
	printf("{\"blocks\":%d,\"bytes\":%d,\"heads\":%d}\n", BLOCKS, BLOCKS * SIZE, BLOCKS);
	while (getchar() != EOF)
		;
	if (status && !strcmp(status, "exec"))
		execlp("sh", "sh", "-c", "exit 7", NULL);
	if (status)
		exit(atoi(status));
	return NULL;
}

int main(int argc, char **argv)
{
	static char out[4096];
	pthread_t next;

	setvbuf(stdout, out, _IOLBF, sizeof(out));
	setvbuf(stdin, NULL, _IONBF, 0);
	status = argc > 1 ? argv[1] : NULL;
	before = pthread_self();
	if (pthread_create(&next, NULL, run, (void *)(long)(THREADS - 1)))
		die("pthread_create");
	pthread_exit(NULL);
}
