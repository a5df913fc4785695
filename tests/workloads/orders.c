// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Functions that touch the pages of 64 MiB mappings in many orders. `orders FIRST` begins with pattern number FIRST and goes
// on with the others. It says of each function how many pages it owns (`FUNCTION PAGES`), then `ready`, and waits for the
// end of standard input. Two children share some of the pages.

#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>

#include "common.h"

#define PAGES 16384ul
#define HALF (PAGES / 2)
#define PIECES 64

static size_t order[PAGES];

static ALWAYS_INLINE void touch(unsigned char *p, size_t from, size_t to, size_t step)
{
	keep_frame();
	for (size_t i = from; i < to; i += step)
		((volatile unsigned char *)p)[order[i] * page_size] = 1;
	keep_frame();
}

static void is_owner(const char *function, size_t pages)
{
	printf("%s %zu\n", function, pages);
}

// Three functions of each pattern.
#define TOUCHERS(name)                                                                       \
	static NOINLINE void name##_early(unsigned char *p, size_t from, size_t to, size_t step) \
	{                                                                                        \
		touch(p, from, to, step);                                                            \
	}                                                                                        \
	static NOINLINE void name##_later(unsigned char *p, size_t from, size_t to, size_t step) \
	{                                                                                        \
		touch(p, from, to, step);                                                            \
	}                                                                                        \
	static NOINLINE void name##_again(unsigned char *p, size_t from, size_t to, size_t step) \
	{                                                                                        \
		touch(p, from, to, step);                                                            \
	}

// Memory that is not merged with its neighbours, of small pages.
static unsigned char *separate(size_t pages, int flags)
{
	size_t len = pages * page_size;
	unsigned char *p = mmap(NULL, len + page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	p = mmap(p, len, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	if (madvise(p, len, MADV_NOHUGEPAGE))
		die("madvise");
	return p;
}

static void in_turn(size_t block)
{
	for (size_t i = 0; i < PAGES; i++) {
		size_t at = i % HALF;

		order[i] = at / block * 2 * block + at % block + (i < HALF ? 0 : block);
	}
}

static void in_steps(size_t step)
{
	for (size_t i = 0; i < PAGES; i++)
		order[i] = i * step % PAGES;
}

static void backwards(void)
{
	for (size_t i = 0; i < PAGES; i++)
		order[i] = PAGES - 1 - i;
}

static void at_random(void)
{
	static unsigned long seed = 12345;

	in_steps(1);
	for (size_t i = PAGES - 1; i > 0; i--) {
		size_t other, page = order[i];

		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		other = (seed >> 33) % (i + 1);
		order[i] = order[other];
		order[other] = page;
	}
}

// Half of the pages are touched early, half later.
#define HALVES(name, set_order, flags)                     \
	TOUCHERS(name)                                         \
	static void name(void)                                 \
	{                                                      \
		unsigned char *p = separate(PAGES, flags);         \
                                                           \
		set_order;                                         \
		name##_early(p, 0, HALF, 1);                       \
		name##_later(p, HALF, PAGES, 1);                   \
		is_owner(#name "_early", HALF);                    \
		is_owner(#name "_later", HALF);                    \
		(void)name##_again;                                \
	}

HALVES(shuffled, at_random(), MAP_PRIVATE)
HALVES(interleaved, in_turn(1), MAP_PRIVATE)
HALVES(blocks_4, in_turn(4), MAP_PRIVATE)
HALVES(blocks_64, in_turn(64), MAP_PRIVATE)
HALVES(blocks_4096, in_turn(4096), MAP_PRIVATE)
HALVES(strided, in_steps(1021), MAP_PRIVATE)
HALVES(reversed, backwards(), MAP_PRIVATE)
HALVES(shared, in_turn(1), MAP_SHARED)

// A long first part, and short ones of the others, three times.
TOUCHERS(uneven)
static void uneven(void)
{
	unsigned char *p = separate(PAGES, MAP_PRIVATE);

	at_random();
	for (size_t part = 0; part < 4; part++) {
		size_t from = part * PAGES / 4, to = from + PAGES / 4;

		uneven_early(p, from, from + PAGES * 3 / 16, 1);
		uneven_later(p, from + PAGES * 3 / 16, from + PAGES * 15 / 64, 1);
		uneven_again(p, from + PAGES * 15 / 64, to, 1);
	}
	is_owner("uneven_early", PAGES * 3 / 4);
	is_owner("uneven_later", PAGES * 3 / 16);
	is_owner("uneven_again", PAGES / 16);
}

// Touched at random, and moved away in two parts.
TOUCHERS(moved)
static void moved(void)
{
	unsigned char *p = separate(PAGES, MAP_PRIVATE), *to = separate(PAGES, MAP_PRIVATE);
	size_t len = HALF * page_size;

	at_random();
	moved_early(p, 0, HALF, 1);
	moved_later(p, HALF, PAGES, 1);
	for (size_t at = 0; at < 2 * len; at += len)
		if (mremap(p + at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to + len - at) == MAP_FAILED)
			die("mremap");
	is_owner("moved_early", HALF);
	is_owner("moved_later", HALF);
	(void)moved_again;
}

// A quarter of the pages is given back, and touched again.
TOUCHERS(refaulted)
static void refaulted(void)
{
	unsigned char *p = separate(PAGES, MAP_PRIVATE);

	in_turn(16);
	refaulted_early(p, 0, HALF, 1);
	refaulted_later(p, HALF, PAGES, 1);
	in_steps(1);
	for (size_t at = 0; at < PAGES; at += 32)
		if (madvise(p + (at + 12) * page_size, 8 * page_size, MADV_DONTNEED))
			die("madvise");
	for (size_t at = 0; at < PAGES; at += 32)
		refaulted_again(p, at + 12, at + 20, 1);
	is_owner("refaulted_early", HALF * 3 / 4);
	is_owner("refaulted_later", HALF * 3 / 4);
	is_owner("refaulted_again", PAGES / 4);
}

// Two children and their parent write to parts of shared pages.
TOUCHERS(copied)
static void copied(void)
{
	unsigned char *p = separate(PAGES, MAP_PRIVATE);
	int ready[2];
	char byte;

	in_steps(1);
	copied_early(p, 0, PAGES, 1);
	fflush(stdout);
	if (pipe(ready))
		die("pipe");
	for (size_t child = 0; child < 2; child++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid)
			continue;
		copied_later(p, child, PAGES, 8);
		if (write(ready[1], "", 1) != 1)
			die("write");
		while (read(0, &byte, 1) > 0)
			;
		_exit(0);
	}
	for (size_t child = 0; child < 2; child++)
		if (read(ready[0], &byte, 1) != 1)
			die("read");
	copied_again(p, 0, PAGES, 4);
	// In all three processes.
	is_owner("copied_early", 3 * PAGES - 2 * PAGES / 8 - PAGES / 4);
	is_owner("copied_later", 2 * PAGES / 8);
	is_owner("copied_again", PAGES / 4);
}

// Four threads touch each fourth page.
TOUCHERS(threads)
static void *even_thread(void *p)
{
	threads_early(p, 0, PAGES, 4);
	threads_early(p, 2, PAGES, 4);
	return NULL;
}

static void *odd_thread(void *p)
{
	threads_later(p, 1, PAGES, 4);
	threads_later(p, 3, PAGES, 4);
	return NULL;
}

static void threads(void)
{
	unsigned char *p = separate(PAGES, MAP_PRIVATE);
	pthread_t even, odd;

	in_steps(1);
	if (pthread_create(&even, NULL, even_thread, p) || pthread_create(&odd, NULL, odd_thread, p))
		die("pthread_create");
	pthread_join(even, NULL);
	pthread_join(odd, NULL);
	is_owner("threads_early", HALF);
	is_owner("threads_later", HALF);
	(void)threads_again;
}

// Many small mappings.
TOUCHERS(pieces)
static void pieces(void)
{
	unsigned char *p[PIECES];
	size_t pages = PAGES / PIECES;

	in_turn(1);
	for (size_t i = 0; i < PIECES; i++) {
		p[i] = separate(pages, MAP_PRIVATE);
		pieces_early(p[i], 0, pages / 2, 1);
	}
	for (size_t i = 0; i < PIECES; i++)
		pieces_later(p[i] + page_size, 0, pages / 2, 1);
	is_owner("pieces_early", HALF);
	is_owner("pieces_later", HALF);
	(void)pieces_again;
}

static void (*const patterns[])(void) = {
	shuffled, interleaved, blocks_4, blocks_64, blocks_4096, strided, reversed,
	shared, uneven, moved, refaulted, threads, pieces,
};

int main(int argc, char **argv)
{
	size_t number = sizeof(patterns) / sizeof(patterns[0]), first = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	char byte;

	page_size = sysconf(_SC_PAGESIZE);
	// Before other memory is there, which the children would share.
	copied();
	for (size_t i = 0; i < number; i++)
		patterns[(first + i) % number]();
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	while (wait(NULL) > 0)
		;
	return 0;
}
