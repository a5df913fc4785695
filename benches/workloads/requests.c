// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A loop of requests, or of allocations alone, that measures itself.
//
//   requests loop COUNT       free(malloc(64)), COUNT times
//   requests mixed COUNT      10,000 blocks of 16 to 512 bytes live; a random one is replaced each time
//   requests serve COUNT      COUNT requests: each parses a line into 20 fields of their own, sorts them, writes an answer, and
//                             frees all of it; every tenth keeps its answer in a cache of 10,000
//
// Prints the CPU time of the loop, in ns for each turn.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIELDS = 20, LIVE = 10000 };

static void *live[LIVE];
static uint64_t state = 1;

static uint32_t number(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

static void replace(size_t at, void *block)
{
	free(live[at]);
	live[at] = block;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void serve(long turn)
{
	char line[512], *fields[FIELDS], *rest = line, *answer;
	size_t len = 0;

	for (int n = 0; n < FIELDS; n++)
		len += (size_t)snprintf(line + len, sizeof(line) - len, "field%u=%u;", number() % 100, number());
	for (int n = 0; n < FIELDS; n++)
		fields[n] = strdup(strsep(&rest, ";"));
	qsort(fields, FIELDS, sizeof(*fields), compare);
	answer = malloc(len + FIELDS);
	answer[0] = 0;
	for (int n = 0; n < FIELDS; n++) {
		strcat(answer, fields[n]);
		free(fields[n]);
	}
	if (turn % 10)
		free(answer);
	else
		replace((size_t)(turn / 10) % LIVE, answer);
}

static double cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	long count = strtol(argv[2], NULL, 10);
	double start = cpu_ns();

	for (long n = 0; n < count; n++) {
		switch (argv[1][0]) {
		case 'l':
			free(malloc(64));
			break;
		case 'm':
			replace(number() % LIVE, malloc(16 + number() % 497));
			break;
		default:
			serve(n);
		}
	}
	printf("%.3f\n", (cpu_ns() - start) / (double)count);
	return 0;
}
