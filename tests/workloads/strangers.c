/*
 * A library for interpreted programs: a busy thread that the interpreter does not know, and memory that the calling thread
 * touches.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, PER_ROUND = 64 };

void touch(int pages)
{
	char *memory = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || madvise(memory, (size_t)pages * PAGE, MADV_NOHUGEPAGE))
		abort();
	for (int i = 0; i < pages; i++)
		((volatile char *)memory)[(size_t)i * PAGE] = 1;
}

static void *stranger(void *memory)
{
	const struct timespec wait = { .tv_nsec = 10000000 };

	for (;;) {
		for (int i = 0; i < PER_ROUND; i++)
			((volatile char *)memory)[(size_t)i * PAGE] = 1;
		madvise(memory, PER_ROUND * PAGE, MADV_DONTNEED);
		nanosleep(&wait, NULL);
	}
	return NULL;
}

void start_stranger(void)
{
	void *memory = mmap(NULL, PER_ROUND * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	if (memory == MAP_FAILED || pthread_create(&thread, NULL, stranger, memory))
		abort();
}
