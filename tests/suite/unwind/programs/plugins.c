/*
 * Loads two libraries alternately at the same address; their functions have frames of different
 * sizes. Compiled by tests/suite/unwind.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

#ifdef PLUGIN
/* One of the libraries: its functions call back. */
NOINLINE void INNER(void (*leaf)(void))
{
	volatile char frame[FRAME];

	frame[0] = 1;
	leaf();
	frame[FRAME - 1] = frame[0];
}

void OUTER(void (*leaf)(void))
{
	INNER(leaf);
	__asm__ volatile("" ::: "memory");
}
#else
static volatile char *buffer;

NOINLINE void plugin_leaf(void)
{
	*buffer = 1;
	buffer += 4096;
}

NOINLINE int use(const char *path, const char *name, void **at, int patient)
{
	void *library = dlopen(path, RTLD_NOW);
	void (*outer)(void (*)(void));

	if (!library)
		return 2;
	outer = (void (*)(void (*)(void)))dlsym(library, name);
	if (!outer)
		return 3;
	*at = (void *)((unsigned long)outer & ~0xfffl);
	if (patient)
		usleep(30000);
	outer(plugin_leaf);
	return dlclose(library);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "first_outer", "second_outer" };
	void *at[2] = { 0 };
	int same = 0, waits;

	if (argc < 3)
		return 4;
	/* Waits after each library is loaded, before the start, and at the end. */
	waits = argc > 3 && argv[3][0] == 'w';
	if (waits && getchar() < 0)
		return 6;
	buffer = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* One call for both: their stacks differ only in the file. */
	for (int i = 0; i < 32; i++) {
		if (use(argv[1 + i % 2], names[i % 2], &at[i % 2], argc > 3))
			return 1;
		same += at[0] == at[1];
	}
	printf("%d times at the same address\n", same);
	fflush(stdout);
	if (waits)
		while (getchar() >= 0)
			;
	return same ? 0 : 5;
}
#endif
