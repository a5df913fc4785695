// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A large parent that starts many processes.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o spawner spawner.c
//
// Reads commands from stdin, one per line, and answers each with "ok" and the result, if any:
//   sparse BYTES STEP     reserve BYTES bytes and touch a page every STEP bytes
//   scatter N             N times: map 2 MiB at an unused address, touch, unmap; 1 GiB apart
//   children N PAGES      fork N children that touch PAGES pages each and wait
//   reap                  end these children
//   spawn HOW MS RATE     for MS ms, start /bin/true by "fork" or "vfork", at most RATE times per second;
//                         answers how many
//   background HOW RATE   the same in a separate process, until the end

#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common.h"

#define PAGE 4096ul
#define MAX_CHILDREN 4096

extern char **environ;

static pid_t children[MAX_CHILDREN];
static int nr_children;

static void touch(unsigned char *at, unsigned long bytes, unsigned long step)
{
	for (unsigned long i = 0; i < bytes; i += step)
		at[i] = 1;
}

static void sparse(unsigned long bytes, unsigned long step)
{
	unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	madvise(at, bytes, MADV_NOHUGEPAGE);
	touch(at, bytes, step);
}

static void scatter(unsigned long n)
{
	static unsigned long next = 0x100000000000ul;

	while (n--) {
		unsigned char *at = mmap((void *)next, 2 << 20, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		if (at == MAP_FAILED)
			die("mmap");
		touch(at, 2 << 20, PAGE * 64);
		munmap(at, 2 << 20);
		next += 1ul << 30;
	}
}

static void start_children(int n, unsigned long pages)
{
	while (n-- && nr_children < MAX_CHILDREN) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (!pid) {
			unsigned char *at = map_memory(pages * PAGE);

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			touch(at, pages * PAGE, PAGE);
			for (;;)
				pause();
		}
		children[nr_children++] = pid;
	}
}

static void reap(void)
{
	for (int i = 0; i < nr_children; i++)
		kill(children[i], SIGKILL);
	while (nr_children) {
		waitpid(children[nr_children - 1], NULL, 0);
		nr_children--;
	}
}

static void start_one(int by_vfork)
{
	char *argv[] = { "/bin/true", NULL };
	pid_t pid;

	if (by_vfork) {
		if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ))
			die("posix_spawn");
	} else {
		pid = fork();
		if (pid < 0)
			die("fork");
		if (!pid) {
			execv(argv[0], argv);
			_exit(127);
		}
	}
	waitpid(pid, NULL, 0);
}

static unsigned long spawn(int by_vfork, double seconds, double rate)
{
	double begun = now(), at;
	unsigned long n = 0;

	while ((at = now() - begun) < seconds) {
		if (n > at * rate) {
			usleep(200);
			continue;
		}
		start_one(by_vfork);
		n++;
	}
	return n;
}

int main(void)
{
	char line[256], how[32];
	unsigned long a, b;

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ok");
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long said = 0;

		if (sscanf(line, "sparse %lu %lu", &a, &b) == 2) {
			sparse(a, b);
		} else if (sscanf(line, "scatter %lu", &a) == 1) {
			scatter(a);
		} else if (sscanf(line, "children %lu %lu", &a, &b) == 2) {
			start_children(a, b);
		} else if (!strcmp(line, "reap\n")) {
			reap();
		} else if (sscanf(line, "spawn %31s %lu %lu", how, &a, &b) == 3) {
			said = spawn(!strcmp(how, "vfork"), a / 1e3, b);
		} else if (sscanf(line, "background %31s %lu", how, &a) == 2) {
			pid_t pid = getpid();

			// Commands are answered while this process runs.
			if (!fork()) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				while (getppid() == pid)
					spawn(!strcmp(how, "vfork"), 0.1, a);
				_exit(0);
			}
		} else {
			fprintf(stderr, "unknown: %s", line);
			return 1;
		}
		if (said)
			printf("ok %lu\n", said);
		else
			puts("ok");
	}
	return 0;
}
