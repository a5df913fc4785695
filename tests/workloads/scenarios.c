// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that changes its memory on command, for tests that compare a profile with the kernel's
// own figures.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o scenarios scenarios.c
//
// It reads one command per line from stdin and answers each with one line on stdout: `ok`, or
// `error: …`. End of input, or `exit`, ends it. Sizes are in bytes and are rounded up to pages.
// Every command runs in a function with its name: main → serve → run_command → cmd_NAME.
//
//   malloc_small N        N blocks of 16 to 1008 bytes, each written    free_small
//   malloc_large BYTES    one malloc block, each page written           free_large
//   malloc_trim           malloc_trim(0)
//   mmap BYTES            private anonymous mapping, each page written  munmap
//   dontneed              MADV_DONTNEED on the first half of the latest mapping
//   brk_grow BYTES        sbrk and write                                brk_trim
//   pin                   pin the thread to its current CPU
//   threads N             N threads that each write 64 KiB of stack     threads_end
//   read FILE             the whole file through read(2)
//   write FILE BYTES      create or overwrite through write(2)
//   fsync FILE            write the file's dirty pages back
//   mapfile FILE          map it shared and read each page              unmapfile
//   fadvise_dontneed FILE write back, then POSIX_FADV_DONTNEED
//   truncate FILE         to length 0
//   unlink FILE
//   fork_cow              a child that overwrites half of the latest mapping and stays;
//                         then the parent overwrites the first quarter   fork_end
//   exec                  execute this program again in the same process, with the same stdin
//   shared_anon BYTES     shared anonymous mapping, each page written   munmap
//   memfd BYTES           memfd_create, map shared, each page written   munmap
//   mremap_move           move the latest mapping to another address
//   mremap_grow           double the latest mapping and write the new half
//   populate BYTES        mapping with MAP_POPULATE                     munmap
//   mlock BYTES           mapping made resident by mlock(2)             munmap
//   thp BYTES             2 MiB-aligned mapping with MADV_HUGEPAGE, written   munmap
//   getppid N             so many system calls that change nothing
//   leave                 the first thread ends; another one goes on
//   exit N                exit with status N
//
// `munmap` releases the latest mapping that is still held, whichever command made it. Except for
// `thp`, mappings have MADV_NOHUGEPAGE, so that sizes are exact.

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "serve.h"

enum {
	MAX_SMALL = 4 * 1024 * 1024,
	MAX_MAPPINGS = 256,
	MAX_THREADS = 512,
	THREAD_STACK = 64 * 1024,
	HUGE = 2 * 1024 * 1024,
	IO_BLOCK = 64 * 1024,
};

struct mapping {
	unsigned char *addr;
	size_t len;
	int fd;
};

static char **program_args;
static void **small_blocks;
static size_t small_count;
static unsigned char *large_block;
static struct mapping mappings[MAX_MAPPINGS];
static int mapping_count;
static struct mapping file_mapping;
static unsigned char *brk_end;
static size_t brk_bytes;
static pthread_t threads[MAX_THREADS];
static int thread_count;
static pthread_barrier_t threads_ready;
static pthread_mutex_t threads_hold = PTHREAD_MUTEX_INITIALIZER;
static pid_t cow_child;
static int cow_pipe = -1;
static volatile unsigned char sink;

static struct mapping *latest(void)
{
	return mapping_count ? &mappings[mapping_count - 1] : NULL;
}

static int hold(void *addr, size_t len, int fd)
{
	mappings[mapping_count++] = (struct mapping){ addr, len, fd };
	return 0;
}

// Maps `bytes` without huge pages and keeps the mapping.
static NOINLINE unsigned char *map_and_hold(size_t bytes, int flags, int fd)
{
	size_t len = whole_pages(bytes);
	void *p;

	if (mapping_count == MAX_MAPPINGS || len == 0) {
		errno = EINVAL;
		return NULL;
	}
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	// Fails on kernels without transparent huge pages; there is nothing to switch off then.
	(void)madvise(p, len, MADV_NOHUGEPAGE);
	hold(p, len, fd);
	return p;
}

// A macro, so that the stores belong to the command.
#define map_and_store(bytes, flags, fd)                                        \
	({                                                                     \
		unsigned char *mapped_ = map_and_hold(bytes, flags, fd);       \
                                                                               \
		if (mapped_)                                                   \
			store_each_page(mapped_, bytes);                       \
		mapped_ ? 0 : -1;                                              \
	})

static NOINLINE int cmd_malloc_small(size_t n)
{
	if (!small_blocks) {
		small_blocks = mmap(NULL, MAX_SMALL * sizeof(void *), PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (small_blocks == MAP_FAILED) {
			small_blocks = NULL;
			return -1;
		}
	}
	if (n > MAX_SMALL - small_count)
		return fail(E2BIG);
	for (size_t i = 0; i < n; i++) {
		size_t size = 16 + (i * 32) % 1024;
		volatile unsigned char *block = malloc(size > 1008 ? 1008 : size);

		if (!block)
			return -1;
		block[0] = 0x5a;
		small_blocks[small_count++] = (void *)block;
	}
	return 0;
}

static NOINLINE int cmd_free_small(void)
{
	while (small_count)
		free(small_blocks[--small_count]);
	return 0;
}

static NOINLINE int cmd_malloc_large(size_t bytes)
{
	if (large_block)
		return fail(EBUSY);
	large_block = malloc(bytes);
	if (!large_block)
		return -1;
	store_each_page(large_block, bytes);
	return 0;
}

static NOINLINE int cmd_free_large(void)
{
	free(large_block);
	large_block = NULL;
	return 0;
}

static NOINLINE int cmd_malloc_trim(void)
{
	malloc_trim(0);
	return 0;
}

static NOINLINE int cmd_mmap(size_t bytes)
{
	return map_and_store(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static NOINLINE int cmd_munmap(void)
{
	struct mapping *m = latest();

	if (!m)
		return fail(ENOENT);
	if (m->fd >= 0)
		close(m->fd);
	mapping_count--;
	return munmap(m->addr, m->len);
}

static NOINLINE int cmd_dontneed(void)
{
	struct mapping *m = latest();

	if (!m)
		return fail(ENOENT);
	return madvise(m->addr, whole_pages(m->len / 2), MADV_DONTNEED);
}

static NOINLINE int cmd_brk_grow(size_t bytes)
{
	unsigned char *start;

	bytes = whole_pages(bytes);
	if (brk_end)
		return fail(EBUSY);
	start = sbrk((intptr_t)bytes);
	if (start == (void *)-1)
		return -1;
	store_each_page(start, bytes);
	brk_bytes = bytes;
	brk_end = start + bytes;
	return 0;
}

// Only valid if nothing else (malloc) has moved the break since.
static NOINLINE int cmd_brk_trim(void)
{
	if (!brk_end || sbrk(0) != brk_end)
		return fail(EBUSY);
	if (sbrk(-(intptr_t)brk_bytes) == (void *)-1)
		return -1;
	brk_end = NULL;
	return 0;
}

// Each CPU holds references to a few pages that were recently faulted in on it. On copy-on-write, a page that
// is no longer shared is still copied if another CPU holds such a reference.
static NOINLINE int cmd_pin(void)
{
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(sched_getcpu(), &own);
	return sched_setaffinity(0, sizeof(own), &own);
}

static NOINLINE void *thread_body(void *unused)
{
	unsigned char on_stack[THREAD_STACK];

	store_each_page(on_stack, sizeof(on_stack));
	pthread_barrier_wait(&threads_ready);
	pthread_mutex_lock(&threads_hold);
	pthread_mutex_unlock(&threads_hold);
	sink = on_stack[0];
	return unused;
}

static NOINLINE int cmd_threads(size_t n)
{
	int error;

	if (thread_count || n == 0 || n > MAX_THREADS)
		return fail(EINVAL);
	pthread_barrier_init(&threads_ready, NULL, (unsigned)n + 1);
	pthread_mutex_lock(&threads_hold);
	for (; thread_count < (int)n; thread_count++) {
		error = pthread_create(&threads[thread_count], NULL, thread_body, NULL);
		if (error) {
			// Threads that wait at the barrier cannot be released: give up.
			fprintf(stderr, "scenarios: pthread_create: %s\n", strerror(error));
			_exit(1);
		}
	}
	pthread_barrier_wait(&threads_ready);
	return 0;
}

static NOINLINE int cmd_threads_end(void)
{
	if (!thread_count)
		return fail(ENOENT);
	pthread_mutex_unlock(&threads_hold);
	while (thread_count)
		pthread_join(threads[--thread_count], NULL);
	pthread_barrier_destroy(&threads_ready);
	return 0;
}

static unsigned char io_block[IO_BLOCK];

// Closes `fd` and returns `result` with its errno.
static int close_with(int fd, int result)
{
	int error = errno;

	if (close(fd) && !result)
		return -1;
	errno = error;
	return result;
}

// Unwinding by frame pointers skips the direct caller of a library function without a frame, such as
// libc's read and write. Commands call these wrappers, so that the commands themselves are in the stack.
static NOINLINE ssize_t read_block(int fd)
{
	ssize_t n = read(fd, io_block, sizeof(io_block));

	keep_frame();
	return n;
}

static NOINLINE ssize_t write_block(int fd, size_t len)
{
	ssize_t n = write(fd, io_block, len);

	keep_frame();
	return n;
}

static NOINLINE int cmd_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	while ((n = read_block(fd)) > 0)
		;
	return close_with(fd, n < 0 ? -1 : 0);
}

static NOINLINE int cmd_write(const char *path, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return -1;
	while (bytes) {
		size_t part = bytes < sizeof(io_block) ? bytes : sizeof(io_block);
		ssize_t n = write_block(fd, part);

		if (n <= 0)
			return close_with(fd, -1);
		bytes -= (size_t)n;
	}
	return close_with(fd, 0);
}

static NOINLINE int cmd_fsync(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -1;
	return close_with(fd, fsync(fd));
}

static NOINLINE int cmd_unmapfile(void)
{
	struct mapping m = file_mapping;

	if (!m.addr)
		return fail(ENOENT);
	file_mapping.addr = NULL;
	return munmap(m.addr, m.len);
}

static NOINLINE int cmd_mapfile(const char *path)
{
	struct stat st;
	void *p;
	int fd;

	if (file_mapping.addr)
		return fail(EBUSY);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) || st.st_size == 0)
		return close_with(fd, st.st_size ? -1 : fail(EINVAL));
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return close_with(fd, -1);
	file_mapping = (struct mapping){ p, (size_t)st.st_size, -1 };
	for (size_t at = 0; at < file_mapping.len; at += page_size)
		sink = file_mapping.addr[at];
	return close_with(fd, 0);
}

static NOINLINE int cmd_fadvise_dontneed(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int error;

	if (fd < 0)
		return -1;
	if (fsync(fd))
		return close_with(fd, -1);
	error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return close_with(fd, error ? fail(error) : 0);
}

static NOINLINE int cmd_truncate(const char *path)
{
	return truncate(path, 0);
}

static NOINLINE int cmd_unlink(const char *path)
{
	return unlink(path);
}

static NOINLINE void cow_child_writes(struct mapping *m)
{
	store_each_page(m->addr, m->len / 2);
}

static NOINLINE void cow_parent_writes(struct mapping *m)
{
	store_each_page(m->addr, m->len / 4);
}

static NOINLINE int cmd_fork_cow(void)
{
	struct mapping *m = latest();
	int ready[2], end[2];
	char byte;

	if (!m)
		return fail(ENOENT);
	if (cow_child)
		return fail(EBUSY);
	if (pipe2(ready, O_CLOEXEC))
		return -1;
	if (pipe2(end, O_CLOEXEC)) {
		close(ready[1]);
		return close_with(ready[0], -1);
	}
	cow_child = fork();
	if (cow_child == 0) {
		close(ready[0]);
		close(end[1]);
		cow_child_writes(m);
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		_exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(ready[1]);
	close(end[0]);
	if (cow_child < 0) {
		cow_child = 0;
		close(end[1]);
		return close_with(ready[0], -1);
	}
	cow_pipe = end[1];
	if (read(ready[0], &byte, 1) != 1)
		return close_with(ready[0], fail(ECHILD));
	cow_parent_writes(m);
	return close_with(ready[0], 0);
}

static NOINLINE int cmd_fork_end(void)
{
	int status;

	if (!cow_child)
		return fail(ENOENT);
	close(cow_pipe);
	cow_pipe = -1;
	if (waitpid(cow_child, &status, 0) != cow_child)
		return -1;
	cow_child = 0;
	return status ? fail(ECHILD) : 0;
}

// The new image answers this command.
static NOINLINE int cmd_exec(void)
{
	char *args[] = { program_args[0], "--answer", NULL };

	return execv("/proc/thread-self/exe", args);
}

static NOINLINE int cmd_shared_anon(size_t bytes)
{
	return map_and_store(bytes, MAP_SHARED | MAP_ANONYMOUS, -1);
}

static NOINLINE int cmd_memfd(size_t bytes)
{
	int fd = memfd_create("scenarios", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)whole_pages(bytes)))
		return close_with(fd, -1);
	return map_and_store(bytes, MAP_SHARED, fd) ? close_with(fd, -1) : 0;
}

static NOINLINE int cmd_mremap_move(void)
{
	struct mapping *m = latest();
	void *target, *p;

	if (!m)
		return fail(ENOENT);
	// Finds a free range of that size by mapping it; mremap replaces the mapping.
	target = mmap(NULL, m->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (target == MAP_FAILED)
		return -1;
	p = mremap(m->addr, m->len, m->len, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	if (p == MAP_FAILED)
		return -1;
	m->addr = p;
	return 0;
}

static NOINLINE int cmd_mremap_grow(void)
{
	struct mapping *m = latest();
	void *p;

	if (!m)
		return fail(ENOENT);
	// Stores beyond the end of the memfd would fail, so it must grow as well.
	if (m->fd >= 0 && ftruncate(m->fd, (off_t)m->len * 2))
		return -1;
	p = mremap(m->addr, m->len, m->len * 2, MREMAP_MAYMOVE);
	if (p == MAP_FAILED)
		return -1;
	m->addr = p;
	store_each_page(m->addr + m->len, m->len);
	m->len *= 2;
	return 0;
}

static NOINLINE int cmd_populate(size_t bytes)
{
	return map_and_hold(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1) ? 0 : -1;
}

static NOINLINE int cmd_mlock(size_t bytes)
{
	unsigned char *p = map_and_hold(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	return p ? mlock(p, whole_pages(bytes)) : -1;
}

static NOINLINE int cmd_thp(size_t bytes)
{
	size_t len = (bytes + HUGE - 1) / HUGE * HUGE;
	unsigned char *p, *aligned;

	if (mapping_count == MAX_MAPPINGS || len == 0)
		return fail(EINVAL);
	p = mmap(NULL, len + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -1;
	aligned = (unsigned char *)(((uintptr_t)p + HUGE - 1) & ~((uintptr_t)HUGE - 1));
	hold(p, len + HUGE, -1);
	if (madvise(aligned, len, MADV_HUGEPAGE))
		return -1;
	store_each_page(aligned, len);
	return 0;
}

static NOINLINE int cmd_getppid(size_t n)
{
	while (n--)
		getppid();
	return 0;
}

static int serve(void);
static pthread_t first_thread;

static void *go_on(void *arg)
{
	pthread_join(first_thread, NULL);
	answer(0);
	exit(serve());
	return arg;
}

static NOINLINE int cmd_leave(void)
{
	pthread_t second;

	first_thread = pthread_self();
	errno = pthread_create(&second, NULL, go_on, NULL);
	if (errno)
		return -1;
	pthread_exit(NULL);
}

static NOINLINE int cmd_exit(size_t status)
{
	// No answer is printed: the exit is the answer.
	_exit((int)status);
}

struct command {
	const char *name;
	int (*plain)(void);
	int (*number)(size_t);
	int (*file)(const char *);
};

static const struct command commands[] = {
	{ "malloc_small", .number = cmd_malloc_small },
	{ "free_small", .plain = cmd_free_small },
	{ "malloc_large", .number = cmd_malloc_large },
	{ "free_large", .plain = cmd_free_large },
	{ "malloc_trim", .plain = cmd_malloc_trim },
	{ "mmap", .number = cmd_mmap },
	{ "munmap", .plain = cmd_munmap },
	{ "dontneed", .plain = cmd_dontneed },
	{ "brk_grow", .number = cmd_brk_grow },
	{ "brk_trim", .plain = cmd_brk_trim },
	{ "pin", .plain = cmd_pin },
	{ "threads", .number = cmd_threads },
	{ "threads_end", .plain = cmd_threads_end },
	{ "read", .file = cmd_read },
	{ "fsync", .file = cmd_fsync },
	{ "mapfile", .file = cmd_mapfile },
	{ "unmapfile", .plain = cmd_unmapfile },
	{ "fadvise_dontneed", .file = cmd_fadvise_dontneed },
	{ "truncate", .file = cmd_truncate },
	{ "unlink", .file = cmd_unlink },
	{ "fork_cow", .plain = cmd_fork_cow },
	{ "fork_end", .plain = cmd_fork_end },
	{ "exec", .plain = cmd_exec },
	{ "shared_anon", .number = cmd_shared_anon },
	{ "memfd", .number = cmd_memfd },
	{ "mremap_move", .plain = cmd_mremap_move },
	{ "mremap_grow", .plain = cmd_mremap_grow },
	{ "populate", .number = cmd_populate },
	{ "mlock", .number = cmd_mlock },
	{ "thp", .number = cmd_thp },
	{ "getppid", .number = cmd_getppid },
	{ "leave", .plain = cmd_leave },
	{ "exit", .number = cmd_exit },
};

static NOINLINE int run_command(char *line)
{
	char *save = NULL;
	char *name = strtok_r(line, " ", &save);
	char *first = strtok_r(NULL, " ", &save);
	char *second = strtok_r(NULL, " ", &save);
	size_t n;

	if (!name)
		return fail(EINVAL);
	if (!strcmp(name, "write"))
		return !first || number(second, &n) ? fail(EINVAL) : cmd_write(first, n);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		const struct command *c = &commands[i];

		if (strcmp(name, c->name))
			continue;
		if (c->plain)
			return first ? fail(EINVAL) : c->plain();
		if (c->file)
			return !first || second ? fail(EINVAL) : c->file(first);
		return second || number(first, &n) ? fail(EINVAL) : c->number(n);
	}
	return fail(ENOSYS);
}

static NOINLINE int serve(void)
{
	char line[PATH_MAX + 64];

	while (read_line(line, sizeof(line)))
		answer(run_command(line));
	return 0;
}

int main(int argc, char **argv)
{
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	program_args = argv;
	// Touch the table here, so that its page belongs to main and not to the first command that maps.
	mappings[0].fd = -1;
	if (argc > 1 && !strcmp(argv[1], "--answer"))
		answer(0);
	return serve();
}
