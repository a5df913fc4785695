// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: touches 4 KiB pages as fast as it can, in a loop of mmap, touch, munmap,
// under a call chain of a given depth.
//
// Build:
//   cc -O2 -pthread -fno-omit-frame-pointer -fno-optimize-sibling-calls -o touch touch.c
//
//   touch [--mib N] [--threads N] [--cpus N] [--depth N] [--chunk-mib N] [--repeat N] [--name NAME] [--start-on-stdin]
//
// Prints one line per repetition, and flushes it:
//   pages 262144 ns_per_page 512.3 ns_per_page_with_munmap 701.9 faults 262144 pages_per_s 1398101
// The first figure is the store loop alone, the second the whole loop: mmap, stores and munmap; both
// are CPU time, in user space and in the kernel; pages_per_s is wall-clock time. With --threads N, so many threads do this
// at once, each on a CPU of its own, whichever CPU the program was given. With --cpus N, they share the first N CPUs.
// `faults` are the page faults that the kernel counted in the whole loop. Huge pages are off.
// --start-on-stdin waits for a line on stdin first (so that a profiler can attach), and finally for
// the end of stdin. --name sets the process name (to run as an unrelated process).

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "workload.h"

static size_t page_size;
static size_t chunk;
static size_t rounds;
static unsigned long depth = 22, cpus;
static uint64_t store_ns;

static long faults_so_far(void)
{
	struct rusage used;

	if (getrusage(RUSAGE_SELF, &used))
		die("getrusage");
	return used.ru_minflt + used.ru_majflt;
}

// Does nothing. Compilers may omit the frame of functions without calls.
static NOINLINE void keep_frame(void)
{
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void touch_pages(volatile unsigned char *start)
{
	volatile unsigned char *end = start + chunk;

	keep_frame();
	for (; start < end; start += page_size)
		*start = 1;
}

static NOINLINE void map_touch_unmap(void)
{
	for (size_t i = 0; i < rounds; i++) {
		void *p = mmap(NULL, chunk, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		uint64_t before;

		if (p == MAP_FAILED)
			die("mmap");
		before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		touch_pages(p);
		__atomic_fetch_add(&store_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID) - before, __ATOMIC_RELAXED);
		if (munmap(p, chunk))
			die("munmap");
	}
}

// `depth` frames of this function, then the loop.
static NOINLINE void descend(unsigned frames)
{
	if (frames == 0)
		map_touch_unmap();
	else
		descend(frames - 1);
	__asm__ volatile("" ::: "memory");
}

static void *on_cpu(void *number)
{
	cpu_set_t mask;

	CPU_ZERO(&mask);
	CPU_SET(cpus ? (size_t)number % cpus : (size_t)number, &mask);
	if (sched_setaffinity(0, sizeof(mask), &mask))
		die("sched_setaffinity");
	descend((unsigned)depth);
	return NULL;
}

static void run_threads(size_t threads)
{
	pthread_t ids[64];

	for (size_t i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, on_cpu, (void *)i))
			die("pthread_create");
	for (size_t i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
}

int main(int argc, char **argv)
{
	unsigned long mib = 1024, threads = 0, chunk_mib = 64, repeat = 1;
	size_t pages;
	const char *name = NULL;
	int wait = 0;
	const struct option options[] = {
		{ "--mib", .number = &mib }, { "--threads", .number = &threads }, { "--cpus", .number = &cpus },
		{ "--depth", .number = &depth }, { "--chunk-mib", .number = &chunk_mib }, { "--repeat", .number = &repeat },
		{ "--name", .text = &name }, { "--start-on-stdin", .flag = &wait }, { 0 },
	};

	read_options(argc, argv, 1, options,
		     "touch [--mib N] [--threads N] [--cpus N] [--depth N] [--chunk-mib N] [--repeat N] [--name NAME] [--start-on-stdin]");
	if (name)
		prctl(PR_SET_NAME, name);
	if (mib < chunk_mib || chunk_mib == 0 || chunk_mib > 1024 || repeat == 0) {
		fprintf(stderr, "touch: --mib is at least --chunk-mib, and that is at most 1024\n");
		return 2;
	}
	if (threads > 64) {
		fprintf(stderr, "touch: at most 64 threads\n");
		return 2;
	}
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	chunk = chunk_mib << 20;
	rounds = mib / chunk_mib;
	pages = rounds * (chunk / page_size) * (threads ? threads : 1);
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	if (wait)
		wait_for_line();
	for (unsigned long i = 0; i < repeat; i++) {
		long faults = faults_so_far();
		uint64_t before = cpu_ns(), began = wall_ns(), all;

		store_ns = 0;
		// main, map_touch_unmap and touch_pages are three frames of the chain.
		if (threads)
			run_threads(threads);
		else
			descend(depth > 4 ? (unsigned)depth - 4 : 0);
		all = cpu_ns() - before;
		began = wall_ns() - began;
		faults = faults_so_far() - faults;
		printf("pages %zu ns_per_page %.1f ns_per_page_with_munmap %.1f faults %ld pages_per_s %.0f\n", pages,
		       (double)store_ns / (double)pages, (double)all / (double)pages, faults,
		       (double)pages * 1e9 / (double)began);
		fflush(stdout);
	}
	if (wait)
		wait_for_end();
	return 0;
}
