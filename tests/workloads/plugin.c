// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A library that `loader` loads while it runs. If the environment has PLUGIN_WAITS, loading it takes until something can be
// read from that file, a FIFO.

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *plugin_holds(size_t size);

__attribute__((constructor)) static void waits(void)
{
	const char *path = getenv("PLUGIN_WAITS");
	char byte;

	if (path && read(open(path, O_RDONLY), &byte, 1) < 0)
		abort();
}

__attribute__((noinline)) void *plugin_holds(size_t size)
{
	char *at = malloc(size);

	memset(at, 1, size);
	return at;
}
