/* Programs to be measured: sets up the memory that argv[1] names, says "ready", and waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define GIB (1UL << 30)
#define PAGE 4096UL
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static void check(int ok, const char *what)
{
	if (ok)
		return;
	printf("failed %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void touch(char *p, size_t len)
{
	for (size_t i = 0; i < len; i += PAGE)
		*(volatile char *)(p + i) = (char)(i / PAGE + 1);
}

static void look(const char *p, size_t len)
{
	for (size_t i = 0; i < len; i += PAGE)
		(void)*(const volatile char *)(p + i);
}

static char *map(size_t len, int flags, int fd)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	check(p != MAP_FAILED, "mmap");
	return p;
}

static char *anon(size_t len)
{
	return map(len, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

/* Huge pages lie at multiples of their size. */
static char *aligned(size_t len)
{
	uintptr_t p = (uintptr_t)anon(len + 2 * MIB);

	return (char *)((p + 2 * MIB - 1) & ~(2 * MIB - 1));
}

static int file(const char *path, size_t len)
{
	static char block[MIB];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	check(fd >= 0, path);
	memset(block, 7, sizeof(block));
	for (size_t i = 0; i < len; i += MIB)
		check(write(fd, block, MIB) == (ssize_t)MIB, "write");
	return fd;
}

#include "private.h"
#include "shared.h"

int main(int argc, char **argv)
{
	const char *dir = argc > 2 ? argv[2] : "/tmp";
	const char *name = argc > 1 ? argv[1] : "";
	const struct {
		const char *name;
		void (*run)(void);
	} plain[] = {
		{ "malloc_small", malloc_small }, { "malloc_large", malloc_large },
		{ "mmap_munmap", mmap_munmap }, { "dontneed", dontneed }, { "brk", brk_trim },
		{ "threads", threads }, { "fork_child", fork_child },
		{ "huge_shared", huge_shared }, { "mapped_twice", mapped_twice }, { "shared_anon", shared_anon },
		{ "memfd", memfd }, { "sysv", sysv }, { "zero_read", zero_read }, { "thp", thp },
		{ "huge_zero", huge_zero }, { "hugetlb", hugetlb }, { "mlock", mlocked },
		{ "ksm", ksm }, { "many_vmas", many_vmas }, { "alternating", alternating },
		{ "sparse", sparse }, { "reserve", reserve }, { "guard", guard },
		{ "swapped", swapped }, { "touched", touched },
	};
	int known = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(name, "tmpfs_shared"))
		tmpfs(dir, MAP_SHARED);
	else if (!strcmp(name, "tmpfs_private"))
		tmpfs(dir, MAP_PRIVATE);
	else if (!strcmp(name, "file_cow"))
		file_cow(dir);
	else if (!strcmp(name, "overlay"))
		overlay(dir);
	else
		known = 0;
	for (size_t i = 0; !known && i < sizeof(plain) / sizeof(plain[0]); i++) {
		if (strcmp(name, plain[i].name))
			continue;
		plain[i].run();
		known = 1;
	}
	errno = EINVAL;
	check(known, name);
	printf("ready\n");
	fflush(stdout);
	/* A line on standard input asks for exec. */
	if (getchar() == 'x')
		execl("/bin/sleep", "sleep", "1000", NULL);
	for (;;)
		pause();
}
