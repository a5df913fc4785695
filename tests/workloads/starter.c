// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Starts threads all the time, each of which touches a page of its own, starts another one that does so, and waits for it. The
// pages are those of one mapping, made before. `stop` on standard input ends that, answered by the number of touched pages; every
// eighth of the first threads, up to 64 or the number given as an argument, then still lives.

#define _GNU_SOURCE
#include <pthread.h>
#include <poll.h>
#include <stdint.h>

#include "common.h"

static unsigned char *area;
static uint64_t touched, lasting;

static NOINLINE void touch_next(void)
{
	keep_frame();
	area[__atomic_fetch_add(&touched, 1, __ATOMIC_RELAXED) * page_size] = 1;
}

static NOINLINE void *second(void *nothing)
{
	touch_next();
	return nothing;
}

static NOINLINE void *lasts(void *nothing)
{
	for (;;) {
		touch_next();
		usleep(20000);
	}
	return nothing;
}

static NOINLINE void *first(void *nothing)
{
	pthread_t next;

	touch_next();
	if (pthread_create(&next, NULL, second, NULL))
		die("pthread_create");
	pthread_join(next, NULL);
	return nothing;
}

int main(int argc, char **argv)
{
	uint64_t lasting_most = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
	struct pollfd in = { .fd = 0, .events = POLLIN };
	size_t most = 4 << 20;

	page_size = 4096;
	area = mmap(NULL, most * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		die("mmap");
	if (madvise(area, most * page_size, MADV_NOHUGEPAGE))
		die("madvise");
	for (uint64_t n = 0; poll(&in, 1, 0) == 0; n++) {
		pthread_t some;

		if (pthread_create(&some, NULL, n % 8 == 7 && lasting < lasting_most ? lasts : first, NULL))
			die("pthread_create");
		if (n % 8 == 7 && lasting < lasting_most)
			lasting++;
		else
			pthread_join(some, NULL);
	}
	printf("%lu\n", touched);
	fflush(stdout);
	pause();
	return 0;
}
