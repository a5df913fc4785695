// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Blocks of memory that it forgets, and others that it keeps in every way there is.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o leaks leaks.c
//
//   leaks
//
// Prints the blocks that it forgot, as JSON: their number, the bytes that were asked for, and the number of those that no
// other forgotten block refers to: {"blocks":4020,"bytes":612000,"heads":3011}. Then it waits for the end of stdin.
// Forgotten are: 3,000 single blocks, ten lists of 100 blocks, a ring of 10, and 10 large blocks.
// Kept are: blocks in variables, on the stacks and in thread-local variables of four threads, in a list, by addresses
// into their middle, and in memory that is mapped.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>

#include "common.h"

enum { SINGLE = 3000, LISTS = 10, LENGTH = 100, RING = 10, LARGE = 10, KEPT = 500, THREADS = 4 };

struct node {
	struct node *next;
	char text[100];
};

static struct {
	unsigned long blocks, bytes, heads;
} forgotten;
// (Volatile: they are only written.)
static void *volatile kept[KEPT];
static struct node *volatile list;
static __thread void *volatile own;
static pthread_barrier_t ready;

static NOINLINE void *take(size_t size)
{
	void *block = malloc(size);

	if (!block)
		die("malloc");
	memset(block, 0, size);
	return block;
}

static NOINLINE struct node *chain(int length, struct node *end)
{
	struct node *first = end;

	for (int i = 0; i < length; i++) {
		struct node *node = take(sizeof(*node));

		node->next = first;
		first = node;
	}
	return first;
}

static NOINLINE void forget(void)
{
	for (int i = 0; i < SINGLE; i++) {
		size_t size = 24 + i % 500;

		// The addresses are not kept.
		((volatile char *)take(size))[0] = 1;
		forgotten.bytes += size;
	}
	for (int i = 0; i < LISTS; i++)
		((volatile struct node *)chain(LENGTH, NULL))->text[0] = 1;
	struct node *last = take(sizeof(*last));
	last->next = chain(RING - 1, last);
	for (int i = 0; i < LARGE; i++) {
		((volatile char *)take(1 << 20))[0] = 1;
		forgotten.bytes += 1 << 20;
	}
	forgotten.bytes += (LISTS * LENGTH + RING) * sizeof(struct node);
	forgotten.blocks = SINGLE + LISTS * LENGTH + RING + LARGE;
	forgotten.heads = SINGLE + LISTS + 1 + LARGE;
}

static NOINLINE void *hold(void *arg)
{
	void *volatile local = take(300);

	own = take(400);
	if (arg) {
		pthread_barrier_wait(&ready);
		for (;;)
			pause();
	}
	return local;
}

int main(void)
{
	static char out[4096];
	pthread_t thread;
	void *volatile *mapped;
	int c;

	page_size = sysconf(_SC_PAGESIZE);
	setvbuf(stdout, out, _IOLBF, sizeof(out));
	setvbuf(stdin, NULL, _IONBF, 0);
	pthread_barrier_init(&ready, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, NULL, hold, main))
			die("pthread_create");
	pthread_barrier_wait(&ready);
	for (int i = 0; i < KEPT; i++)
		kept[i] = (char *)take(200 + i) + i % 100;
	list = chain(1000, NULL);
	mapped = (void *volatile *)map_memory(page_size);
	for (int i = 0; i < 100; i++)
		mapped[i] = take(50);
	forget();
	clean_stack();
	printf("{\"blocks\":%lu,\"bytes\":%lu,\"heads\":%lu}\n", forgotten.blocks, forgotten.bytes, forgotten.heads);
	while ((c = getchar()) != EOF)
		;
	return 0;
}
