// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Shared code of the benchmark workloads: the clock, the command line, the start and the end.

#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// CPU time of this process. It excludes the load of other processes on a shared machine.
static inline uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

// Wall-clock time.
static inline uint64_t wall_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
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

// An option of the command line; one of the pointers says what it sets.
struct option {
	const char *name;
	int *flag;
	unsigned long *number;
	const char **text;
};

// Reads the options in argv[first] and after it. `options` ends with an option without a name.
static inline void read_options(int argc, char **argv, int first, const struct option *options, const char *usage)
{
	int understood = argc >= first;

	for (int i = first; understood && i < argc; i++) {
		const struct option *option = options;

		while (option->name && strcmp(option->name, argv[i]))
			option++;
		understood = option->name && (option->flag || i + 1 < argc);
		if (!understood)
			break;
		if (option->flag)
			*option->flag = 1;
		else if (option->number)
			*option->number = number(option->name, argv[++i]);
		else
			*option->text = argv[++i];
	}
	if (!understood) {
		fprintf(stderr, "usage: %s\n", usage);
		exit(2);
	}
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
