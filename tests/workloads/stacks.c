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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile unsigned char *page;

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

// Does nothing. Compilers may omit the frame of functions without calls.
static NOINLINE void keep_frame(void)
{
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void left(unsigned depth, unsigned long path);
static NOINLINE void right(unsigned depth, unsigned long path);

static NOINLINE void touch_page(void)
{
	keep_frame();
	*page = 1;
}

static inline __attribute__((always_inline)) void next(unsigned depth, unsigned long path)
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
	size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long pages, pause;
	unsigned char *start;
	char line[64];

	if (depth < 1 || depth > 24)
		return 2;
	pages = 1ul << depth;
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	start = mmap(NULL, pages * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (start == MAP_FAILED)
		die("mmap");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "touch %lu", &pause) == 1) {
			for (unsigned long i = 0; i < pages; i++) {
				page = start + i * page_size;
				next(depth, i);
				if (i % pause == pause - 1)
					usleep(10000);
			}
		} else if (strcmp(line, "drop\n") == 0) {
			if (madvise(start, pages * page_size, MADV_DONTNEED))
				die("madvise");
		} else {
			return 2;
		}
		// Unbuffered: the page of a buffer would have another stack.
		if (write(1, "ok\n", 3) != 3)
			die("write");
	}
	return 0;
}
