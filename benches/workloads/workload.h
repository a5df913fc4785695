// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Shared code of the benchmark workloads: the clock, the command line, the start and the end.

#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

// CPU time of this process. It excludes the load of other processes on a shared machine.
static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

// The value of an option.
static inline unsigned long number(const char *option, const char *text)
{
	char *rest;
	unsigned long value;

	if (!text || *text < '0' || *text > '9' || (value = strtoul(text, &rest, 10), *rest)) {
		fprintf(stderr, "%s wants a whole number\n", option);
		exit(2);
	}
	return value;
}

// --start-on-stdin: the line says that a profiler is attached.
static inline void wait_for_line(void)
{
	int c;

	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

// Stays alive until the profiler has taken its reports.
static inline void wait_for_end(void)
{
	while (getchar() != EOF)
		;
}

#endif
