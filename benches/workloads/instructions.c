// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: counts the instructions of one operation, for each of the given paths, where the processor's
// clock counts instructions (benches/instructions.sh).
//
//   instructions [--programs] PATH…
//
// Prints one line for each path, the median of ROUNDS rounds, and the lowest and highest of them:
//   count touch 2731.2 2729.0 2745.1
// With --programs also one for each BPF program that ran (bpf_programs.h).

#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bpf_programs.h"
#include "workload.h"

enum { PAGE = 4096, PAGES = 4096, WARM = 6, ROUNDS = 9, FRAMES = 18 };

// CPU time of this process and of its children that have ended: in the guest, a nanosecond is an instruction.
static double instructions(void)
{
	struct rusage ended;

	if (getrusage(RUSAGE_CHILDREN, &ended))
		die("getrusage");
	return (double)cpu_ns() + 1e3 * (double)(ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) +
	       1e9 * (double)(ended.ru_utime.tv_sec + ended.ru_stime.tv_sec);
}

static volatile unsigned char *memory;
static unsigned long stack_number;

static void map_memory(void)
{
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
}

static void unmap_memory(void)
{
	if (munmap((void *)memory, PAGES * PAGE))
		die("munmap");
}

static void touch_pages(unsigned long pages)
{
	for (unsigned long i = 0; i < pages; i++)
		memory[i * PAGE] = 1;
}

static NOINLINE void touch_deeper(unsigned long pages, unsigned frames)
{
	if (frames)
		touch_deeper(pages, frames - 1);
	else
		touch_pages(pages);
	__asm__ volatile("" ::: "memory");
}

// With main and its callers, the stack has 22 frames.
static void touch(unsigned long pages)
{
	touch_deeper(pages, FRAMES);
}

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

// A stack that there was not before, for each page.
static void new_stacks(unsigned long pages)
{
	for (unsigned long i = 0; i < pages; i++) {
		page = memory + i * PAGE;
		next(FRAMES + 1, stack_number++);
	}
}

static void getppid_calls(unsigned long calls)
{
	while (calls--)
		syscall(SYS_getppid);
}

struct path {
	const char *name;
	unsigned long operations;
	void (*prepare)(void);
	void (*run)(unsigned long operations);
	void (*clean)(void);
};

static const struct path paths[] = {
	{ "touch", PAGES, map_memory, touch, unmap_memory },
	{ "new-stack", 1024, map_memory, new_stacks, unmap_memory },
	{ "getppid", 10000, NULL, getppid_calls, NULL },
};

static int compare(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static double measure(const struct path *path)
{
	double before, after, clock;

	if (path->prepare)
		path->prepare();
	before = instructions();
	clock = instructions() - before;
	before = instructions();
	path->run(path->operations);
	after = instructions();
	if (path->clean)
		path->clean();
	return (after - before - clock) / (double)path->operations;
}

static void count(const char *name, int programs)
{
	static struct runs before, after;
	double figures[ROUNDS];
	const struct path *path = paths, *end = paths + sizeof(paths) / sizeof(*paths);

	while (path < end && strcmp(path->name, name))
		path++;
	if (path == end) {
		fprintf(stderr, "instructions: there is no path %s\n", name);
		exit(2);
	}
	for (int i = 0; i < WARM; i++)
		measure(path);
	if (programs)
		read_runs(&before);
	for (int i = 0; i < ROUNDS; i++)
		figures[i] = measure(path);
	if (programs) {
		read_runs(&after);
		print_runs(name, &before, &after, (double)path->operations * ROUNDS);
	}
	qsort(figures, ROUNDS, sizeof(*figures), compare);
	printf("count %s %.1f %.1f %.1f\n", name, figures[ROUNDS / 2], figures[0], figures[ROUNDS - 1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int programs = argc > 1 && strcmp(argv[1], "--programs") == 0;

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	for (int i = 1 + programs; i < argc; i++)
		count(argv[i], programs);
	return 0;
}
