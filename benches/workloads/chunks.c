// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A heap of many small chunks and a few large ones, all of which one pointer leads to.
//
// `chunks --mib N` allocates chunks of 16 to 1024 bytes, small ones more often than large ones, and one in 16,384 of 64 KiB to
// 1 MiB, until they add up to N MiB; it frees one in eight of them. `--small` has chunks of 24 bytes only, and frees
// none. A third of the chunks are text. The others begin with three pointers, behind which are numbers or zeroes: they
// form a tree of random shape.
//
// It builds the heap when it reads a line, prints `heap_mib X chunks N`, and ends at the end of its input.

#define _GNU_SOURCE
#include <malloc.h>
#include <sys/mman.h>

#include "workload.h"

struct node {
	struct node *child, *sibling;
	char *text;
};

struct node *root;

static uint64_t random_state = 88172645463325252u;

static uint64_t below(uint64_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % limit;
}

static size_t next_size(int small)
{
	if (small)
		return 24;
	if (below(16384) == 0)
		return (64 << 10) + below((1 << 20) - (64 << 10));
	// Each doubling of size is as likely as the next one.
	size_t doubling = (size_t)16 << below(6);
	return doubling + below(doubling + 1);
}

static void fill_text(char *at, size_t size)
{
	memset(at, 'a' + (int)below(26), size - 1);
	at[size - 1] = 0;
}

static void fill_numbers(char *at, size_t size)
{
	int zero = below(2) == 0;

	for (; size >= 8; at += 8, size -= 8)
		memcpy(at, &(uint64_t){zero ? 0 : below(1u << 30)}, 8);
}

int main(int argc, char **argv)
{
	unsigned long mib = 0;
	int small = 0;
	const struct option options[] = {
		{.name = "--mib", .number = &mib},
		{.name = "--small", .flag = &small},
		{0},
	};

	read_options(argc, argv, 1, options, "chunks --mib N [--small]");
	wait_for_line();
	size_t wanted = mib << 20, bytes = 0, made = 0, kept = 0, chunks = 0;
	// What leads to every chunk directly goes before the heap is looked at.
	size_t most = wanted / 32 + 1;
	struct node **all = mmap(NULL, most * sizeof(*all), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void **later = mmap(NULL, most * sizeof(*later), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t freed = 0;

	if (all == MAP_FAILED || later == MAP_FAILED)
		die("mmap");
	while (bytes < wanted && made < most) {
		size_t size = next_size(small);
		struct node *node = malloc(size < sizeof(*node) ? sizeof(*node) : size);

		if (!node)
			die("malloc");
		bytes += malloc_usable_size(node) + 8;
		made++;
		if (!small && below(8) == 0) {
			fill_text((char *)node, size);
			later[freed++] = node;
			continue;
		}
		chunks++;
		if (kept && !all[kept - 1]->text && below(2)) {
			all[kept - 1]->text = (char *)node;
			fill_text((char *)node, size);
			continue;
		}
		memset(node, 0, sizeof(*node));
		if (size > sizeof(*node))
			fill_numbers((char *)(node + 1), size - sizeof(*node));
		if (kept == 0) {
			root = node;
		} else {
			struct node *parent = all[below(kept)];

			node->sibling = parent->child;
			parent->child = node;
		}
		all[kept++] = node;
	}
	for (size_t i = 0; i < freed; i++)
		free(later[i]);
	munmap(all, most * sizeof(*all));
	munmap(later, most * sizeof(*later));
	struct mallinfo2 info = mallinfo2();

	printf("heap_mib %.1f chunks %zu\n", (double)(info.arena + info.hblkhd) / (1 << 20), chunks);
	fflush(stdout);
	wait_for_end();
	return 0;
}
