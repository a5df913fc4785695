// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Resident pages of zeroes: in blocks, in free memory and in mappings, in huge pages and in others.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o zeroes zeroes.c
//
//   zeroes
//
// Prints ok, and answers each line with ok. After the first line it holds
//   - a block of 1 MiB that clear_block clears, and one of 512 KiB that fill_block fills with ones;
//   - a mapping of 8 MiB in which touch_rarely stores one byte in each 64 KiB, with huge pages if the kernel has them;
//   - a mapping of 2 MiB without huge pages that clear_mapping clears, and one of 1 MiB that is read and never written to;
//   - a mapping of 256 KiB that is cleared and may then not be read.

#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>

#include "serve.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static volatile unsigned char *volatile held[6];

static unsigned char *map(size_t size)
{
	// Aligned to 2 MiB, as huge pages are.
	unsigned char *at = mmap(NULL, size + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(1);
	return (unsigned char *)(((uintptr_t)at + 2 * MIB - 1) & ~(2 * MIB - 1));
}

static NOINLINE void clear_block(void)
{
	held[0] = malloc(MIB);
	// A volatile store for each byte: no call of calloc takes its place.
	for (size_t at = 0; at < MIB; at++)
		held[0][at] = 0;
}

static NOINLINE void fill_block(void)
{
	held[1] = malloc(512 * KIB);
	for (size_t at = 0; at < 512 * KIB; at++)
		held[1][at] = 1;
}

static NOINLINE void touch_rarely(void)
{
	held[2] = map(8 * MIB);
	madvise((void *)held[2], 8 * MIB, MADV_HUGEPAGE);
	for (size_t at = 0; at < 8 * MIB; at += 64 * KIB)
		held[2][at] = 1;
}

static NOINLINE void clear_mapping(void)
{
	held[3] = map(2 * MIB);
	madvise((void *)held[3], 2 * MIB, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < 2 * MIB; at++)
		held[3][at] = 0;
}

static NOINLINE void only_read(void)
{
	held[4] = map(MIB);
	madvise((void *)held[4], MIB, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < MIB; at += 4 * KIB)
		(void)held[4][at];
}

static NOINLINE void clear_and_protect(void)
{
	held[5] = map(256 * KIB);
	madvise((void *)held[5], 256 * KIB, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < 256 * KIB; at++)
		held[5][at] = 0;
	mprotect((void *)held[5], 256 * KIB, PROT_NONE);
}

int main(void)
{
	char line[16];

	answer(0);
	if (!read_line(line, sizeof(line)))
		return 0;
	clear_block();
	fill_block();
	touch_rarely();
	clear_mapping();
	only_read();
	clear_and_protect();
	do
		answer(0);
	while (read_line(line, sizeof(line)));
	return 0;
}
