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
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common.h"

// Call chains have this many steps with four alternatives each: 4,194,304 chains.
#define STEPS 11

static unsigned char *page;

typedef void step(unsigned steps, unsigned long path);
static step north, east, south, west;

static NOINLINE void short_lived(void)
{
	*(volatile unsigned char *)page = 1;
	keep_frame();
}

static ALWAYS_INLINE void next(unsigned steps, unsigned long path)
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
		drop_pages(page, page_size);
	}
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
	store_each_page(map_memory(len), len);
	keep_frame();
}

int main(void)
{
	unsigned long processes, stacks, rate, mib;
	char line[128];

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	page = map_memory(page_size);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "run %lu %lu %lu", &processes, &stacks, &rate) == 3)
			run(processes, stacks, rate);
		else if (sscanf(line, "late %lu", &mib) == 1)
			late_allocation(mib << 20);
		else
			return 2;
		say("ok\n");
	}
	return 0;
}
