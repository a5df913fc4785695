// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the benchmark workloads share: the clock, the command line, the start and the end.

#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

// CPU time of this process: what others do on a shared machine is not in it.
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

// --start-on-stdin: whoever started this has attached a profiler.
static inline void wait_for_line(void)
{
	int c;

	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

// The profiler still wants to look.
static inline void wait_for_end(void)
{
	while (getchar() != EOF)
		;
}

#endif
