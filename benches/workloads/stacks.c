// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: a program that holds memory under many distinct call stacks.
//
// Build:
//   cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -o stacks stacks.c
//
//   stacks [--mib N] [--stacks N] [--busy]
//
// Waits for a line on stdin, then holds N MiB (default 256) in equal parts, each touched under one of
// N stacks (default 1,024, of 12 functions each; at most 65,536, of 18), and prints one line:
//   stacks 1024 mib 256
// Then it is idle until stdin ends. With --busy, it instead unmaps one part after the other and touches
// it again, in rounds with a pause of 10 ms after every 16 parts.

#define _GNU_SOURCE
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "workload.h"

enum { MAX_STACKS = 1 << 16, PAGE = 4096 };

static unsigned char *parts[MAX_STACKS];
static int levels;
static size_t part_bytes;

static NOINLINE void hold_part(unsigned which)
{
	unsigned char *p = mmap(NULL, part_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < part_bytes; i += PAGE)
		((volatile unsigned char *)p)[i] = 1;
	parts[which] = p;
}

static NOINLINE void left(unsigned which, int level);
static NOINLINE void right(unsigned which, int level);

// The bits of `which` select one of two functions per level, so every part has its own stack.
static inline __attribute__((always_inline)) void step(unsigned which, int level)
{
	if (level == levels)
		hold_part(which);
	else if (which >> level & 1)
		right(which, level + 1);
	else
		left(which, level + 1);
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void left(unsigned which, int level)
{
	step(which, level);
}

static NOINLINE void right(unsigned which, int level)
{
	step(which, level);
}

static int stdin_has_ended(int milliseconds)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	char byte;

	return poll(&in, 1, milliseconds) > 0 && read(STDIN_FILENO, &byte, 1) == 0;
}

int main(int argc, char **argv)
{
	unsigned long mib = 256, stacks = 1024;
	int busy = 0;
	char byte = 0;
	const struct option options[] = {
		{ "--mib", .number = &mib },
		{ "--stacks", .number = &stacks },
		{ "--busy", .flag = &busy },
		{ 0 },
	};

	read_options(argc, argv, 1, options, "stacks [--mib N] [--stacks N] [--busy]");
	if (!stacks || stacks > MAX_STACKS || mib << 20 < stacks * PAGE) {
		fprintf(stderr, "stacks: at most %d stacks, and --mib is a page for each of them at least\n", MAX_STACKS);
		return 2;
	}
	while (1ul << levels < stacks)
		levels++;
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	while (byte != '\n' && read(STDIN_FILENO, &byte, 1) == 1)
		;
	part_bytes = ((size_t)mib << 20) / stacks / PAGE * PAGE;
	for (unsigned i = 0; i < stacks; i++)
		step(i, 0);
	printf("stacks %lu mib %lu\n", stacks, mib);
	fflush(stdout);
	for (unsigned i = 0; !stdin_has_ended(busy ? (i % 16 ? 0 : 10) : -1); i = (i + 1) % (unsigned)stacks) {
		if (!busy)
			continue;
		if (munmap(parts[i], part_bytes))
			die("munmap");
		step(i, 0);
	}
	return 0;
}
