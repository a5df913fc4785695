// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that starts many short-lived processes, each with unique stacks, for tests of what a profiler
// keeps of ended processes.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o generations generations.c
//
// It reads one command per line, and answers `ok`:
//   run PROCESSES STACKS RATE   starts PROCESSES processes, one after the other; each touches a page under each
//                               of STACKS call chains, frees it, and ends. All chains of all processes and all
//                               commands are different. Together the processes touch at most RATE pages per
//                               second.
//   late MIB                    late_allocation writes MIB MiB, and keeps them
// It ends with status 0 at the end of its input.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
// Call chains have this many steps with four alternatives each: 4,194,304 chains.
#define STEPS 11

static volatile unsigned char *page;
static size_t page_size;

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

static NOINLINE void north(unsigned steps, unsigned long path);
static NOINLINE void east(unsigned steps, unsigned long path);
static NOINLINE void south(unsigned steps, unsigned long path);
static NOINLINE void west(unsigned steps, unsigned long path);

static NOINLINE void short_lived(void)
{
	*page = 1;
	keep_frame();
}

static inline __attribute__((always_inline)) void next(unsigned steps, unsigned long path)
{
	if (steps == 0)
		short_lived();
	else if (path % 4 == 0)
		north(steps - 1, path / 4);
	else if (path % 4 == 1)
		east(steps - 1, path / 4);
	else if (path % 4 == 2)
		south(steps - 1, path / 4);
	else
		west(steps - 1, path / 4);
	keep_frame();
}

static NOINLINE void north(unsigned steps, unsigned long path)
{
	next(steps, path);
}

static NOINLINE void east(unsigned steps, unsigned long path)
{
	next(steps, path);
}

static NOINLINE void south(unsigned steps, unsigned long path)
{
	next(steps, path);
}

static NOINLINE void west(unsigned steps, unsigned long path)
{
	next(steps, path);
}

static NOINLINE void one_process(unsigned long first, unsigned long stacks)
{
	for (unsigned long n = first; n < first + stacks; n++) {
		next(STEPS, n);
		if (madvise((void *)page, page_size, MADV_DONTNEED))
			die("madvise");
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(unsigned long processes, unsigned long stacks, unsigned long rate)
{
	static unsigned long used;
	unsigned long done = 0;
	double begun = now();

	for (unsigned long n = 0; n < processes; n++) {
		int status, pid = fork();

		if (pid < 0)
			die("fork");
		if (pid == 0) {
			one_process(used, stacks);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			die("waitpid");
		used += stacks;
		done += stacks;
		while (now() - begun < (double)done / (double)rate)
			usleep(1000);
	}
}

static NOINLINE void late_allocation(size_t len)
{
	volatile unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t at = 0; at < len; at += page_size)
		p[at] = 1;
	keep_frame();
}

int main(void)
{
	unsigned long processes, stacks, rate, mib;
	char line[128];

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		die("mmap");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "run %lu %lu %lu", &processes, &stacks, &rate) == 3)
			run(processes, stacks, rate);
		else if (sscanf(line, "late %lu", &mib) == 1)
			late_allocation(mib << 20);
		else
			return 2;
		if (write(STDOUT_FILENO, "ok\n", 3) != 3)
			die("write");
	}
	return 0;
}
