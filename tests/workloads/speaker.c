// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Speaks the samplers' contract without a sampler: fires its probes for allocations that it makes up, with known figures,
 * on command. Arguments are in a register, in memory and constant, and of several sizes.
 *
 * Commands on standard input, one line each, answered by `ok` on standard output when done:
 *   hold N       N allocations of 100 bytes that stand for 1,000, at new addresses
 *   large N      N allocations of 1 MiB that stand for themselves
 *   churn N      N allocations of 64 bytes that stand for 6,400, freed at once
 *   edge N       N allocations of 100 bytes that stand for 1,000, which are the last bytes before a hole in memory
 *   release N    frees the last N of `hold`
 *   mark NAME    sets a mark, by memprof's own probe
 *   fork         goes on in a child
 *   listeners    answers how many probes of each name are listened to: `alloc free`
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"
#include "mark.h"

PROBES;

static uint64_t next = 0x100000;

__attribute__((noinline)) static uint64_t hold_one(void)
{
	uint64_t at = next;

	next += 64;
	if (otel_memory_alloc_semaphore)
		asm volatile(NOTE("alloc", "8@%[at] -4@$100 8@%[weight]")::[at] "r"(at), [weight] "m"((uint64_t){ 1000 })
			     : "memory");
	return at;
}

__attribute__((noinline)) static void large_one(void)
{
	uint64_t at = next;

	next += 1 << 20;
	if (otel_memory_alloc_semaphore)
		asm volatile(NOTE("alloc", "8@%[at] 8@%[size] 8@%[size]")::[at] "r"(at), [size] "r"(1ull << 20)
			     : "memory");
}

__attribute__((noinline)) static void release_one(uint64_t at)
{
	if (otel_memory_free_semaphore)
		asm volatile(NOTE("free", "8@%[at]")::[at] "r"(at) : "memory");
}

__attribute__((noinline)) static void churn_one(void)
{
	uint64_t at = next;

	next += 64;
	if (otel_memory_alloc_semaphore)
		asm volatile(NOTE("alloc", "8@%[at] 2@%w[size] 4@%k[weight]")::[at] "r"(at), [size] "r"(0x70000 | 64),
			     [weight] "r"(0x500000000 | 6400)
			     : "memory");
	release_one(at);
}

__attribute__((noinline)) static void edge_one(void)
{
	static char *hole;
	uint64_t at = next;

	next += 64;
	if (!hole) {
		hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		hole += 4096;
		munmap(hole, 4096);
		memcpy(hole - 4, &(int32_t){ 1000 }, 4);
		memcpy(hole - 6, &(int16_t){ 100 }, 2);
	}
	if (otel_memory_alloc_semaphore)
		asm volatile(NOTE("alloc", "8@%[at] -2@-6(%[hole]) -4@-4(%[hole])")::[at] "r"(at), [hole] "r"(hole)
			     : "memory");
}

int main(void)
{
	static uint64_t held[1 << 20];
	static char line[64];
	size_t nr = 0;

	while (fgets(line, sizeof(line), stdin)) {
		unsigned long n = 0;
		char word[16] = "";

		sscanf(line, "%15s %lu", word, &n);
		if (!strcmp(word, "mark")) {
			line[strcspn(line, "\n")] = 0;
			set_mark(line + strlen("mark "));
		}
		for (unsigned long i = 0; i < n; i++) {
			if (!strcmp(word, "hold"))
				held[nr++] = hold_one();
			else if (!strcmp(word, "large"))
				large_one();
			else if (!strcmp(word, "churn"))
				churn_one();
			else if (!strcmp(word, "edge"))
				edge_one();
			else if (!strcmp(word, "release") && nr)
				release_one(held[--nr]);
		}
		if (!strcmp(word, "fork")) {
			pid_t child = fork();

			if (child > 0) {
				waitpid(child, NULL, 0);
				return 0;
			}
		}
		if (!strcmp(word, "listeners"))
			printf("%u %u\n", otel_memory_alloc_semaphore, otel_memory_free_semaphore);
		else
			puts("ok");
		fflush(stdout);
	}
	return 0;
}
