// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Makes the kernel allocate known amounts of memory: pipes, socket buffers, page tables.
//
// Reads commands from stdin, one per line, and answers each with `ok` or `error: …` on stdout:
//   pipes N       N pipes, each filled with 16 pages
//   pipes_end     closes them
//   sockets N     N pairs of sockets, with 128 KiB in flight in each
//   sockets_end   closes them
//   sparse N      a page in each of N ranges of 2 MiB: N page tables of 4 KiB, and N pages
//   sparse_end    unmaps them
// Every command runs in a function with its name: main → serve → cmd_NAME.

#define _GNU_SOURCE
#include <sys/socket.h>

#include "serve.h"

enum {
	PIPE_PAGES = 16,
	MESSAGE = 32 * 1024,
	MESSAGES = 4,
	MAX_OBJECTS = 256,
};

#define PIECE ((size_t)2 << 20)

static int pipes[MAX_OBJECTS][2], sockets[MAX_OBJECTS][2];
static size_t pipe_count, socket_count;
static unsigned char *sparse;
static size_t sparse_bytes;
static unsigned char data[MESSAGE];

static int close_all(int (*pairs)[2], size_t *count)
{
	for (; *count; --*count) {
		close(pairs[*count - 1][0]);
		close(pairs[*count - 1][1]);
	}
	return 0;
}

static NOINLINE int cmd_pipes(size_t n)
{
	for (; n && pipe_count < MAX_OBJECTS; n--) {
		int *ends = pipes[pipe_count];

		if (pipe(ends))
			return -1;
		pipe_count++;
		for (int i = 0; i < PIPE_PAGES; i++)
			if (write(ends[1], data, page_size) != (ssize_t)page_size)
				return -1;
	}
	return n ? fail(ENFILE) : 0;
}

static NOINLINE int cmd_sockets(size_t n)
{
	for (; n && socket_count < MAX_OBJECTS; n--) {
		int *ends = sockets[socket_count];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
			return -1;
		socket_count++;
		for (int i = 0; i < MESSAGES; i++)
			if (write(ends[1], data, MESSAGE) != MESSAGE)
				return -1;
	}
	return n ? fail(ENFILE) : 0;
}

static NOINLINE int cmd_sparse(size_t n)
{
	// One range more, so that the mapping covers N ranges aligned to page tables.
	sparse_bytes = (n + 1) * PIECE;
	sparse = mmap(NULL, sparse_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sparse == MAP_FAILED)
		return -1;
	madvise(sparse, sparse_bytes, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < n; i++)
		*(volatile unsigned char *)(sparse + i * PIECE) = 1;
	keep_frame();
	return 0;
}

static int run_command(const char *name, size_t n)
{
	if (!strcmp(name, "pipes"))
		return cmd_pipes(n);
	if (!strcmp(name, "pipes_end"))
		return close_all(pipes, &pipe_count);
	if (!strcmp(name, "sockets"))
		return cmd_sockets(n);
	if (!strcmp(name, "sockets_end"))
		return close_all(sockets, &socket_count);
	if (!strcmp(name, "sparse"))
		return cmd_sparse(n);
	if (!strcmp(name, "sparse_end"))
		return munmap(sparse, sparse_bytes);
	return fail(ENOSYS);
}

static NOINLINE int serve(void)
{
	char line[64];

	while (read_line(line, sizeof(line))) {
		char *name = strtok(line, " "), *rest = strtok(NULL, " ");
		size_t n = 0;

		answer(!name || (rest && number(rest, &n)) ? fail(EINVAL) : run_command(name, n));
	}
	return 0;
}

int main(void)
{
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	memset(data, 1, sizeof(data));
	return serve();
}
