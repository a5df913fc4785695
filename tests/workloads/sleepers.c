// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Threads that sleep.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o sleepers sleepers.c
//
//   sleepers THREADS
//
// So many threads sleep for a long time each. The first one sleeps for 20 ms again and again. A line on stdin is answered with two
// numbers: how often that one has slept, and how often a sleep ended early (EINTR).

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "common.h"

static void *sleep_long(void *arg)
{
	(void)arg;
	for (;;)
		sleep(1000);
	return NULL;
}

int main(int argc, char **argv)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	struct timespec nap = { .tv_nsec = 20000000 };
	unsigned long early = 0;
	pthread_attr_t small;

	(void)argc;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 32 << 10);
	for (long n = strtol(argv[1], NULL, 10); n > 0; n--) {
		pthread_t thread;

		if (pthread_create(&thread, &small, sleep_long, NULL))
			return 1;
	}
	for (unsigned long n = 0;; n++) {
		char line[16];

		if (nanosleep(&nap, NULL) && errno == EINTR)
			early++;
		if (poll(&input, 1, 0) <= 0)
			continue;
		if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
			return 0;
		printf("%lu %lu\n", n, early);
		fflush(stdout);
	}
}
