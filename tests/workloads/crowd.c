// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Many live processes, for tests of how long it takes to find them all.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o crowd crowd.c
//
// `crowd idle|busy N` starts N processes, each of which executes this program again, and prints `ready` when
// all of them run. An idle one holds two pages and sleeps. A busy one repeatedly writes 32 pages, frees them,
// loads and unloads a library, and sleeps for 20 ms. It ends with status 0 at the end of its input; its
// processes end with it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>

#include "common.h"

static NOINLINE void crowd_touch(volatile unsigned char *start, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		start[i * page_size] = 1;
}

static NOINLINE void one_of_them(int busy, int ready)
{
	size_t len = 32 * page_size;
	unsigned char *p = map_memory(len);

	crowd_touch(p, 2);
	if (write(ready, "r", 1) != 1)
		_exit(1);
	for (;;) {
		void *library;

		if (!busy) {
			pause();
			continue;
		}
		crowd_touch(p, 32);
		drop_pages(p, len);
		library = dlopen("libz.so.1", RTLD_NOW);
		if (library)
			dlclose(library);
		usleep(20000);
	}
}

int main(int argc, char **argv)
{
	int n, pipes[2];
	char byte;

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (argc == 4 && strcmp(argv[1], "--one") == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		one_of_them(strcmp(argv[2], "busy") == 0, atoi(argv[3]));
	}
	if (argc != 3 || pipe(pipes))
		return 2;
	n = atoi(argv[2]);
	for (int i = 0; i < n; i++) {
		char ready[16];
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid == 0) {
			snprintf(ready, sizeof(ready), "%d", pipes[1]);
			execl("/proc/self/exe", argv[0], "--one", argv[1], ready, (char *)NULL);
			_exit(127);
		}
	}
	for (int i = 0; i < n; i++)
		if (read(pipes[0], &byte, 1) != 1)
			die("read");
	say("ready\n");
	while (read(STDIN_FILENO, &byte, 1) == 1)
		;
	return 0;
}
