// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that executes itself and renames itself all the time, or when it is told to.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o restless restless.c
//
// It answers each line with `ok`, after it has written 1 MiB of new memory in restless_touch: `exec` executes it again first,
// `rename` gives each of its threads another name, of bytes that names rarely have, and `touch` does nothing besides. `wild N`
// does each N times. It ends with status 0 at the end of its input.

#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>

#include "serve.h"

enum { BYTES = 1 << 20 };

static NOINLINE void restless_touch(void)
{
	unsigned char *p = map_memory(BYTES);

	madvise(p, BYTES, MADV_NOHUGEPAGE);
	store_each_page(p, BYTES);
	keep_frame();
}

static void rename_itself(unsigned n)
{
	static const char *const names[] = { "", ") R 1 1", "a\nb", "\xff\xfe\x80", "....", "fifteen bytes!!", "\"\\{}<b>" };

	prctl(PR_SET_NAME, names[n % (sizeof(names) / sizeof(names[0]))], 0, 0, 0);
}

static void *sleeps(void *unused)
{
	for (unsigned n = 0;; n++) {
		rename_itself(n);
		usleep(700);
	}
	return unused;
}

// The rest of a wild command is done by the next image.
static void execute(const char *rest)
{
	execl("/proc/self/exe", "restless", rest, (char *)NULL);
	die("execl");
}

static void wild(size_t n)
{
	char rest[32];

	if (n == 0)
		return;
	for (unsigned i = 0; i < 10; i++)
		rename_itself((unsigned)n + i);
	snprintf(rest, sizeof(rest), "%zu", n - 1);
	execute(rest);
}

int main(int argc, char **argv)
{
	unsigned renamed = 0;
	pthread_t thread;
	size_t n;
	char line[64];

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (pthread_create(&thread, NULL, sleeps, NULL))
		die("pthread_create");
	if (argc > 1) {
		if (number(argv[1], &n))
			die(argv[1]);
		wild(n);
		restless_touch();
		answer(0);
	}
	while (read_line(line, sizeof(line))) {
		if (strcmp(line, "exec") == 0)
			execute("0");
		if (strcmp(line, "rename") == 0)
			rename_itself(renamed++);
		if (sscanf(line, "wild %zu", &n) == 1)
			wild(n);
		restless_touch();
		answer(0);
	}
	return 0;
}
