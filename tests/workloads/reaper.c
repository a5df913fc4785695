// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Runs a command, becomes the parent of every process that the command leaves behind, and prints how each
// one ended, so that a test sees what happens to a command whose memprof was killed.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o reaper reaper.c
//
// `reaper COMMAND…` prints `reaper PID started`, then `reaper PID exit STATUS` or `reaper PID signal NUMBER`
// for each process that ends, and `reaper none left` when no process is left. The command inherits the
// standard streams.

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(int pid, const char *what, int number)
{
	char text[64];
	int len = snprintf(text, sizeof(text), "reaper %d %s %d\n", pid, what, number);

	// A single write, because the command writes to the same pipe.
	if (write(STDOUT_FILENO, text, (size_t)len) != len)
		_exit(1);
}

int main(int argc, char **argv)
{
	int status, pid;

	if (argc < 2)
		return 2;
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		return 1;
	pid = fork();
	if (pid < 0)
		return 1;
	if (pid == 0) {
		execvp(argv[1], argv + 1);
		perror(argv[1]);
		_exit(127);
	}
	say(pid, "started", 0);
	while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
		if (pid <= 0)
			continue;
		if (WIFEXITED(status))
			say(pid, "exit", WEXITSTATUS(status));
		else if (WIFSIGNALED(status))
			say(pid, "signal", WTERMSIG(status));
	}
	say(0, "none", 0);
	return 0;
}
