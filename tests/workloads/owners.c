// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Functions that hold known bytes of the heap in known ways. One command per line on standard input, answered by `ok` on
// standard output: `fill` (chunks of several sizes, kept), `thin` (seven of eight chunks freed, so that the eighth keeps
// pages in memory), `leak` (chunks that nothing refers to, each but the first of four only an unreachable one), `empty`
// (frees whole pages below chunks that are kept), `release` (frees the small ones of `fill`).

#define _GNU_SOURCE
#include <stdlib.h>

#include "common.h"

#define SMALL 100000
#define MIDDLE 20000
#define LARGE 200
#define THINNED 80000
#define GONE 4000
#define LEAKS 40000

// Volatile, so that what is stored is in memory.
static void *volatile small[SMALL], *volatile middle[MIDDLE], *volatile large[LARGE], *volatile huge[3];
static void *volatile thinned[THINNED], *volatile gone[GONE], *volatile last;

static void *filled(size_t size)
{
	char *at = malloc(size);

	if (!at)
		die("malloc");
	memset(at, 1, size);
	return at;
}

static NOINLINE void holds_small(void)
{
	for (size_t i = 0; i < SMALL; i++)
		small[i] = filled(48);
	keep_frame();
}

static NOINLINE void holds_middle(void)
{
	for (size_t i = 0; i < MIDDLE; i++)
		middle[i] = filled(i % 2 ? 600 : 850);
	keep_frame();
}

static NOINLINE void holds_large(void)
{
	for (size_t i = 0; i < LARGE; i++)
		large[i] = filled(40000);
	keep_frame();
}

static NOINLINE void holds_huge(void)
{
	for (size_t i = 0; i < 3; i++)
		huge[i] = filled(20 << 20);
	keep_frame();
}

static NOINLINE void thins(void)
{
	for (size_t i = 0; i < THINNED; i++)
		thinned[i] = filled(500);
	for (size_t i = 0; i < THINNED; i++) {
		if (i % 8) {
			free(thinned[i]);
			thinned[i] = NULL;
		}
	}
	keep_frame();
}

static NOINLINE void leaks(void)
{
	for (size_t i = 0; i < LEAKS / 4; i++) {
		void **at = NULL;

		for (int j = 0; j < 4; j++) {
			void **next = filled(300);

			*next = at;
			at = next;
		}
	}
	keep_frame();
}

static NOINLINE void empties(void)
{
	for (size_t i = 0; i < GONE; i++)
		gone[i] = filled(4000);
	last = filled(4000);
	for (size_t i = 0; i < GONE; i++)
		free(gone[i]);
	memset((void *)gone, 0, sizeof(gone));
	keep_frame();
}

int main(void)
{
	static char line[128];

	page_size = 4096;
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "fill\n")) {
			holds_small();
			holds_middle();
			holds_large();
			holds_huge();
		} else if (!strcmp(line, "thin\n")) {
			thins();
		} else if (!strcmp(line, "leak\n")) {
			leaks();
		} else if (!strcmp(line, "empty\n")) {
			empties();
		} else if (!strcmp(line, "release\n")) {
			for (size_t i = 0; i < SMALL; i++)
				free(small[i]);
			memset((void *)small, 0, sizeof(small));
		}
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
