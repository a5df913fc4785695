/*
 * Inlined functions that bring memory in, for tests of debug information in several files. Answers `ok` to each line.
 */
#include <stdio.h>

static inline __attribute__((always_inline)) void inner(volatile char *p, size_t n)
{
	for (size_t i = 0; i < n; i += 4096)
		p[i] = 1;
}

static inline __attribute__((always_inline)) void middle(volatile char *p, size_t n)
{
	inner(p, n);
}

__attribute__((noinline)) void outer(volatile char *p, size_t n)
{
	middle(p, n);
}

static char memory[1 << 20];

int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		outer(memory, sizeof(memory));
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
