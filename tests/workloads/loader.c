// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Loads a library on command. One command per line on standard input, answered by `ok` on standard output: `load PATH`
// (loads it and looks up its function), `thread PATH` (has a thread do that), `loaded` (waits for that thread),
// `hold N SIZE` (the library's function does), `own N SIZE` (an own one does).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "common.h"

static void *(*plugin_holds)(size_t);
static void *volatile held;
static char path[4096];
static pthread_t thread;

static void *load(void *arg)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library)
		die(dlerror());
	*(void **)&plugin_holds = dlsym(library, "plugin_holds");
	return arg;
}

static NOINLINE void own_holds(size_t n, size_t size)
{
	for (size_t i = 0; i < n; i++)
		held = memset(malloc(size), 1, size);
}

int main(void)
{
	char line[5000];
	size_t n, size;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "loaded\n"))
			pthread_join(thread, NULL);
		else if (sscanf(line, "load %4095s", path) == 1)
			load(NULL);
		else if (sscanf(line, "thread %4095s", path) == 1)
			pthread_create(&thread, NULL, load, NULL);
		else if (sscanf(line, "hold %zu %zu", &n, &size) == 2)
			for (size_t i = 0; i < n; i++)
				held = plugin_holds(size);
		else if (sscanf(line, "own %zu %zu", &n, &size) == 2)
			own_holds(n, size);
		puts("ok");
	}
	return 0;
}
