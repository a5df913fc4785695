// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: a program with much memory that keeps taking its mmap lock, and prints how long it
// had to wait.
//
// Build:
//   cc -O2 -pthread -fno-omit-frame-pointer -fno-optimize-sibling-calls -o stall stall.c
//
//   stall [--mib N] [--huge-mib N] [--mappings N]
//
// Waits for a line on stdin, then holds N MiB of 4 KiB pages in one mapping, N MiB of huge pages in
// another, and N further mappings of one page each, every other one read-only, so that they are not merged.
// Then a thread repeatedly maps and unmaps a page (as a writer of the mmap lock), faults another one in, and
// pauses for 50 us. From then on it answers every line with one line: its memory, the longest time in ms that
// each of the two operations took since the last line, and the number of rounds:
//   mib 1024 mappings 0 map_ms 0.031 fault_ms 0.027 rounds 9000

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "workload.h"

enum { PAGE = 4096 };

static _Atomic uint64_t longest_map, longest_fault, rounds;

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static NOINLINE void hold(unsigned long mib, int advice)
{
	size_t len = (size_t)mib << 20;
	unsigned char *p;

	if (!mib)
		return;
	p = map(len);
	if (madvise(p, len, advice))
		die("madvise");
	for (size_t i = 0; i < len; i += PAGE)
		((volatile unsigned char *)p)[i] = 1;
}

static NOINLINE void hold_mappings(unsigned long n)
{
	unsigned char *p = n ? map(n * PAGE) : NULL;

	for (unsigned long i = 0; i < n; i++) {
		((volatile unsigned char *)p)[i * PAGE] = 1;
		if (i % 2 && mprotect(p + i * PAGE, PAGE, PROT_READ))
			die("mprotect");
	}
}

static void longer(_Atomic uint64_t *longest, uint64_t since)
{
	uint64_t took = wall_ns() - since;

	if (took > *longest)
		*longest = took;
}

static void *run(void *unused)
{
	const struct timespec pause = { .tv_nsec = 50000 };
	void *page = map(PAGE);

	for (;;) {
		uint64_t start = wall_ns();

		if (munmap(map(PAGE), PAGE))
			die("munmap");
		longer(&longest_map, start);
		start = wall_ns();
		*(volatile unsigned char *)page = 1;
		longer(&longest_fault, start);
		if (madvise(page, PAGE, MADV_DONTNEED))
			die("madvise");
		rounds++;
		nanosleep(&pause, NULL);
	}
	return unused;
}

int main(int argc, char **argv)
{
	unsigned long mib = 0, huge_mib = 0, mappings = 0;
	pthread_t thread;
	int c;
	const struct option options[] = {
		{ "--mib", .number = &mib },
		{ "--huge-mib", .number = &huge_mib },
		{ "--mappings", .number = &mappings },
		{ 0 },
	};

	read_options(argc, argv, 1, options, "stall [--mib N] [--huge-mib N] [--mappings N]");
	wait_for_line();
	hold(mib, MADV_NOHUGEPAGE);
	hold(huge_mib, MADV_HUGEPAGE);
	hold_mappings(mappings);
	if (pthread_create(&thread, NULL, run, NULL))
		die("pthread_create");
	do {
		double map_ns = (double)atomic_exchange(&longest_map, 0);
		double fault_ns = (double)atomic_exchange(&longest_fault, 0);

		printf("mib %lu mappings %lu map_ms %.3f fault_ms %.3f rounds %.0f\n", mib + huge_mib, mappings,
		       map_ns / 1e6, fault_ns / 1e6, (double)atomic_exchange(&rounds, 0));
		fflush(stdout);
		while ((c = getchar()) != '\n' && c != EOF)
			;
	} while (c != EOF);
	return 0;
}
