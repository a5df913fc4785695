// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: touches each 4 KiB page under a different call chain than the page before.
//
// Build:
//   cc -O2 -pthread -fomit-frame-pointer -fno-optimize-sibling-calls -o paths paths.c
//
//   paths [--pages N] [--depth N] [--paths N] [--start-on-stdin]
//
// Prints one line, and flushes it:
//   pages 65536 ns_per_page 512.3
// The figure is CPU time, in user space and in the kernel, mmap and munmap included. There are --paths
// different chains (a power of two), used in turn. Huge pages are off.

#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "workload.h"

static volatile unsigned char *page;

static NOINLINE void left(unsigned depth, unsigned long path);
static NOINLINE void right(unsigned depth, unsigned long path);

// The bits of `path` select the function of each frame.
static inline __attribute__((always_inline)) void next(unsigned depth, unsigned long path)
{
	if (depth == 0)
		*page = 1;
	else if (path & 1)
		left(depth - 1, path >> 1);
	else
		right(depth - 1, path >> 1);
	__asm__ volatile("" ::: "memory");
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
	unsigned long pages = 65536, depth = 22, paths = 4096;
	size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *start;
	uint64_t before;
	int wait = 0;

	const struct option options[] = {
		{ "--pages", .number = &pages }, { "--depth", .number = &depth },
		{ "--paths", .number = &paths }, { "--start-on-stdin", .flag = &wait }, { 0 },
	};

	read_options(argc, argv, 1, options, "paths [--pages N] [--depth N] [--paths N] [--start-on-stdin]");
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	if (wait)
		wait_for_line();
	before = cpu_ns();
	start = mmap(NULL, pages * page_size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		die("mmap");
	for (unsigned long i = 0; i < pages; i++) {
		page = start + i * page_size;
		// main and its callers are also frames of the chain.
		next(depth > 3 ? (unsigned)depth - 3 : 0, i & (paths - 1));
	}
	if (munmap(start, pages * page_size))
		die("munmap");
	printf("pages %lu ns_per_page %.1f\n", pages, (double)(cpu_ns() - before) / (double)pages);
	fflush(stdout);
	if (wait)
		wait_for_end();
	return 0;
}
