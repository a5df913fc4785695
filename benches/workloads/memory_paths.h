// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Paths of instructions.c in which a process gets or gives back memory.

#ifndef MEMORY_PATHS_H
#define MEMORY_PATHS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

enum { PAGE = 4096, PAGES = 4096, FEWER = 1024, FRAMES = 18, HUGE_PAGE = 2 << 20, HUGE_PAGES = 16 };

// On a file system that has a page cache: in the guest, a disk.
static const char file_path[] = "/disk/hole";

static volatile unsigned char *memory;
static pid_t copy;
static int file;

static void map_bytes(size_t bytes)
{
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
}

static void map_memory(void)
{
	map_bytes(PAGES * PAGE);
}

static void unmap_memory(void)
{
	if (munmap((void *)memory, PAGES * PAGE))
		die("munmap");
}

static NOINLINE void touch_deeper(unsigned long pages, unsigned frames)
{
	if (frames)
		touch_deeper(pages, frames - 1);
	else
		for (unsigned long i = 0; i < pages; i++)
			memory[i * PAGE] = 1;
	__asm__ volatile("" ::: "memory");
}

// With main and its callers, the stack has 22 frames.
static void touch(unsigned long pages)
{
	touch_deeper(pages, FRAMES);
}

static volatile unsigned char *page;

static NOINLINE void left(unsigned depth, unsigned long path);
static NOINLINE void right(unsigned depth, unsigned long path);

// The bits of `path` select the function of each frame.
static inline __attribute__((always_inline)) void next(unsigned depth, unsigned long path)
{
	if (depth == 0)
		*page = 1;
	else if (path & 1)
		left(depth - 1, path >> 1);
	else
		right(depth - 1, path >> 1);
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void left(unsigned depth, unsigned long path)
{
	next(depth, path);
}

static NOINLINE void right(unsigned depth, unsigned long path)
{
	next(depth, path);
}

// Each page under a stack of 22 frames that there was not before.
static void touch_under_new_stacks(unsigned long pages)
{
	static unsigned long stack;

	for (unsigned long i = 0; i < pages; i++) {
		page = memory + i * PAGE;
		next(FRAMES, stack++);
	}
}

// Maps pages that a child shares.
static void share_memory(void)
{
	map_memory();
	touch(FEWER);
	copy = fork();
	if (copy < 0)
		die("fork");
	while (copy == 0)
		pause();
}

static void unshare_memory(void)
{
	if (kill(copy, SIGKILL) || waitpid(copy, NULL, 0) != copy)
		die("the child");
	unmap_memory();
}

static void set_huge_pages(int off)
{
	if (prctl(PR_SET_THP_DISABLE, off, 0, 0, 0))
		die("prctl");
}

static void map_huge(void)
{
	set_huge_pages(0);
	map_bytes((HUGE_PAGES + 1) * HUGE_PAGE);
	if (madvise((void *)memory, (HUGE_PAGES + 1) * HUGE_PAGE, MADV_HUGEPAGE))
		die("madvise");
}

static void touch_huge(unsigned long pages)
{
	size_t start = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE - (uintptr_t)memory;

	for (unsigned long i = 0; i < pages; i++)
		memory[start + i * HUGE_PAGE] = 1;
}

// That the kernel had huge pages to give.
static void check_huge(void)
{
	char line[256];
	unsigned long kib = 0;
	FILE *figures = fopen("/proc/self/smaps_rollup", "re");

	if (!figures)
		die("/proc/self/smaps_rollup");
	while (kib == 0 && fgets(line, sizeof(line), figures))
		sscanf(line, "AnonHugePages: %lu", &kib);
	fclose(figures);
	if (kib != HUGE_PAGES * (HUGE_PAGE >> 10)) {
		fprintf(stderr, "%lu KiB are huge pages\n", kib);
		exit(1);
	}
}

static void unmap_huge(void)
{
	check_huge();
	if (munmap((void *)memory, (HUGE_PAGES + 1) * HUGE_PAGE))
		die("munmap");
	set_huge_pages(1);
}

// A file without blocks: the kernel fills its pages without the disk.
static void open_file(void)
{
	file = open(file_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, FEWER * PAGE))
		die(file_path);
	if (posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM))
		die("posix_fadvise");
}

static void read_file(unsigned long pages)
{
	char bytes[PAGE];

	for (unsigned long i = 0; i < pages; i++)
		if (pread(file, bytes, PAGE, (off_t)i * PAGE) != PAGE)
			die("pread");
}

static void close_file(void)
{
	close(file);
}

static void map_and_unmap(unsigned long pairs)
{
	while (pairs--) {
		map_bytes(2 * PAGE);
		if (munmap((void *)memory, 2 * PAGE))
			die("munmap");
	}
}

static void move_break(unsigned long pairs)
{
	while (pairs--)
		if (sbrk(2 * PAGE) == (void *)-1 || sbrk(-2 * PAGE) == (void *)-1)
			die("sbrk");
}

static void allocate(unsigned long pairs)
{
	while (pairs--) {
		void *chunk = malloc(64);

		__asm__ volatile("" : "+r"(chunk)::"memory");
		free(chunk);
	}
}

#endif
