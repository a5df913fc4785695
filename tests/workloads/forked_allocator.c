// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Smoke-test workload: a parent and its forked child, with known amounts of memory under known
// functions.
//
// Build:
//   cc -O1 -g -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o forked_alloc forked_allocator.c
//
// Once everything is resident it prints one line of JSON to stdout and waits for the end of stdin.
// Then it ends the child, and exits with status 0.
//
//   {"page_size":4096,
//    "processes":[
//      {"role":"parent","pid":1,"functions":[
//         {"name":"parent_small_blocks","bytes":2359296,
//          "chain":["main","run_parent","parent_before_fork","parent_level2","parent_small_blocks"]},…]},
//      {"role":"child","pid":2,"functions":[…]}]}
//
// `bytes` is the resident anonymous memory that the function brought in with its own stores and
// that the process still holds; `chain` is its call stack, outermost first. The child's list includes
// memory inherited from the parent (shared copy-on-write, resident in both processes).
//
// Why the figures are exact:
//  - huge pages are disabled for the process (PR_SET_THP_DISABLE), so all pages have the base size;
//  - each page is first touched by the named function's own store loop, never by libc. Blocks come
//    from mmap, except in parent_malloc_blocks: there malloc itself touches one header page per
//    block, which is in `allocator_bytes`, not in `bytes`;
//  - no figure includes stacks, the heap of libc, or the program's own data.

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common.h"

// Prevents tail calls, and the removal of functions without visible effects.
#define BARRIER() __asm__ volatile("" ::: "memory")

enum {
	SMALL_BLOCKS = 48,
	SMALL_BLOCK = 48 * 1024,
	LARGE_BLOCK = 12 * 1024 * 1024,
	MALLOC_BLOCKS = 3,
	MALLOC_BLOCK = 1024 * 1024,
	LATE_BLOCK = 3 * 1024 * 1024,
	CHILD_TABLE = 6 * 1024 * 1024,
	CHILD_BUFFERS = 10,
	CHILD_BUFFER = 192 * 1024,
	CHILD_REWRITE = 2 * 1024 * 1024,
};

static unsigned char *large_block;

static NOINLINE void parent_small_blocks(void)
{
	for (int i = 0; i < SMALL_BLOCKS; i++) {
		unsigned char *block = map_memory(SMALL_BLOCK);

		store_each_page(block, SMALL_BLOCK);
	}
	BARRIER();
}

static NOINLINE void parent_large_block(void)
{
	large_block = map_memory(LARGE_BLOCK);
	store_each_page(large_block, LARGE_BLOCK);
	BARRIER();
}

// The blocks are larger than malloc's mmap threshold: each is a separate mapping, whose first page
// contains malloc's header. The stores start at the next page boundary and cover MALLOC_BLOCK bytes.
static NOINLINE void parent_malloc_blocks(void)
{
	for (int i = 0; i < MALLOC_BLOCKS; i++) {
		unsigned char *block = malloc(MALLOC_BLOCK);
		uintptr_t first;

		if (!block)
			die("malloc");
		first = ((uintptr_t)block + page_size - 1) & ~((uintptr_t)page_size - 1);
		store_each_page((unsigned char *)first, (size_t)((uintptr_t)block + MALLOC_BLOCK - first));
	}
	BARRIER();
}

static NOINLINE void parent_late_block(void)
{
	store_each_page(map_memory(LATE_BLOCK), LATE_BLOCK);
	BARRIER();
}

static NOINLINE void parent_level2(void)
{
	parent_small_blocks();
	parent_large_block();
	parent_malloc_blocks();
	BARRIER();
}

static NOINLINE void parent_before_fork(void)
{
	parent_level2();
	BARRIER();
}

static NOINLINE void parent_after_fork(void)
{
	parent_late_block();
	BARRIER();
}

static NOINLINE void child_table(void)
{
	store_each_page(map_memory(CHILD_TABLE), CHILD_TABLE);
	BARRIER();
}

static NOINLINE void child_buffers(void)
{
	for (int i = 0; i < CHILD_BUFFERS; i++) {
		unsigned char *buffer = map_memory(CHILD_BUFFER);

		store_each_page(buffer, CHILD_BUFFER);
	}
	BARRIER();
}

// Overwrites memory inherited from the parent: each page becomes the child's own copy.
static NOINLINE void child_rewrite(void)
{
	store_each_page(large_block, CHILD_REWRITE);
	BARRIER();
}

static NOINLINE void child_level2(void)
{
	child_table();
	child_buffers();
	child_rewrite();
	BARRIER();
}

static NOINLINE void child_level1(void)
{
	child_level2();
	BARRIER();
}

// Waits until the other end of `fd` is closed.
static NOINLINE void wait_for_end(int fd)
{
	char buf[64];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) != 0)
		if (n < 0 && errno != EINTR)
			die("read");
}

static NOINLINE void run_child(int ready, int end)
{
	child_level1();
	if (write(ready, "r", 1) != 1)
		die("write to the parent");
	wait_for_end(end);
	_exit(0);
}

static void print_function(const char *before, const char *name, size_t bytes, size_t allocator,
			   const char *chain)
{
	printf("%s{\"name\":\"%s\",\"bytes\":%zu", before, name, bytes);
	if (allocator)
		printf(",\"allocator_bytes\":%zu", allocator);
	printf(",\"chain\":[%s,\"%s\"]}", chain, name);
}

#define BEFORE "\"main\",\"run_parent\",\"parent_before_fork\",\"parent_level2\""
#define AFTER "\"main\",\"run_parent\",\"parent_after_fork\""
#define CHILD "\"main\",\"run_parent\",\"run_child\",\"child_level1\",\"child_level2\""

// Bytes that parent_malloc_blocks touched with its own stores.
static size_t malloc_stores(void)
{
	// malloc's pointer is 16 bytes into its mapping: malloc touches the first page, and the block's
	// last 16 bytes are in an additional page.
	return (size_t)MALLOC_BLOCKS * MALLOC_BLOCK;
}

static void print_expectation(pid_t child)
{
	size_t header = MALLOC_BLOCKS * page_size;

	printf("{\"page_size\":%zu,\"processes\":[{\"role\":\"parent\",\"pid\":%d,\"functions\":[",
	       page_size, (int)getpid());
	print_function("", "parent_small_blocks", (size_t)SMALL_BLOCKS * SMALL_BLOCK, 0, BEFORE);
	print_function(",", "parent_large_block", LARGE_BLOCK, 0, BEFORE);
	print_function(",", "parent_malloc_blocks", malloc_stores(), header, BEFORE);
	print_function(",", "parent_late_block", LATE_BLOCK, 0, AFTER);
	printf("]},{\"role\":\"child\",\"pid\":%d,\"functions\":[", (int)child);
	print_function("", "child_table", CHILD_TABLE, 0, CHILD);
	print_function(",", "child_buffers", (size_t)CHILD_BUFFERS * CHILD_BUFFER, 0, CHILD);
	print_function(",", "child_rewrite", CHILD_REWRITE, 0, CHILD);
	print_function(",", "parent_small_blocks", (size_t)SMALL_BLOCKS * SMALL_BLOCK, 0, BEFORE);
	print_function(",", "parent_large_block", LARGE_BLOCK - CHILD_REWRITE, 0, BEFORE);
	print_function(",", "parent_malloc_blocks", malloc_stores(), header, BEFORE);
	printf("]}]}\n");
	fflush(stdout);
}

static NOINLINE int run_parent(void)
{
	int ready[2], end[2], status;
	char byte;
	pid_t child;

	parent_before_fork();
	if (pipe(ready) || pipe(end))
		die("pipe");
	fflush(stdout);
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		close(ready[0]);
		close(end[1]);
		run_child(ready[1], end[0]);
	}
	close(ready[1]);
	close(end[0]);
	if (read(ready[0], &byte, 1) != 1)
		die("the child ended before it was ready");
	parent_after_fork();
	print_expectation(child);
	wait_for_end(STDIN_FILENO);
	close(end[1]);
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

int main(void)
{
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	return run_parent();
}
