// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: many processes that hold memory and wait, and one that keeps changing its own.
//
// Build:
//   cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -o crowd crowd.c
//
//   crowd --processes N [--kib N]
//
// Waits for a line on stdin, then forks N processes, each of which holds N KiB (default 64) and waits, and prints
// one line when all of them hold theirs:
//   processes 100
// From then on a further process unmaps as much and touches it again, a hundred times a second. All of them end when stdin ends.

#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "workload.h"

enum { PAGE = 4096 };

static size_t bytes;

static unsigned char *hold(void)
{
	unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < bytes; i += PAGE)
		((volatile unsigned char *)p)[i] = 1;
	return p;
}

static void change(void)
{
	for (;;) {
		if (munmap(hold(), bytes))
			die("munmap");
		usleep(10000);
	}
}

// Starts a process that writes a byte to `ready` once it holds its memory.
static void start(int ready, int changes)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("fork");
	if (pid)
		return;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(1);
	hold();
	if (write(ready, "", 1) != 1)
		_exit(1);
	if (changes)
		change();
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	unsigned long processes = 0, kib = 64;
	int pipes[2];
	char byte;
	const struct option options[] = {
		{ "--processes", .number = &processes },
		{ "--kib", .number = &kib },
		{ 0 },
	};

	read_options(argc, argv, 1, options, "crowd --processes N [--kib N]");
	if (!processes || kib < 4) {
		fprintf(stderr, "crowd: --processes is at least 1, --kib at least 4\n");
		return 2;
	}
	bytes = (size_t)kib << 10;
	if (pipe(pipes))
		die("pipe");
	wait_for_line();
	for (unsigned long i = 0; i <= processes; i++) {
		start(pipes[1], i == processes);
		if (read(pipes[0], &byte, 1) != 1)
			die("read");
	}
	printf("processes %lu\n", processes);
	fflush(stdout);
	wait_for_end();
	return 0;
}
