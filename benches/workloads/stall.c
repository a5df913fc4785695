// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: a program with much memory that keeps taking its mmap lock, and prints how long it
// had to wait.
//
// Build:
//   cc -O2 -pthread -fno-omit-frame-pointer -fno-optimize-sibling-calls -o stall stall.c
//
//   stall [--mib N] [--huge-mib N] [--sparse-gib N --stride-kib N] [--shared-gib N] [--mappings N [--mapping-pages N]]
//
// Waits for a line on stdin, then holds N MiB of 4 KiB pages in one mapping, N MiB of huge pages in
// another, a page in each stride of a third, N mappings of the same GiB of shared memory, and N further mappings
// of one page (or --mapping-pages) each, every other one read-only, so that they are not merged.
// Then a thread repeatedly maps and unmaps a page (as a writer of the mmap lock), faults another one in, and
// pauses for 50 us. From then on it answers every line with one line: its memory, the CPU time in ms that filling it
// took, the longest time in ms that each of the two operations took since the last line, the number of rounds, and the
// CPU time of a round in ns, all of it in that time:
//   mib 1024 mappings 0 fill_ms 410.2 map_ms 0.031 fault_ms 0.027 rounds 9000 round_ns 5800

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "workload.h"

enum { PAGE = 4096, GIB = 1 << 30 };

static _Atomic uint64_t longest_map, longest_fault, rounds;

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static NOINLINE void touch(volatile unsigned char *p, size_t len, size_t stride)
{
	for (size_t i = 0; i < len; i += stride)
		p[i] = 1;
}

static NOINLINE void hold(size_t len, int advice, size_t stride)
{
	unsigned char *p;

	if (!len)
		return;
	p = map(len);
	if (madvise(p, len, advice))
		die("madvise");
	touch(p, len, stride);
}

static NOINLINE void hold_shared(unsigned long gib)
{
	int fd = memfd_create("stall", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, GIB))
		die("memfd_create");
	for (unsigned long i = 0; i < gib; i++) {
		void *p = mmap(NULL, GIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (p == MAP_FAILED)
			die("mmap");
		touch(p, GIB, PAGE);
	}
	close(fd);
}

static NOINLINE void hold_mappings(unsigned long n, size_t len)
{
	unsigned char *p = n ? map(n * len) : NULL;

	for (unsigned long i = 0; i < n; i++, p += len) {
		touch(p, len, PAGE);
		if (i % 2 && mprotect(p, len, PROT_READ))
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
	unsigned long mib = 0, huge_mib = 0, sparse_gib = 0, stride_kib = 2048, shared_gib = 0;
	unsigned long mappings = 0, mapping_pages = 1;
	double fill_ns, used_ns = 0;
	pthread_t thread;
	clockid_t clock;
	int c;
	const struct option options[] = {
		{ "--mib", .number = &mib },
		{ "--huge-mib", .number = &huge_mib },
		{ "--sparse-gib", .number = &sparse_gib },
		{ "--stride-kib", .number = &stride_kib },
		{ "--shared-gib", .number = &shared_gib },
		{ "--mappings", .number = &mappings },
		{ "--mapping-pages", .number = &mapping_pages },
		{ 0 },
	};

	read_options(argc, argv, 1, options,
		     "stall [--mib N] [--huge-mib N] [--sparse-gib N --stride-kib N] [--shared-gib N] "
		     "[--mappings N [--mapping-pages N]]");
	if (!stride_kib || !mapping_pages) {
		fprintf(stderr, "stall: --stride-kib and --mapping-pages are at least 1\n");
		return 2;
	}
	wait_for_line();
	fill_ns = (double)cpu_ns();
	hold((size_t)mib << 20, MADV_NOHUGEPAGE, PAGE);
	hold((size_t)huge_mib << 20, MADV_HUGEPAGE, PAGE);
	hold((size_t)sparse_gib << 30, MADV_NOHUGEPAGE, (size_t)stride_kib << 10);
	hold_shared(shared_gib);
	hold_mappings(mappings, mapping_pages * PAGE);
	fill_ns = (double)cpu_ns() - fill_ns;
	if (pthread_create(&thread, NULL, run, NULL) || pthread_getcpuclockid(thread, &clock))
		die("pthread_create");
	do {
		double n = (double)atomic_exchange(&rounds, 0), used = (double)clock_ns(clock);
		double map_ns = (double)atomic_exchange(&longest_map, 0);
		double fault_ns = (double)atomic_exchange(&longest_fault, 0);

		printf("mib %lu mappings %lu fill_ms %.3f map_ms %.3f fault_ms %.3f rounds %.0f round_ns %.0f\n",
		       mib + huge_mib, mappings, fill_ns / 1e6, map_ns / 1e6, fault_ns / 1e6, n,
		       n > 0 ? (used - used_ns) / n : 0);
		used_ns = used;
		fflush(stdout);
		while ((c = getchar()) != '\n' && c != EOF)
			;
	} while (c != EOF);
	return 0;
}
