// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A heap of another allocator than glibc's that changes on command, and says what is in use in it.
//
// Build, with one of -DMIMALLOC, -DTCMALLOC and -DMUSL, linked with that allocator:
//   cc -O1 -g -pthread -o spans spans.c
//
// -DALIGN=BYTES aligns some blocks more than to 64 KiB.
//
//   spans THREADS SEED
//
// Waits for lines on stdin; each character of a line is something that all threads do:
//   m   allocate and free at random, also aligned and large blocks
//   f   free every other block
//   h   free every other block of the next thread
//   a   free all blocks
//   x   end; new threads begin
//   g   one block of 40 MiB each (it stays)
//   v   have the allocator itself count what is in use, which may tidy its lists up
//   d   damage words in and around blocks (a forked child, which answers instead and waits until its parent ends)
// and answers each line with the process id, the number and usable bytes of all blocks of this program, and after `v` with
// the allocator's own figures, as JSON. Between lines nothing is allocated or freed. `r` instead allocates and frees until it
// is killed.

#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>

#include "common.h"

enum { SLOTS = 2000, STEPS = 20000 };
// Alignment of some blocks.
#ifndef ALIGN
#define ALIGN (1 << 16)
#endif

struct worker {
	unsigned seed;
	void *slots[SLOTS], *giant;
	pthread_t thread;
	size_t blocks, bytes;
};

// (In the data of the program, so that it is not in the heap.)
static struct worker workers[64];
static long nr_workers;
static char command;
static pthread_barrier_t begin, end;

static NOINLINE void *take(unsigned *seed)
{
	unsigned kind = rand_r(seed) % 200;
	size_t size = rand_r(seed);
	void *block;

	if (kind < 170)
		size %= 600;
	else if (kind < 196)
		size %= 20000;
	else
		size %= 600000;
	if (kind % 50 == 7)
		block = aligned_alloc(64, size / 64 * 64 + 64);
	else if (kind == 199)
		block = aligned_alloc(4096, size / 4096 * 4096 + 4096);
	else if (kind == 198)
		block = aligned_alloc(ALIGN, size / ALIGN * ALIGN + ALIGN);
	else
		block = malloc(size);
	if (!block)
		die("malloc");
	if (kind % 2)
		memset(block, 0xa5, size / 2);
	return block;
}

static NOINLINE void mix(struct worker *w, long steps)
{
	for (long i = 0; i != steps; i++) {
		void **slot = &w->slots[rand_r(&w->seed) % SLOTS];

		free(*slot);
		*slot = rand_r(&w->seed) % 4 ? take(&w->seed) : NULL;
	}
}

static NOINLINE void drop(struct worker *w, int step)
{
	for (int i = 0; i < SLOTS; i += step) {
		free(w->slots[i]);
		w->slots[i] = NULL;
	}
}

#ifdef MIMALLOC
struct area {
	void *blocks;
	size_t reserved, committed, used, block_size, full_block_size;
};
typedef bool visitor(const void *heap, const struct area *area, void *block, size_t size, void *arg);
bool mi_heap_visit_blocks(const void *heap, bool all, visitor *visit, void *arg);
#define WEAK __attribute__((weak))
// Up to 3.1, a heap belongs to a thread; from 3.2 on, it has a part for each thread.
WEAK void *mi_heap_get_default(void);
WEAK void *mi_theap_get_default(void);
WEAK bool mi_theap_visit_blocks(const void *heap, bool all, visitor *visit, void *arg);
WEAK bool mi_heap_visit_abandoned_blocks(const void *heap, bool all, visitor *visit, void *arg);
WEAK bool mi_abandoned_visit_blocks(void *subprocess, int tag, bool all, visitor *visit, void *arg);
WEAK void *mi_heap_main(void);
int mi_version(void);

// The visited blocks, some of which belong to two of what is visited. (Their addresses are not to be found here.)
static struct visited {
	size_t block, size;
} table[1 << 17];

static bool visit(const void *heap, const struct area *area, void *block, size_t size, void *arg)
{
	size_t key = ~(size_t)block, slot = (size_t)block / 8 * 0x9e3779b97f4a7c15 >> 47;

	(void)heap;
	(void)size;
	(void)arg;
	if (!block)
		return true;
	for (;; slot = (slot + 1) % (1 << 17)) {
		size_t found = 0;

		if (__atomic_compare_exchange_n(&table[slot].block, &found, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			table[slot].size = area->full_block_size;
		if (!found || found == key)
			return true;
	}
}

// Each thread visits its own heap. (False for the heap of a thread that never allocated.)
static NOINLINE void count(struct worker *w)
{
	(void)w;
	if (mi_theap_visit_blocks)
		mi_theap_visit_blocks(mi_theap_get_default(), true, visit, NULL);
	else
		mi_heap_visit_blocks(mi_heap_get_default(), true, visit, NULL);
}

static void figures(void)
{
	size_t blocks = 0, bytes = 0;

	count(NULL);
	if (mi_heap_main) {
		mi_heap_visit_blocks(mi_heap_main(), true, visit, NULL);
		mi_heap_visit_abandoned_blocks(mi_heap_main(), true, visit, NULL);
	} else if (mi_version() / 100 == 3 || mi_version() / 10 == 301) {
		mi_abandoned_visit_blocks(NULL, 0, true, visit, NULL);
	}
	for (size_t i = 0; i < 1 << 17; i++) {
		blocks += table[i].block != 0;
		bytes += table[i].size;
	}
	memset(table, 0, sizeof(table));
	printf(",\"own\":{\"blocks\":%zu,\"bytes\":%zu}", blocks, bytes);
}
#else
static void count(struct worker *w)
{
	(void)w;
}
#ifdef TCMALLOC
int MallocExtension_GetNumericProperty(const char *property, size_t *value);

static size_t property(const char *name)
{
	size_t value = 0;

	if (!MallocExtension_GetNumericProperty(name, &value))
		die(name);
	return value;
}

static void figures(void)
{
	size_t allocated = property("generic.current_allocated_bytes"), heap = property("generic.heap_size");
	size_t thread = property("tcmalloc.current_total_thread_cache_bytes");
	size_t central = property("tcmalloc.central_cache_free_bytes");
	size_t transfer = property("tcmalloc.transfer_cache_free_bytes");
	size_t pages = property("tcmalloc.pageheap_free_bytes"), unmapped = property("tcmalloc.pageheap_unmapped_bytes");

	printf(",\"own\":{\"bytes\":%zu,\"heap\":%zu,\"thread\":%zu,\"central\":%zu,\"transfer\":%zu,\"pages\":%zu,\"unmapped\":%zu}",
	       allocated, heap, thread, central, transfer, pages, unmapped);
}
#else
// What malloc_usable_size() reads of each block's slot and group, but for the number of bytes asked for.
static size_t slot_of(const unsigned char *block)
{
	static const unsigned short units[] = {
		1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127,
		146, 170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047,
		2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
	};
	size_t offset = *(const unsigned short *)(block - 2), *group, bits;

	if (block[-4])
		offset = *(const unsigned *)(block - 8);
	group = (size_t *)(block - 16 * offset - 16);
	bits = ((size_t *)*group)[4];
	if (!(bits & 31) && bits >> 12)
		return (bits >> 12) * 4096 - 16;
	return 16 * units[bits >> 6 & 63];
}

static void figures(void)
{
	size_t blocks = 0, bytes = 0;

	for (long i = 0; i < nr_workers; i++) {
		for (long slot = 0; slot <= SLOTS; slot++) {
			void *block = slot == SLOTS ? workers[i].giant : workers[i].slots[slot];

			if (block) {
				blocks++;
				bytes += slot_of(block);
			}
		}
	}
	printf(",\"own\":{\"blocks\":%zu,\"bytes\":%zu}", blocks, bytes);
}
#endif
#endif

static void *work(void *arg)
{
	struct worker *w = arg, *next = w + 1 == workers + nr_workers ? workers : w + 1;

	for (;;) {
		char what;

		pthread_barrier_wait(&begin);
		what = command;
		if (what == 'm')
			mix(w, STEPS);
		else if (what == 'f')
			drop(w, 2);
		else if (what == 'h')
			drop(next, 3);
		else if (what == 'a')
			drop(w, 1);
		else if (what == 'v')
			count(w);
		else if (what == 'r')
			mix(w, -1);
		else if (what == 'g' && !w->giant) {
			w->giant = malloc(40 << 20);
			if (!w->giant)
				die("malloc");
			memset(w->giant, 1, 100000);
		}
		if (what == 'x')
			return NULL;
		pthread_barrier_wait(&end);
	}
}

static void start(void)
{
	for (long i = 0; i < nr_workers; i++)
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			die("pthread_create");
}

static void run(char what)
{
	command = what;
	pthread_barrier_wait(&begin);
	if (what == 'x') {
		for (long i = 0; i < nr_workers; i++)
			if (pthread_join(workers[i].thread, NULL))
				die("pthread_join");
		start();
		return;
	}
	pthread_barrier_wait(&end);
}

static void tell(bool visited)
{
	size_t blocks = 0, bytes = 0;

	for (long i = 0; i < nr_workers; i++) {
		for (long slot = 0; slot < SLOTS; slot++) {
			blocks += workers[i].slots[slot] != NULL;
			bytes += malloc_usable_size(workers[i].slots[slot]);
		}
		blocks += workers[i].giant != NULL;
		bytes += malloc_usable_size(workers[i].giant);
	}
	printf("{\"pid\":%d,\"blocks\":%zu,\"bytes\":%zu", getpid(), blocks, bytes);
	if (visited)
		figures();
	printf("}\n");
}

// Overwrites words in and in front of blocks, and at the beginnings of their pages of several sizes, where descriptions may be.
static NOINLINE void damage(unsigned seed)
{
	int memory = open("/proc/self/mem", O_RDWR);

	if (memory < 0)
		die("/proc/self/mem");
	for (int left = 1 + rand_r(&seed) % 5; left; left--) {
		size_t *block = workers[rand_r(&seed) % nr_workers].slots[rand_r(&seed) % SLOTS];
		size_t unit = (size_t[]){ 16, 4096, 65536, 32 << 20 }[rand_r(&seed) % 4];
		size_t *at = (size_t *)((size_t)block / unit * unit) + rand_r(&seed) % (unit > 4096 ? 512 : 4);

		size_t word;

		// (Not every such address is mapped.)
		if (!block || pread(memory, &word, sizeof(word), (off_t)at) != sizeof(word))
			continue;
		word = rand_r(&seed) % 2 ? word ^ 1ul << rand_r(&seed) % 64 : (size_t)block + rand_r(&seed) % 65536;
		if (pwrite(memory, &word, sizeof(word), (off_t)at) != sizeof(word))
			continue;
	}
	close(memory);
}

int main(int argc, char **argv)
{
	static char in[4096], out[4096];
	char line[256];

	if (argc != 3)
		return 2;
	// stdio allocates nothing then.
	setvbuf(stdin, in, _IOFBF, sizeof(in));
	setvbuf(stdout, out, _IOLBF, sizeof(out));
	// The kernel would turn pages into huge ones at any time, which adds memory to a process at rest.
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	nr_workers = atol(argv[1]);
	if (nr_workers < 1 || nr_workers > 60)
		return 2;
	pthread_barrier_init(&begin, NULL, nr_workers + 1);
	pthread_barrier_init(&end, NULL, nr_workers + 1);
	for (long i = 0; i < nr_workers; i++)
		workers[i].seed = atoi(argv[2]) * 1000 + i;
	start();
	while (fgets(line, sizeof(line), stdin)) {
		bool visited = false, forked = false;

		for (char *c = line; *c && *c != '\n'; c++) {
			if (*c == 'd') {
				forked = true;
				if (!fork()) {
					prctl(PR_SET_PDEATHSIG, SIGKILL);
					damage(getpid());
					printf("{\"pid\":%d,\"blocks\":0,\"bytes\":0}\n", getpid());
					for (;;)
						pause();
				}
			} else {
				run(*c);
				visited |= *c == 'v';
			}
		}
		if (!forked)
			tell(visited);
	}
	return 0;
}
