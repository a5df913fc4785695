// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Memory that one function touches first and another one writes to again and again.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o rewriter rewriter.c
//
//   rewriter MIB
//
// It begins with MIB, and answers lines on stdin with "ok": `fill` touches as much again, `rewrite` starts to write to all of it
// without a pause, `rest` ends that.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "common.h"

static size_t len;
static unsigned char *before, *after;
static atomic_int going, working;

static NOINLINE void fill(unsigned char *memory)
{
	store_each_page(memory, len);
}

static NOINLINE void rewrite(void)
{
	store_each_page(before, len);
	store_each_page(after, len);
}

static void *work(void *arg)
{
	(void)arg;
	for (;;) {
		if (going) {
			working = 1;
			rewrite();
		} else {
			working = 0;
			usleep(1000);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char line[64];

	page_size = sysconf(_SC_PAGESIZE);
	len = (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 20;
	before = map_memory(len);
	after = map_memory(len);
	madvise(before, len, MADV_NOHUGEPAGE);
	madvise(after, len, MADV_NOHUGEPAGE);
	fill(before);
	if (pthread_create(&thread, NULL, work, NULL))
		die("pthread_create");
	say("ok\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "fill\n"))
			fill(after);
		going = !strcmp(line, "rewrite\n");
		while (working != going)
			usleep(1000);
		say("ok\n");
	}
	return 0;
}
