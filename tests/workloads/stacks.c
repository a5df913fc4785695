// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that touches each page under a different call chain, for tests with more stacks than the
// tables can hold.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o stacks stacks.c
//
// `stacks DEPTH` has 2^DEPTH call chains of `left` and `right`, and a page for each. It answers each line
// with `ok`: `touch N` touches all pages, and sleeps for 10 ms after every N of them; `drop` frees them.
// It ends with status 0 at the end of its input.

#define _GNU_SOURCE
#include <sys/prctl.h>

#include "common.h"

static volatile unsigned char *page;

static NOINLINE void left(unsigned depth, unsigned long path);
static NOINLINE void right(unsigned depth, unsigned long path);

static NOINLINE void touch_page(void)
{
	keep_frame();
	*page = 1;
}

static ALWAYS_INLINE void next(unsigned depth, unsigned long path)
{
	if (depth == 0)
		touch_page();
	else if (path & 1)
		left(depth - 1, path >> 1);
	else
		right(depth - 1, path >> 1);
	keep_frame();
}

static NOINLINE void left(unsigned depth, unsigned long path)
{
	next(depth, path);
}

static NOINLINE void right(unsigned depth, unsigned long path)
{
	next(depth, path);
}

int main(int argc, char **argv)
{
	unsigned depth = argc == 2 ? (unsigned)atoi(argv[1]) : 0;
	unsigned long pages, pause;
	unsigned char *start;
	char line[64];

	if (depth < 1 || depth > 24)
		return 2;
	pages = 1ul << depth;
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	start = map_memory(pages * page_size);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "touch %lu", &pause) == 1) {
			for (unsigned long i = 0; i < pages; i++) {
				page = start + i * page_size;
				next(depth, i);
				if (i % pause == pause - 1)
					usleep(10000);
			}
		} else if (strcmp(line, "drop\n") == 0) {
			drop_pages(start, pages * page_size);
		} else {
			return 2;
		}
		say("ok\n");
	}
	return 0;
}
