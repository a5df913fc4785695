// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Shared code of the workloads that run commands: reading lines, answering, the store loop.

#ifndef SERVE_H
#define SERVE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static size_t page_size;

// Does nothing. Compilers may omit the frame of functions without calls.
static NOINLINE void keep_frame(void)
{
	__asm__ volatile("" ::: "memory");
}

// The store loop, inlined into each caller (-fno-inline does not affect always_inline).
static inline __attribute__((always_inline)) void store_each_page(unsigned char *start, size_t len)
{
	keep_frame();
	for (volatile unsigned char *p = start; p < start + len; p += page_size)
		*p = 0x5a;
}

static inline size_t whole_pages(size_t bytes)
{
	return (bytes + page_size - 1) / page_size * page_size;
}

// Every command returns 0, or -1 with errno set.
static int fail(int error)
{
	errno = error;
	return -1;
}

static int number(const char *text, size_t *value)
{
	char *rest;

	if (!text || *text < '0' || *text > '9')
		return fail(EINVAL);
	errno = 0;
	*value = strtoull(text, &rest, 10);
	return errno ? -1 : *rest ? fail(EINVAL) : 0;
}

// Reads a line without reading ahead: after `exec` the new image reads the rest of stdin.
static int read_line(char *line, size_t size)
{
	size_t len = 0;
	ssize_t n;
	char c;

	while ((n = read(STDIN_FILENO, &c, 1)) == 1 || (n < 0 && errno == EINTR)) {
		if (n < 0)
			continue;
		if (c == '\n') {
			line[len] = '\0';
			return 1;
		}
		if (len + 1 < size)
			line[len++] = c;
	}
	return 0;
}

// Answers by write(2): stdio would allocate a buffer that no command requested.
static void answer(int result)
{
	char text[128];
	int len = result ? snprintf(text, sizeof(text), "error: %s\n", strerror(errno)) :
			   snprintf(text, sizeof(text), "ok\n");

	if (write(STDOUT_FILENO, text, (size_t)len) != len)
		_exit(1);
}

#endif
