/*
 * Calls its own functions at random, and touches pages under ever new stacks that share their outer
 * frames with the previous one. It writes the call chain of each page to a file, one line per page, outermost
 * function first. Compiled by tests/suite/unwind with -O2 -fomit-frame-pointer.
 *
 *   wander FILE SEED PAGES
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define THREADS 2
#define DEEPEST 40
#define STACK (1 << 20)
#define NOINLINE __attribute__((noinline, noclone))
#define KEEP(x) __asm__ volatile("" : "+r"(x) : : "memory")

/* The path of one thread; all of it is touched before the start. */
struct way {
	uint64_t random;
	volatile char *buffer;
	unsigned pages, wanted, depth;
	unsigned char path[DEEPEST];
	unsigned char (*log)[DEEPEST + 1]; /* of each page: how deep, and the path */
};

static __thread struct way *way;
static char other_stacks[THREADS][STACK];

static unsigned dice(unsigned sides)
{
	way->random = way->random * 6364136223846793005u + 1442695040888963407u;
	return (way->random >> 33) % sides;
}

static inline __attribute__((always_inline)) void touch(void)
{
	unsigned page = way->pages;

	if (page == way->wanted)
		return;
	way->log[page][0] = way->depth;
	memcpy(&way->log[page][1], way->path, DEEPEST);
	way->pages = page + 1;
	way->buffer[(size_t)page * PAGE] = 1;
}

static void call(void);

/* The body of each function: touches some pages, makes some calls, and returns. */
static inline __attribute__((always_inline)) void stay(unsigned index)
{
	if (way->depth == DEEPEST)
		return;
	way->path[way->depth++] = index;
	while (way->pages < way->wanted && dice(30) >= way->depth / 2) {
		if (dice(3))
			touch();
		if (dice(3))
			call();
	}
	way->depth--;
}

/* Two identical functions: only the return address differs. */
static NOINLINE void wander_0(void) { stay(0); }
static NOINLINE void wander_1(void) { stay(1); }

/* A frame of unknown size. */
static NOINLINE void wander_2(void)
{
	char *p = alloca(dice(8) * 256 + 16);

	KEEP(p);
	stay(2);
	KEEP(p);
}

/* A realigned stack. */
static NOINLINE void wander_3(void)
{
	char block[64] __attribute__((aligned(64)));
	char *p = block;

	KEEP(p);
	stay(3);
	KEEP(p);
}

/* Callee-saved registers, with other values at every call. */
static NOINLINE void wander_4(void)
{
	uint64_t a = dice(100), b = dice(100), c = dice(100), d = dice(100);

	for (unsigned n = dice(3) + 1; n; n--) {
		KEEP(a);
		KEEP(b);
		KEEP(c);
		KEEP(d);
		stay(4);
		a++, b += a, c ^= b, d += n;
	}
	KEEP(a);
	KEEP(b);
	KEEP(c);
	KEEP(d);
}

/* Two calls of one function: the same path, two return addresses. */
static NOINLINE void wander_5(void)
{
	if (dice(2))
		stay(5);
	else
		stay(5);
}

/* A callback from libc. */
static int wander_compare(const void *a, const void *b)
{
	stay(7);
	return *(const int *)a - *(const int *)b;
}

static NOINLINE void wander_6(void)
{
	int numbers[2] = { 2, 1 };

	way->path[way->depth] = 6;
	if (way->depth + 2 > DEEPEST)
		return;
	way->depth++;
	qsort(numbers, 2, sizeof(*numbers), wander_compare);
	way->depth--;
}

/* A signal handler on another stack. */
static void wander_handler(int signal)
{
	(void)signal;
	stay(9);
}

static NOINLINE void wander_8(void)
{
	if (way->depth + 2 > DEEPEST)
		return;
	way->path[way->depth++] = 8;
	pthread_kill(pthread_self(), SIGUSR1);
	way->depth--;
}

static NOINLINE void call(void)
{
	static void (*const all[])(void) = { wander_0, wander_1, wander_2, wander_3, wander_4,
					     wander_5, wander_0, wander_1, wander_6 };

	/* Signals are rare, because they nest. */
	if (dice(40))
		all[dice(sizeof(all) / sizeof(*all))]();
	else
		wander_8();
	__asm__ volatile("" ::: "memory");
}

static const char *const names[] = { "wander_0", "wander_1", "wander_2", "wander_3", "wander_4",
				     "wander_5", "wander_6", "wander_compare", "wander_8", "wander_handler" };

static void *fresh(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || madvise(p, size, MADV_NOHUGEPAGE))
		_exit(3);
	return p;
}

static NOINLINE void touch_stack(void)
{
	char *p = alloca(STACK / 2);

	memset(p, 1, STACK / 2);
	KEEP(p);
}

/* The whole path once in advance, so that all other pages have been touched. */
static NOINLINE void rehearse(void)
{
	while (way->pages < way->wanted)
		call();
	memset((void *)way->log, 0, (size_t)way->wanted * (DEEPEST + 1));
	way->pages = way->depth = 0;
	way->buffer += (size_t)way->wanted * PAGE;
}

static void *begin(void *argument)
{
	struct way *mine = argument;
	static int next;
	stack_t other = { .ss_size = STACK };

	way = mine;
	other.ss_sp = other_stacks[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)];
	memset(other.ss_sp, 0, STACK);
	touch_stack();
	if (sigaltstack(&other, NULL))
		_exit(3);
	rehearse();
	while (way->pages < way->wanted)
		call();
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = wander_handler, .sa_flags = SA_NODEFER | SA_ONSTACK };
	unsigned pages = argc > 3 ? strtoul(argv[3], NULL, 10) : 4096;
	struct way ways[THREADS];
	pthread_t thread[THREADS];
	FILE *out;

	if (argc < 3 || !(out = fopen(argv[1], "w")) || sigaction(SIGUSR1, &action, NULL))
		return 2;
	for (int n = 0; n < THREADS; n++) {
		size_t log = (size_t)pages * (DEEPEST + 1);

		ways[n] = (struct way){ .random = strtoul(argv[2], NULL, 10) + n, .wanted = pages };
		ways[n].buffer = fresh((size_t)pages * PAGE * 2);
		ways[n].log = fresh(log);
		memset(ways[n].log, 0, log);
	}
	for (int n = 0; n < THREADS; n++)
		if (pthread_create(&thread[n], NULL, begin, &ways[n]))
			return 3;
	for (int n = 0; n < THREADS; n++)
		pthread_join(thread[n], NULL);
	for (int n = 0; n < THREADS; n++)
		for (unsigned page = 0; page < pages; page++) {
			for (int i = 0; i < ways[n].log[page][0]; i++)
				fprintf(out, "%s%s", i ? ";" : "", names[ways[n].log[page][1 + i]]);
			fputc('\n', out);
		}
	return fclose(out) ? 3 : 0;
}
