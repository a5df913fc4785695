// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Shared code of the workloads that run commands: reading lines, answering.

#ifndef SERVE_H
#define SERVE_H

#include <errno.h>

#include "common.h"

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

static inline int number(const char *text, size_t *value)
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
