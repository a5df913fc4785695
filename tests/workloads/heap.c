// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A heap that changes on command, and says what glibc counts in it.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o heap heap.c
//
//   heap THREADS SEED
//
// Waits for lines on stdin; each character of a line is something that all threads do:
//   m   allocate and free at random, also aligned and large blocks
//   f   free every other block
//   a   free all blocks
//   x   end; new threads begin
//   t   malloc_trim (the main thread alone)
//   p   fork; the child waits until its parent ends (the main thread alone)
//   d   the same, but the child damages its heap first (the main thread alone)
// and answers each line with the process id and the figures of mallinfo2, as JSON; after `p` with those of the child, after
// `d` without figures.
// With -DJEMALLOC and linked with it, the figures are those of jemalloc (`stats.*`), `t` returns all free pages, and `d` damages
// what jemalloc notes of its extents.
// Between lines nothing is allocated or freed. `r` instead allocates and frees until it is killed.

#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>

#include "common.h"

enum { SLOTS = 2000, STEPS = 20000 };

struct worker {
	unsigned seed;
	void *slots[SLOTS];
	pthread_t thread;
};

static struct worker *workers;
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
		block = aligned_alloc(1 << 16, (size >> 16 << 16) + (1 << 16));
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

static void *work(void *arg)
{
	struct worker *w = arg;

	for (;;) {
		char what;

		pthread_barrier_wait(&begin);
		what = command;
		if (what == 'm')
			mix(w, STEPS);
		else if (what == 'f')
			drop(w, 2);
		else if (what == 'a')
			drop(w, 1);
		else if (what == 'r')
			mix(w, -1);
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

#ifdef JEMALLOC
int mallctl(const char *name, void *old, size_t *old_len, void *new, size_t new_len);

static size_t figure_of(const char *name, size_t len)
{
	size_t value = 0;

	if (mallctl(name, &value, &len, NULL, 0))
		die(name);
	return value;
}

static size_t figure(const char *name)
{
	return figure_of(name, sizeof(size_t));
}

static size_t allocated_in(size_t arena)
{
	char name[64];
	size_t sum = 0;

	snprintf(name, sizeof(name), "arena.%zu.initialized", arena);
	if (!figure_of(name, sizeof(bool)))
		return 0;
	for (int large = 0; large < 2; large++) {
		snprintf(name, sizeof(name), "stats.arenas.%zu.%s.allocated", arena, large ? "large" : "small");
		sum += figure(name);
	}
	return sum;
}

static void trim(void)
{
	if (mallctl("arena.4096.purge", NULL, NULL, NULL, 0))
		die("purge");
}

static void tell(void)
{
	unsigned long now = 1;

	if (mallctl("epoch", NULL, NULL, &now, sizeof(now)))
		die("epoch");
	// Before anything is printed, which allocates a buffer.
	static size_t arenas[4096];
	size_t nr = figure_of("arenas.narenas", sizeof(unsigned));
	size_t allocated = figure("stats.allocated"), cached = figure("stats.arenas.4096.tcache_bytes");
	size_t active = figure("stats.active"), resident = figure("stats.resident");
	size_t retained = figure("stats.retained");

	for (size_t i = 0; i < nr; i++)
		arenas[i] = allocated_in(i);
	printf("{\"pid\":%d,\"allocated\":%zu,\"cached\":%zu,\"active\":%zu,\"resident\":%zu,\"retained\":%zu,\"arenas\":[",
	       getpid(), allocated, cached, active, resident, retained);
	for (size_t i = 0; i < nr; i++)
		printf("%s%zu", i ? "," : "", arenas[i]);
	printf("]}\n");
}
#else
static void trim(void)
{
	malloc_trim(0);
}

static void tell(void)
{
#if __GLIBC_PREREQ(2, 33)
	struct mallinfo2 m = mallinfo2();
#else
	// The same in 32 bits.
	struct mallinfo m = mallinfo();
#endif

	printf("{\"pid\":%d,\"mallinfo2\":{\"arena\":%zu,\"ordblks\":%zu,\"smblks\":%zu,\"hblks\":%zu,\"hblkhd\":%zu,"
	       "\"fsmblks\":%zu,\"uordblks\":%zu,\"fordblks\":%zu,\"keepcost\":%zu}}\n",
	       getpid(), (size_t)m.arena, (size_t)m.ordblks, (size_t)m.smblks, (size_t)m.hblks, (size_t)m.hblkhd,
	       (size_t)m.fsmblks, (size_t)m.uordblks, (size_t)m.fordblks, (size_t)m.keepcost);
}

#endif

// A word that a heap might contain, or not.
static NOINLINE size_t any_word(unsigned *seed, size_t near)
{
	switch (rand_r(seed) % 6) {
	case 0:
		return rand_r(seed) % 4096;
	case 1:
		return near + rand_r(seed) % 65536 * 8 - (1 << 18);
	case 2:
		return near;
	case 3:
		return (size_t)rand_r(seed) << 33 | rand_r(seed);
	case 4:
		return -(size_t)(rand_r(seed) % 256);
	default:
		return 0;
	}
}

#ifdef JEMALLOC
// Overwrites words of jemalloc's own blocks, which begin with their size and know their end.
static NOINLINE void damage(unsigned *seed)
{
	size_t *blocks[64], sizes[64], nr = 0, start, end;
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], mode[5];

	if (!maps)
		die("maps");
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%zx-%zx %4s", &start, &end, mode) != 3 || strcmp(mode, "rw-p"))
			continue;
		for (size_t at = (start + (2 << 20) - 1) >> 21 << 21; at < end && nr < 64; at += 2 << 20) {
			size_t *block = (size_t *)at;

			if (block[0] && block[0] % (2 << 20) == 0 && block[3] + block[4] == at + block[0]) {
				sizes[nr] = block[3] > at ? (block[3] - at) / 8 : 1;
				blocks[nr++] = block;
			}
		}
	}
	for (int left = 1 + rand_r(seed) % 5; nr && left; ) {
		size_t i = rand_r(seed) % nr, *at = blocks[i] + rand_r(seed) % sizes[i];

		if (!*at)
			continue;
		*at = rand_r(seed) % 2 ? any_word(seed, *at) : *at ^ 1ul << rand_r(seed) % 64;
		left--;
	}
}
#else
// Overwrites headers of chunks, links of free ones, the beginning of the heap (a thread's cache) and an arena's own.
static NOINLINE void damage(unsigned *seed)
{
	size_t *first = (size_t *)workers - 2 - 0x290 / 8;
	int nr = 1 + rand_r(seed) % 20, memory = open("/proc/self/mem", O_RDWR);

	if (memory < 0)
		die("/proc/self/mem");
	for (int i = 0; i < nr; i++) {
		size_t *block = workers[rand_r(seed) % nr_workers].slots[rand_r(seed) % SLOTS];
		size_t *arena = (size_t *)((size_t)block & ~((64ul << 20) - 1)), *at = NULL;
		size_t word = any_word(seed, (size_t)block);

		if (!block)
			continue;
		switch (rand_r(seed) % 4) {
		case 0:
			at = block - 1;
			break;
		case 1:
			at = block + (block[-1] >> 3) - 2 + rand_r(seed) % 3;
			break;
		case 2:
			at = first + rand_r(seed) % 100;
			break;
		default:
			// (Blocks with mappings of their own have no arena there.)
			if (block[-1] & 4)
				at = arena + rand_r(seed) % 290;
		}
		// The size may be damaged already: not every such address is mapped.
		if (at && pwrite(memory, &word, sizeof(word), (off_t)at) != sizeof(word))
			continue;
	}
	close(memory);
}

#endif

// Waits without changing anything, and ends with its parent.
static void wait_in_child(bool damaged)
{
	unsigned seed = getpid();

	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		die("prctl");
	if (damaged) {
		damage(&seed);
		printf("{\"pid\":%d}\n", getpid());
	} else {
		tell();
	}
	for (;;)
		pause();
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
	nr_workers = atol(argv[1]);
	workers = calloc(nr_workers, sizeof(*workers));
	pthread_barrier_init(&begin, NULL, nr_workers + 1);
	pthread_barrier_init(&end, NULL, nr_workers + 1);
	for (long i = 0; i < nr_workers; i++)
		workers[i].seed = atoi(argv[2]) * 1000 + i;
	start();
	while (fgets(line, sizeof(line), stdin)) {
		bool forked = false;

		for (char *c = line; *c && *c != '\n'; c++) {
			if (*c == 't') {
				trim();
			} else if (*c == 'p' || *c == 'd') {
				forked = true;
				if (!fork())
					wait_in_child(*c == 'd');
			} else {
				run(*c);
			}
		}
		if (!forked)
			tell();
	}
	return 0;
}
