// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Samples its own allocations by the samplers' contract, each of them, and gets them from malloc.
 *
 * Commands on standard input, one line each, answered by `ok` on standard output when done:
 *   take N       N allocations of 4,096 bytes
 *   release N    frees the last N
 *   listeners    answers how many listen to each probe: `alloc free`
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"

PROBES;

static char *held[1 << 20];

__attribute__((noinline)) static char *take_one(void)
{
	char *at = malloc(4096);

	if (otel_memory_alloc_semaphore)
		asm volatile(NOTE("alloc", "8@%[at] 8@%[size] 8@%[size]")::[at] "r"(at), [size] "r"(4096ull) : "memory");
	return at;
}

__attribute__((noinline)) static void release_one(char *at)
{
	if (otel_memory_free_semaphore)
		asm volatile(NOTE("free", "8@%[at]")::[at] "r"(at) : "memory");
	free(at);
}

int main(void)
{
	static char line[64];
	size_t nr = 0;

	while (fgets(line, sizeof(line), stdin)) {
		unsigned long n = 0;
		char word[16] = "";

		sscanf(line, "%15s %lu", word, &n);
		for (unsigned long i = 0; i < n; i++) {
			if (!strcmp(word, "take"))
				held[nr++] = take_one();
			else if (!strcmp(word, "release") && nr)
				release_one(held[--nr]);
		}
		if (!strcmp(word, "listeners"))
			printf("%u %u\n", otel_memory_alloc_semaphore, otel_memory_free_semaphore);
		else
			puts("ok");
		fflush(stdout);
	}
	return 0;
}
