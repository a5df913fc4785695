// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Prints what the allocation functions return and set, and nothing that differs between two runs: the output is the
// same with the sampler preloaded and without.
//
//   sampler_behaviour [MODE]
//
// MODE twice frees a block twice. MODE hold allocates as many blocks as each line of stdin says, and frees them if it
// says 0; it answers with a line.

#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIG (64u << 20)

static int errors(int e)
{
	return e == ENOMEM ? -1 : e == EINVAL ? -2 : e == ENOSYS ? -3 : e;
}

#define SHOW(call) \
	do { \
		errno = 77; \
		void *ptr = (call); \
		printf("%s: %s, errno %d\n", #call, ptr ? "block" : "NULL", errors(errno)); \
		errno = 77; \
		free(ptr); \
		printf("  free: errno %d\n", errors(errno)); \
	} while (0)

static int aligned_to(const void *ptr, size_t align)
{
	return (uintptr_t)ptr % align == 0;
}

static void sizes(void)
{
	volatile size_t huge = SIZE_MAX, half = SIZE_MAX / 2, zero = 0, one = 1;

	SHOW(malloc(zero));
	SHOW(malloc(one));
	SHOW(malloc(BIG));
	SHOW(malloc(half));
	SHOW(malloc(huge));
	SHOW(calloc(zero, one));
	SHOW(calloc(half, 4));
	SHOW(calloc(huge, one));
	SHOW(calloc(one, BIG));
	SHOW(realloc(NULL, one));
	SHOW(realloc(NULL, huge));
	SHOW(reallocarray(NULL, half, 4));
	SHOW(reallocarray(NULL, 3, 5));
	SHOW(aligned_alloc(64, 640));
	SHOW(aligned_alloc(64, huge));
	SHOW(memalign(4096, one));
	SHOW(memalign(4096, huge));
	SHOW(valloc(one));
#ifdef __GLIBC__
	SHOW(pvalloc(one));
	SHOW(pvalloc(huge));
#endif
	SHOW(NULL);
}

static void alignments(void)
{
	for (size_t align = sizeof(void *); align <= 1 << 16; align *= 2) {
		void *a = aligned_alloc(align, align * 3), *b = memalign(align, 5), *c = (void *)1;
		int error = posix_memalign(&c, align, 100);
		printf("alignment %zu: %d %d %d %d\n", align, aligned_to(a, align), aligned_to(b, align), error,
		       aligned_to(c, align));
		free(a), free(b), free(c);
	}
	volatile size_t huge = SIZE_MAX, odd = 24;
	void *untouched = (void *)1;
	errno = 77;
	int first = posix_memalign(&untouched, odd, 100);
	int second = posix_memalign(&untouched, 64, huge);
	printf("posix_memalign: %d %d, errno %d, pointer %s\n", errors(first), errors(second), errors(errno),
	       untouched == (void *)1 ? "untouched" : "changed");
	void *page = valloc(10);
	printf("valloc: %d\n", aligned_to(page, (size_t)getpagesize()));
	free(page);
}

static void contents(void)
{
	volatile size_t huge = SIZE_MAX / 2;
	// Volatile: the compiler takes a block that could not be resized for freed.
	unsigned char *volatile ptr = malloc(1000);
	memset(ptr, 0xa5, 1000);
	errno = 77;
	void *none = realloc(ptr, huge);
	printf("realloc that fails: %s, errno %d", none ? "block" : "NULL", errors(errno));
	size_t same = 0;
	for (size_t n = 0; n < 1000; n++)
		same += ptr[n] == 0xa5;
	printf(", %zu bytes as before\n", same);
	for (size_t size = 1000; size < BIG; size *= 4) {
		ptr = realloc(ptr, size);
		for (same = 0; same < 1000 && ptr[same] == 0xa5; same++) {
		}
		printf("realloc to %zu: %zu bytes as before, usable %d\n", size, same, malloc_usable_size(ptr) >= size);
	}
	ptr = realloc(ptr, 10);
	printf("realloc to 10: %d\n", ptr[9]);
	errno = 77;
	none = realloc(ptr, 0);
	printf("realloc to 0: %s, errno %d\n", none ? "block" : "NULL", errors(errno));
	free(none);

	size_t zeros = 0;
	for (int round = 0; round < 100; round++) {
		unsigned char *cleared = calloc(10, 100);
		for (size_t n = 0; n < 1000; n++)
			zeros += cleared[n] == 0;
		memset(cleared, 1, 1000);
		free(cleared);
	}
	printf("calloc: %zu zeros\n", zeros);
}

// Allocations do not change how the program calculates, nor what it reads of its calculations.
static void arithmetic(void)
{
	fesetround(FE_UPWARD);
	feclearexcept(FE_ALL_EXCEPT);
	for (int n = 0; n < 1000; n++)
		free(malloc(100000));
	printf("rounding %d, exceptions %d\n", fegetround() == FE_UPWARD, fetestexcept(FE_ALL_EXCEPT));
#ifdef __GLIBC__
	feenableexcept(FE_INEXACT | FE_DIVBYZERO | FE_INVALID);
	for (int n = 0; n < 1000; n++)
		free(malloc(100000));
	fedisableexcept(FE_ALL_EXCEPT);
#endif
	fesetround(FE_TONEAREST);
}

static void *in_thread(void *unused)
{
	(void)unused;
	for (int n = 0; n < 1000; n++)
		free(realloc(malloc(1000), 5000));
	return malloc(10000);
}

static void processes(void)
{
	pid_t child = fork();
	if (child == 0) {
		for (int n = 0; n < 1000; n++)
			free(malloc(5000));
		_exit(3);
	}
	int status = 0;
	waitpid(child, &status, 0);
	printf("fork: %d\n", WEXITSTATUS(status));
	child = vfork();
	if (child == 0)
		_exit(4);
	waitpid(child, &status, 0);
	printf("vfork: %d\n", WEXITSTATUS(status));
	fflush(stdout);
	printf("system: %d\n", WEXITSTATUS(system("exit 5")));

	pthread_t threads[8];
	for (int t = 0; t < 8; t++)
		pthread_create(&threads[t], NULL, in_thread, NULL);
	for (int t = 0; t < 8; t++) {
		void *block = NULL;
		pthread_join(threads[t], &block);
		free(block);
	}
}

// The library has jemalloc's functions also without jemalloc: they do what they say by those of the C library.
__attribute__((weak)) void *mallocx(size_t, int), *rallocx(void *, size_t, int);
__attribute__((weak)) void dallocx(void *, int), sdallocx(void *, size_t, int);
__attribute__((weak)) size_t xallocx(void *, size_t, size_t, int);

static void jemallocs(void)
{
	enum { ALIGN_4096 = 12, ZERO = 0x40 };

	if (!mallocx)
		return;
	char *ptr = mallocx(100, ALIGN_4096 | ZERO), none[100] = {0};
	if ((uintptr_t)ptr % 4096 || memcmp(ptr, none, 100))
		puts("mallocx: neither aligned nor zero");
	strcpy(ptr, "contents");
	// What it cannot do changes nothing.
	size_t usable = xallocx(ptr, 100000, 1000, 0);
	if (usable < 100 || usable >= 100000 || usable != malloc_usable_size(ptr) || rallocx(ptr, 100000, ZERO))
		puts("xallocx: another size");
	ptr = rallocx(ptr, 100000, 0);
	if (strcmp(ptr, "contents"))
		puts("rallocx: other contents");
	sdallocx(ptr, 100000, 0);
	dallocx(mallocx(1, 0), 0);
}

static void without_memory(void)
{
	struct rlimit limit = {BIG * 2ul, BIG * 2ul};
	setrlimit(RLIMIT_AS, &limit);
	errno = 77;
	void *ptr = malloc(BIG * 3ul);
	printf("without memory: %s, errno %d\n", ptr ? "block" : "NULL", errors(errno));
}

static void hold(void)
{
	static void *blocks[1 << 20];
	static char in[100], out[100];
	size_t count = 0;

	setvbuf(stdin, in, _IOFBF, sizeof in);
	setvbuf(stdout, out, _IOLBF, sizeof out);
	for (char line[20]; fgets(line, sizeof line, stdin); puts("ok")) {
		size_t wanted = strtoul(line, NULL, 10);
		for (; count < wanted; count++)
			blocks[count] = malloc(1000);
		// So many that the address 0 looks like a sample's to the first check.
		free(NULL);
		free(realloc(NULL, 10));
		for (; wanted == 0 && count > 0; count--)
			free(blocks[count - 1]);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "hold") == 0) {
		hold();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "twice") == 0) {
		void *volatile ptr = malloc(100000);
		free(ptr);
		free(ptr);
		puts("not noticed");
		return 0;
	}
	sizes();
	alignments();
	contents();
	arithmetic();
	processes();
	jemallocs();
	without_memory();
	return 0;
}
