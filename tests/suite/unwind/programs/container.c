/*
 * What programs of a small container do with memory, in the first thread and in another one: by their own stores, and by
 * functions of the C library, which has no unwind information if it is musl. Answers `ok` to each line. Compiled with -DLIBRARY it is a library that does
 * all this, and with -DPROGRAM a program that uses the library.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define SIZE (1 << 20)
#define PAGE 4096

#ifdef PROGRAM
void everything(void);
void *thread_start(void *arg);
#else
static volatile size_t page = PAGE;

/* What was written there may be read, and the call of this function's caller is no jump. */
static inline void use(void *p)
{
	__asm__ volatile("" ::"r"(p) : "memory");
}

NOINLINE void by_hand(void)
{
	volatile char *p = malloc(SIZE);

	for (int i = 0; i < SIZE; i += PAGE)
		p[i] = 1;
}

NOINLINE void by_memset(void)
{
	char *p = malloc(SIZE);

	memset(p, 1, SIZE);
	use(p);
}

NOINLINE void by_memcpy(void)
{
	static char from[PAGE];
	char *p = malloc(SIZE);

	for (int i = 0; i < SIZE; i += PAGE)
		memcpy(p + i, from, page);
	use(p);
}

/* Each block has a head, which the allocator writes. */
NOINLINE void by_malloc(void)
{
	for (int i = 0; i < SIZE / 512; i++)
		use(malloc(500));
}

NOINLINE void by_read(void)
{
	int fd = open("/dev/zero", O_RDONLY);
	char *p = malloc(SIZE);

	if (read(fd, p, SIZE) != SIZE)
		_exit(3);
	close(fd);
	use(p);
}

NOINLINE void by_print(void)
{
	char *text;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	for (int i = 0; i < SIZE / 16; i++)
		fprintf(file, "%015d\n", i);
	fclose(file);
	use(text);
}

static char *pages;
static int used;

NOINLINE int compare(const void *a, const void *b)
{
	if (used < SIZE / PAGE)
		pages[PAGE * used++] = 1;
	return *(const int *)a - *(const int *)b;
}

NOINLINE void by_qsort(void)
{
	int values[1000];

	for (int i = 0; i < 1000; i++)
		values[i] = i * 7919 % 1000;
	used = 0;
	pages = malloc(SIZE);
	qsort(values, 1000, sizeof(int), compare);
	use(values);
}

NOINLINE void everything(void)
{
	by_hand();
	by_memset();
	by_memcpy();
	by_malloc();
	by_read();
	by_print();
	by_qsort();
	use(pages);
}

NOINLINE void *thread_start(void *arg)
{
	everything();
	use(arg);
	return arg;
}
#endif

#ifndef LIBRARY
int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		pthread_t thread;

		everything();
		pthread_create(&thread, NULL, thread_start, NULL);
		pthread_join(thread, NULL);
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
#endif
