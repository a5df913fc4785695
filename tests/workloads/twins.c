// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Forks children that do the same: each takes 20,000 blocks of 100 bytes in twin_holds, and waits.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o twins twins.c
//
// Each line of input forks a child, and is answered by `ok` once the child has its blocks. The children end with the
// input.

#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>

#include "common.h"

static void *volatile held[20000];

static NOINLINE void twin_holds(void)
{
	for (int n = 0; n < 20000; n++)
		held[n] = malloc(100);
	keep_frame();
}

int main(void)
{
	char line[16], byte;
	int told[2];

	if (pipe(told))
		die("pipe");
	while (fgets(line, sizeof(line), stdin)) {
		int pid = fork();

		if (pid < 0)
			die("fork");
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			twin_holds();
			if (write(told[1], "x", 1) != 1)
				die("write");
			pause();
		}
		if (read(told[0], &byte, 1) != 1)
			die("read");
		say("ok\n");
	}
	return 0;
}
