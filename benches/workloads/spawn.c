// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Runs a program repeatedly, and prints how long that took.
//
// `spawn fork|posix_spawn COUNT PROGRAM ARGS…` runs the program COUNT times, each to its end, and prints the
// wall-clock time, `elapsed_ns N`. It ends with status 1 if the program cannot be run or does not end with
// status 0.

#define _GNU_SOURCE
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

extern char **environ;

static pid_t by_fork(char **argv)
{
	pid_t pid = fork();

	if (pid == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	return pid;
}

static pid_t by_spawn(char **argv)
{
	pid_t pid;

	return posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) ? -1 : pid;
}

int main(int argc, char **argv)
{
	unsigned long count;
	uint64_t began;
	int fork_it;

	if (argc < 4 || (strcmp(argv[1], "fork") && strcmp(argv[1], "posix_spawn"))) {
		fprintf(stderr, "usage: spawn fork|posix_spawn COUNT PROGRAM ARGS...\n");
		return 2;
	}
	fork_it = strcmp(argv[1], "fork") == 0;
	count = number("COUNT", argv[2]);
	began = wall_ns();
	for (unsigned long i = 0; i < count; i++) {
		pid_t pid = fork_it ? by_fork(argv + 3) : by_spawn(argv + 3);
		int status;

		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			die(argv[3]);
		if (status) {
			fprintf(stderr, "%s ended with status %#x\n", argv[3], (unsigned)status);
			return 1;
		}
	}
	printf("elapsed_ns %llu\n", (unsigned long long)(wall_ns() - began));
	return 0;
}
