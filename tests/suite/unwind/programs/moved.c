// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that has its code in other memory than its file's, at the same addresses, as those that want it in huge pages.
//
//   moved HOW
//
//   mmap     anonymous memory is mapped over a part of the code, and the code copied back (node, iodlr, hugify)
//   mremap   a copy of that part is moved there
//   shared   the same with memory that is shared
//   whole    the whole executable segment is moved
//   other    there is other code in that part
//
// It says `ready`, takes memory for each line of input, and answers `ok`.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define BYTES (64 * PAGE)
#define PART __attribute__((noinline, section(".text.part")))

extern char __executable_start, etext;

// The part begins and ends with a page's worth of other code.
PART __attribute__((aligned(4096))) void part_begins(void)
{
	__asm__ volatile(".fill 8192, 1, 0x90");
}

PART void fill(volatile char *start)
{
	for (unsigned long at = 0; at < BYTES; at += PAGE)
		start[at] = 1;
}

PART void fill_by(volatile char *start)
{
	char local[200];

	__asm__ volatile("" ::"r"(local) : "memory");
	fill(start);
	__asm__ volatile("" ::"r"(local) : "memory");
}

PART __attribute__((aligned(4096))) void part_ends(void)
{
	__asm__ volatile(".fill 8192, 1, 0x90");
}

static void check(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	_exit(1);
}

static char *memory(void *at, size_t size, int flags)
{
	char *start = mmap(at, size, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0);

	check(start != MAP_FAILED, "mmap");
	return start;
}

static void move(char *start, size_t size, int flags)
{
	char *copy = memory(NULL, size, flags);

	memcpy(copy, start, size);
	check(mprotect(copy, size, PROT_READ | PROT_EXEC) == 0, "mprotect");
	check(mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, start) == start, "mremap");
}

static void map_over(char *start, size_t size, int others)
{
	char *copy = memory(NULL, size, MAP_PRIVATE);

	memcpy(copy, start, size);
	// The code of one function, with another one's before it.
	if (others)
		memmove(copy + 64, copy + ((uintptr_t)fill - (uintptr_t)start), 256);
	memory(start, size, MAP_PRIVATE | MAP_FIXED);
	memcpy(start, copy, size);
	check(mprotect(start, size, PROT_READ | PROT_EXEC) == 0, "mprotect");
}

__attribute__((noinline)) static void grow(int others)
{
	char *start = memory(NULL, BYTES, MAP_PRIVATE);
	void (*other)(volatile char *) = (void (*)(volatile char *))((uintptr_t)part_begins + 64);

	if (others)
		other(start);
	else
		fill_by(start);
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	char *start = (char *)part_begins, line[16];
	size_t size = (size_t)((char *)part_ends - start);
	uintptr_t first = (uintptr_t)&__executable_start + PAGE, last = (uintptr_t)&etext;
	int others = !strcmp(how, "other");

	if (!strcmp(how, "mremap"))
		move(start, size, MAP_PRIVATE);
	else if (!strcmp(how, "shared"))
		move(start, size, MAP_SHARED);
	else if (!strcmp(how, "whole"))
		move((char *)first, ((last + PAGE - 1) & ~(PAGE - 1)) - first, MAP_PRIVATE);
	else
		map_over(start, size, others);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		grow(others);
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
