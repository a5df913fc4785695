// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Blocks whose addresses are only in memory that a forked child does not have.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o kept_back kept_back.c
//
//   kept_back HOW MIB
//
// HOW is none, dontfork, wipeonfork, hugetlb or userfault: what the memory of MIB MiB is that has the addresses of 20,000 blocks of
// 1,000 bytes, one in each of its parts. Prints ok, or error: and why it cannot have that memory. Then it answers each line with ok:
// after "dontfork" and "wipeonfork", which mark the memory, after "fork", by which it forks a child that waits, and after
// "exec HOW", by which it executes itself.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "serve.h"

enum { BLOCKS = 20000, BLOCK = 1000 };

static char **volatile roots;
static size_t size;

// Registers the memory with a userfaultfd, which nobody reads: all of it is there.
static int register_with_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register wanted = {
		.range = { (uintptr_t)roots, size },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	return fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &wanted) ? -1 : 0;
}

static int fork_one(void)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return child < 0 ? -1 : 0;
}

static int mark(const char *how)
{
	if (!strcmp(how, "fork"))
		return fork_one();
	if (!strcmp(how, "dontfork"))
		return madvise(roots, size, MADV_DONTFORK);
	if (!strcmp(how, "wipeonfork"))
		return madvise(roots, size, MADV_WIPEONFORK);
	return strcmp(how, "userfault") ? 0 : register_with_userfaultfd();
}

static int take(const char *how)
{
	int huge = strcmp(how, "hugetlb") ? 0 : MAP_HUGETLB;
	char **at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | huge, -1, 0);

	if (at == MAP_FAILED)
		return -1;
	memset(at, 0, size);
	roots = at;
	for (size_t n = 0; n < BLOCKS; n++) {
		char *block = malloc(BLOCK);

		memset(block, 1, BLOCK);
		roots[n * (size / BLOCKS / sizeof(char *))] = block;
	}
	return mark(how);
}

int main(int argc, char **argv)
{
	char line[64];

	(void)argc;
	size = strtoul(argv[2], NULL, 10) << 20;
	int failed = take(argv[1]);

	clean_stack();
	answer(failed);
	while (read_line(line, sizeof(line))) {
		if (!strncmp(line, "exec ", 5)) {
			execl("/proc/self/exe", argv[0], line + 5, argv[2], (char *)NULL);
			return 1;
		}
		answer(mark(line));
	}
	return 0;
}
