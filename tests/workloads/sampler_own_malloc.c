// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program with an allocator of its own, which preloaded ones do not replace. Ends at the end of stdin.

#include <stddef.h>
#include <unistd.h>

static char room[1 << 24] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size)
{
	size_t at = __atomic_fetch_add(&used, (size + 15) & ~(size_t)15, __ATOMIC_RELAXED);
	return at + size <= sizeof room ? room + at : NULL;
}

void *calloc(size_t count, size_t size)
{
	return malloc(count * size);
}

void *realloc(void *old, size_t size)
{
	char *ptr = malloc(size), *from = old;
	for (size_t n = 0; ptr && from && n < size && from + n < room + sizeof room; n++)
		ptr[n] = from[n];
	return ptr;
}

void free(void *ptr)
{
	(void)ptr;
}

int main(void)
{
	char byte;
	if (malloc(100) == NULL || write(1, "ready\n", 6) != 6)
		return 1;
	while (read(0, &byte, 1) > 0) {
	}
	return 0;
}
