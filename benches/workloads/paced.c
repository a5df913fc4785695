// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: starts short processes at a steady rate, and prints how long that took.
//
// Build:
//   cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -o paced paced.c
//
//   paced --rate N [--count N] [--exec]
//
// Answers each line on stdin: it starts N processes (default 100) at N a second, each by fork and ended by _exit, or with
// --exec /bin/true by posix_spawn, waits for each, and prints one line:
//   processes 100 started_us 98.1 started_p99_us 151.0 ended_us 210.7 ended_p99_us 390.2 per_s 99.8 cpu_us 180.3
// `started` is the time until the call returns, `ended` the time until the process has ended: wall-clock times, the
// median and the 99th percentile. per_s is the rate reached: a process that is late delays the ones after it.
// cpu_us is the CPU time of a process and of its start, in this process and in the new one. Ends when stdin ends.

#define _GNU_SOURCE
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

extern char **environ;

static pid_t start(int exec)
{
	char *argv[] = { "/bin/true", NULL };
	pid_t pid;

	if (exec)
		return posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) ? -1 : pid;
	pid = fork();
	if (pid == 0)
		_exit(0);
	return pid;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double used_us(int who)
{
	struct rusage used;

	if (getrusage(who, &used))
		die("getrusage");
	return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
	       (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static double all_used_us(void)
{
	return used_us(RUSAGE_SELF) + used_us(RUSAGE_CHILDREN);
}

static void sleep_until(uint64_t ns)
{
	const struct timespec at = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL))
		;
}

static void run(unsigned long count, uint64_t interval, int exec, double *started, double *ended)
{
	double used = all_used_us();
	uint64_t began = wall_ns();
	size_t last = count * 99 / 100;

	for (unsigned long i = 0; i < count; i++) {
		uint64_t before;
		int status;
		pid_t pid;

		sleep_until(began + i * interval);
		before = wall_ns();
		pid = start(exec);
		started[i] = (double)(wall_ns() - before) / 1e3;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			die("a process did not run");
		ended[i] = (double)(wall_ns() - before) / 1e3;
	}
	// The last interval belongs to the last process.
	sleep_until(began + count * interval);
	began = wall_ns() - began;
	used = all_used_us() - used;
	qsort(started, count, sizeof(*started), by_size);
	qsort(ended, count, sizeof(*ended), by_size);
	printf("processes %lu started_us %.1f started_p99_us %.1f ended_us %.1f ended_p99_us %.1f per_s %.1f cpu_us %.1f\n", count,
	       started[count / 2], started[last], ended[count / 2], ended[last], (double)count * 1e9 / (double)began,
	       used / (double)count);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned long rate = 0, count = 100;
	double *started, *ended;
	int exec = 0, c;
	const struct option options[] = {
		{ "--rate", .number = &rate },
		{ "--count", .number = &count },
		{ "--exec", .flag = &exec },
		{ 0 },
	};

	read_options(argc, argv, 1, options, "paced --rate N [--count N] [--exec]");
	if (!rate || rate > 1000000 || !count || count > 1000000) {
		fprintf(stderr, "paced: --rate and --count are 1 to 1,000,000\n");
		return 2;
	}
	started = calloc(count, sizeof(*started));
	ended = calloc(count, sizeof(*ended));
	if (!started || !ended)
		die("calloc");
	while ((c = getchar()) != EOF)
		if (c == '\n')
			run(count, 1000000000u / rate, exec, started, ended);
	return 0;
}
