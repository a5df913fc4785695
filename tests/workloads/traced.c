// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Programs that are hard to freeze, for tests of freezing.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o traced traced.c
//
//   traced threads N      N waiting threads
//   traced forks N        N waiting children, each with 64 KiB
//   traced pages N        N MiB of 4 KiB pages
//   traced signals N      N threads that continuously send themselves real-time signals
//   traced vfork FIFO     a thread that hangs in vfork until the FIFO is written to
//
// It prints `ready` and answers each line of its input: `signals` with the number of signals that were sent but
// not handled, the others with the longest time, in microseconds, that it did not run since the last line. It
// ends with status 0 at the end of its input.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common.h"

enum { STACK = 64 * 1024 };

static _Atomic uint64_t longest, lost;
static __thread volatile sig_atomic_t handled;

static uint64_t micros(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void *watch_the_clock(void *unused)
{
	for (uint64_t last = micros();;) {
		uint64_t now;

		usleep(200);
		now = micros();
		if (now - last > longest)
			longest = now - last;
		last = now;
	}
	return unused;
}

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

static void *send_signals(void *unused)
{
	for (;;) {
		handled = 0;
		pthread_kill(pthread_self(), SIGRTMIN + 3);
		// A signal that a thread sends to itself is delivered before the call returns.
		if (handled != 1)
			lost++;
	}
	return unused;
}

static void start(void *(*body)(void *))
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	if (pthread_create(&thread, &attr, body, NULL))
		die("pthread_create");
}

static void fork_one(void)
{
	pid_t pid = fork();
	char *memory;

	if (pid < 0)
		die("fork");
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memory = malloc(STACK);
	memset(memory, 1, STACK);
	wait_for_ever(memory);
}

static void hold_pages(size_t len)
{
	unsigned char *p = map_memory(len);

	madvise(p, len, MADV_NOHUGEPAGE);
	store_each_page(p, len);
}

static void hang(const char *fifo)
{
	if (vfork() == 0) {
		char byte;
		int fd = open(fifo, O_RDONLY);

		_exit(read(fd, &byte, 1) != 1);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 0;
	int signals = !strcmp(what, "signals");
	char line[64];

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	signal(SIGRTMIN + 3, on_signal);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "pages"))
		hold_pages((size_t)n << 20);
	for (int i = 0; i < n; i++) {
		if (!strcmp(what, "threads"))
			start(wait_for_ever);
		else if (!strcmp(what, "forks"))
			fork_one();
		else if (signals)
			start(send_signals);
	}
	if (!signals)
		start(watch_the_clock);
	puts("ready");
	if (!strcmp(what, "vfork"))
		hang(argv[2]);
	while (fgets(line, sizeof(line), stdin))
		printf("%llu\n", (unsigned long long)(signals ? lost : atomic_exchange(&longest, 0)));
	_exit(0);
}
