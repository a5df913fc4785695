// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that maps and moves pages on command in every way the kernel supports, for tests that compare a
// profile with the kernel's own figures. Commands of `scenarios.c` are not repeated here.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o moves moves.c
//
//   moves [IN OUT]        reads commands from the fifo IN, or stdin, answers to OUT, or stdout
//
// One command per line, answered by `ok` or `error: …`. Every command runs in a function with its name,
// cmd_NAME; a command that touches memory without permission answers `error: Bad address`. Memory is in
// slots, numbered from 0; offsets and lengths are in bytes. New mappings are 2 MiB-aligned and have no huge
// pages unless `advise` enables them.
//
//   anon S LEN            private anonymous mapping
//   reserve S LEN         the same with MAP_NORESERVE, for any size
//   shared S LEN          shared anonymous mapping
//   memfd S LEN           a memfd, mapped shared        memfd_private S LEN   mapped private
//   hugetlb S LEN         private mapping of 2 MiB huge pages
//   populate S LEN        private, by MAP_POPULATE
//   mapfile S PATH        a file, shared, for reading and writing
//   mapprivate S PATH     a file, private
//   touch S OFF LEN       a store to each page          again S OFF LEN       the same in another function
//   look S OFF LEN        a load from each page
//   number S OFF LEN      stores each page's number into the page
//   fill S OFF LEN        read(2) from /dev/zero into it
//   advise S OFF LEN N    madvise(2)
//   lock S OFF LEN        mlock(2)                      unlock S OFF LEN
//   protect S OFF LEN N   mprotect(2)
//   unmap S OFF LEN       a part, or all of it
//   move S                to another address            grow S LEN            by LEN bytes, moving
//   shrink S LEN          by LEN bytes
//   remove_range S OFF LEN fallocate(2): a hole in the memfd
//   memfd_write S LEN     a memfd, written by write(2) and never mapped
//   uffd S LEN MS         anonymous memory filled by UFFDIO_COPY, MS milliseconds after each page is touched
//   stack KIB             grows the main thread's stack by KIB KiB
//   heap LEN              malloc, each page written; realloc LEN: to that size; free
//   no_huge_pages         none for this process from now on
//   fork S OFF LEN        a child that stores to these pages and stays   end: it ends
//   vfork S OFF LEN       the same in a vfork child, which ends at once
//   clone_vm S OFF LEN    the same in a CLONE_VM child, which ends at once
//   exec                  executes this program again
//   read PATH OFF LEN, write PATH OFF LEN, direct PATH LEN, readahead PATH LEN, splice PATH LEN,
//   copy FROM TO LEN, truncate PATH LEN, punch PATH OFF LEN, sync PATH

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "serve.h"

enum { SLOTS = 64, HUGE = 2 * 1024 * 1024, BLOCK = 64 * 1024, MAX_ARGS = 4, MAX_CHILDREN = 8 };

struct slot {
	unsigned char *addr;
	size_t len;
	int fd;
};

static struct slot slots[SLOTS];
static char **program_args;
static unsigned char *block;
static size_t block_len;
static struct {
	pid_t pid;
	int end;
} children[MAX_CHILDREN];
static int child_count;
static volatile unsigned char sink;
static char io_block[BLOCK] __attribute__((aligned(4096)));

// Arguments of the current command; paths are in `path` and `path2`.
static size_t arg[MAX_ARGS];
static const char *path, *path2;

static int keep(struct slot *s, void *addr, size_t len, int fd)
{
	if (addr == MAP_FAILED)
		return -1;
	*s = (struct slot){ addr, len, fd };
	return 0;
}

// Finds a free aligned range: maps a larger one and unmaps it again.
static NOINLINE unsigned char *free_range(size_t len)
{
	unsigned char *p = mmap(NULL, len + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	munmap(p, len + HUGE);
	return (unsigned char *)(((uintptr_t)p + HUGE - 1) & ~((uintptr_t)HUGE - 1));
}

static NOINLINE int map(int flags, int fd, int no_huge)
{
	struct slot *s = &slots[arg[0]];
	size_t len = whole_pages(arg[1]);
	unsigned char *p;

	if (s->addr || !len)
		return fail(EBUSY);
	p = free_range(len);
	if (!p)
		return -1;
	p = mmap(p, len, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, fd, 0);
	if (keep(s, p, len, fd))
		return -1;
	if (no_huge)
		(void)madvise(p, len, MADV_NOHUGEPAGE);
	return 0;
}

static NOINLINE int cmd_anon(void)
{
	return map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1);
}

static NOINLINE int cmd_reserve(void)
{
	return map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 1);
}

static NOINLINE int cmd_shared(void)
{
	return map(MAP_SHARED | MAP_ANONYMOUS, -1, 1);
}

static NOINLINE int cmd_hugetlb(void)
{
	return map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
}

static NOINLINE int cmd_populate(void)
{
	return map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

static NOINLINE int map_memfd(int flags)
{
	int fd = memfd_create("moves", MFD_CLOEXEC);

	return fd < 0 || ftruncate(fd, (off_t)whole_pages(arg[1])) ? -1 : map(flags, fd, 1);
}

static NOINLINE int cmd_memfd(void)
{
	return map_memfd(MAP_SHARED);
}

static NOINLINE int cmd_memfd_private(void)
{
	return map_memfd(MAP_PRIVATE);
}

static NOINLINE int map_path(int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	off_t len;

	if (fd < 0)
		return -1;
	len = lseek(fd, 0, SEEK_END);
	arg[1] = (size_t)len;
	return len <= 0 ? fail(EINVAL) : map(flags, fd, 0);
}

static NOINLINE int cmd_mapfile(void)
{
	return map_path(MAP_SHARED);
}

static NOINLINE int cmd_mapprivate(void)
{
	return map_path(MAP_PRIVATE);
}

// The part of a slot selected by `S OFF LEN`.
static unsigned char *part(void)
{
	struct slot *s = &slots[arg[0]];

	if (!s->addr || arg[1] > s->len || arg[2] > s->len - arg[1]) {
		errno = ERANGE;
		return NULL;
	}
	return s->addr + arg[1];
}

// Inlined, so that the stores belong to the command.
static ALWAYS_INLINE int store_part(void)
{
	unsigned char *p = part();

	if (!p)
		return -1;
	store_each_page(p, arg[2]);
	return 0;
}

static NOINLINE int cmd_touch(void)
{
	return store_part();
}

static NOINLINE int cmd_again(void)
{
	return store_part();
}

static NOINLINE int cmd_number(void)
{
	unsigned char *p = part();

	if (!p)
		return -1;
	keep_frame();
	for (size_t at = 0; at < arg[2]; at += page_size)
		*(volatile size_t *)(p + at) = 0x100000 + at;
	return 0;
}

static NOINLINE int cmd_look(void)
{
	volatile unsigned char *p = part();

	if (!p)
		return -1;
	keep_frame();
	for (size_t at = 0; at < arg[2]; at += page_size)
		sink = p[at];
	return 0;
}

static NOINLINE int cmd_fill(void)
{
	unsigned char *p = part();
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	size_t done = 0;

	while (p && fd >= 0 && done < arg[2]) {
		ssize_t n = read(fd, p + done, arg[2] - done);

		if (n <= 0)
			break;
		done += (size_t)n;
	}
	close(fd);
	return p && done == arg[2] ? 0 : -1;
}

static NOINLINE int cmd_advise(void)
{
	unsigned char *p = part();

	return p ? madvise(p, arg[2], (int)arg[3]) : -1;
}

static NOINLINE int cmd_lock(void)
{
	unsigned char *p = part();

	return p ? mlock(p, arg[2]) : -1;
}

static NOINLINE int cmd_unlock(void)
{
	unsigned char *p = part();

	return p ? munlock(p, arg[2]) : -1;
}

static NOINLINE int cmd_protect(void)
{
	unsigned char *p = part();

	return p ? mprotect(p, arg[2], (int)arg[3]) : -1;
}

static NOINLINE int cmd_unmap(void)
{
	struct slot *s = &slots[arg[0]];
	unsigned char *p = part();

	if (!p || munmap(p, arg[2]))
		return -1;
	if (arg[2] == s->len) {
		if (s->fd >= 0)
			close(s->fd);
		s->addr = NULL;
	}
	return 0;
}

static NOINLINE int cmd_move(void)
{
	struct slot *s = &slots[arg[0]];
	void *to;

	if (!s->addr)
		return fail(ENOENT);
	to = free_range(s->len);
	if (!to)
		return -1;
	return keep(s, mremap(s->addr, s->len, s->len, MREMAP_MAYMOVE | MREMAP_FIXED, to), s->len, s->fd);
}

static NOINLINE int cmd_grow(void)
{
	struct slot *s = &slots[arg[0]];
	size_t len = s->len + whole_pages(arg[1]);

	if (!s->addr)
		return fail(ENOENT);
	if (s->fd >= 0 && ftruncate(s->fd, (off_t)len))
		return -1;
	return keep(s, mremap(s->addr, s->len, len, MREMAP_MAYMOVE), len, s->fd);
}

static NOINLINE int cmd_shrink(void)
{
	struct slot *s = &slots[arg[0]];
	size_t len = s->len - whole_pages(arg[1]);

	if (!s->addr || arg[1] >= s->len)
		return fail(ENOENT);
	return keep(s, mremap(s->addr, s->len, len, 0), len, s->fd);
}

static NOINLINE int cmd_remove_range(void)
{
	return fallocate(slots[arg[0]].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)arg[1], (off_t)arg[2]);
}

static NOINLINE int cmd_memfd_write(void)
{
	struct slot *s = &slots[arg[0]];

	if (s->addr)
		return fail(EBUSY);
	s->fd = memfd_create("unmapped", MFD_CLOEXEC);
	for (size_t done = 0; s->fd >= 0 && done < arg[1]; done += BLOCK)
		if (write(s->fd, io_block, BLOCK) != BLOCK)
			return -1;
	return s->fd < 0 ? -1 : 0;
}

// Resolves each userfaultfd fault with UFFDIO_COPY.
static NOINLINE void *serve_uffd(void *fd)
{
	struct uffd_msg msg;

	while (read((int)(intptr_t)fd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_copy copy = {
			.dst = msg.arg.pagefault.address & ~(page_size - 1),
			.src = (uintptr_t)io_block & ~(page_size - 1),
			.len = page_size,
		};

		usleep(arg[2] * 1000);
		ioctl((int)(intptr_t)fd, UFFDIO_COPY, &copy);
	}
	return NULL;
}

static NOINLINE int cmd_uffd(void)
{
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	pthread_t thread;

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1))
		return -1;
	range.range.start = (uintptr_t)slots[arg[0]].addr;
	range.range.len = slots[arg[0]].len;
	if (ioctl(fd, UFFDIO_REGISTER, &range) || pthread_create(&thread, NULL, serve_uffd, (void *)(intptr_t)fd))
		return -1;
	store_each_page(slots[arg[0]].addr, slots[arg[0]].len);
	return 0;
}

static NOINLINE int cmd_stack(void)
{
	volatile unsigned char *frame = __builtin_alloca(arg[0] * 1024);

	keep_frame();
	for (size_t at = arg[0] * 1024; at >= page_size; at -= page_size)
		frame[at - page_size] = 1;
	return 0;
}

static NOINLINE int cmd_heap(void)
{
	block = malloc(arg[0]);
	block_len = arg[0];
	if (!block)
		return -1;
	store_each_page(block, block_len);
	return 0;
}

static NOINLINE int cmd_realloc(void)
{
	unsigned char *p = realloc(block, arg[0]);

	if (!p)
		return -1;
	block = p;
	if (arg[0] > block_len)
		store_each_page(block + block_len, arg[0] - block_len);
	block_len = arg[0];
	return 0;
}

static NOINLINE int cmd_free(void)
{
	free(block);
	block = NULL;
	return 0;
}

// Target of siglongjmp when a command touches an invalid address. A child that does so simply dies.
static sigjmp_buf before_command;

static void bad_address(int signal)
{
	(void)signal;
	errno = EFAULT;
	siglongjmp(before_command, 1);
}

static void on_bad_address(void (*handler)(int))
{
	signal(SIGSEGV, handler);
	signal(SIGBUS, handler);
}

static NOINLINE void child_touches(unsigned char *p, size_t len)
{
	store_each_page(p, len);
}

static NOINLINE int cmd_end(void)
{
	int status;

	if (!child_count)
		return fail(ENOENT);
	close(children[--child_count].end);
	return waitpid(children[child_count].pid, &status, 0) > 0 && !status ? 0 : fail(ECHILD);
}

static NOINLINE int cmd_fork(void)
{
	unsigned char *p = part();
	int ready[2], end[2];
	pid_t pid;
	char byte;

	if (!p || child_count == MAX_CHILDREN)
		return p ? fail(EBUSY) : -1;
	if (pipe2(ready, O_CLOEXEC) || pipe2(end, O_CLOEXEC))
		return -1;
	pid = fork();
	if (pid == 0) {
		for (int i = 0; i < child_count; i++)
			close(children[i].end);
		close(ready[0]);
		close(end[1]);
		on_bad_address(SIG_DFL);
		child_touches(p, arg[2]);
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		_exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(ready[1]);
	close(end[0]);
	if (pid > 0) {
		children[child_count].pid = pid;
		children[child_count++].end = end[1];
	}
	byte = pid > 0 && read(ready[0], &byte, 1) == 1;
	close(ready[0]);
	if (byte)
		return 0;
	if (pid > 0)
		cmd_end();
	return fail(ECHILD);
}

static NOINLINE int cmd_vfork(void)
{
	unsigned char *p = part();
	volatile size_t len = arg[2];
	int status;
	pid_t pid;

	if (!p)
		return -1;
	pid = vfork();
	if (pid == 0) {
		// A vfork child has its own copy of the signal handlers.
		on_bad_address(SIG_DFL);
		child_touches(p, len);
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status ? 0 : -1;
}

static int clone_body(void *p)
{
	on_bad_address(SIG_DFL);
	child_touches(p, arg[2]);
	return 0;
}

static NOINLINE int cmd_clone_vm(void)
{
	static unsigned char stack[BLOCK] __attribute__((aligned(16)));
	unsigned char *p = part();
	int status;
	pid_t pid;

	if (!p)
		return -1;
	pid = clone(clone_body, stack + sizeof(stack), CLONE_VM | SIGCHLD, p);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status ? 0 : -1;
}

static NOINLINE int cmd_exec(void)
{
	char *args[] = { program_args[0], "--answer", NULL };

	return execv("/proc/self/exe", args);
}

static NOINLINE ssize_t read_block(int fd, size_t len)
{
	ssize_t n = read(fd, io_block, len < BLOCK ? len : BLOCK);

	keep_frame();
	return n;
}

static NOINLINE ssize_t write_block(int fd, size_t len)
{
	ssize_t n = write(fd, io_block, len < BLOCK ? len : BLOCK);

	keep_frame();
	return n;
}

static int transfer(const char *name, int flags, ssize_t (*step)(int, size_t), size_t off, size_t len)
{
	int fd = open(name, flags | O_CLOEXEC, 0600);
	ssize_t n = 1;

	if (fd < 0 || lseek(fd, (off_t)off, SEEK_SET) < 0)
		return -1;
	while (len && (n = step(fd, len)) > 0)
		len -= (size_t)n < len ? (size_t)n : len;
	close(fd);
	return n < 0 ? -1 : 0;
}

static NOINLINE int cmd_read(void)
{
	return transfer(path, O_RDONLY, read_block, arg[0], arg[1]);
}

static NOINLINE int cmd_write(void)
{
	return transfer(path, O_WRONLY | O_CREAT, write_block, arg[0], arg[1]);
}

static NOINLINE int cmd_direct(void)
{
	return transfer(path, O_RDONLY | O_DIRECT, read_block, 0, arg[0]);
}

static NOINLINE int cmd_readahead(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t done = fd < 0 ? -1 : readahead(fd, 0, arg[0]);

	close(fd);
	return (int)done;
}

static NOINLINE int cmd_splice(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	size_t left = arg[0];
	int pipes[2];
	ssize_t n = 1;

	if (fd < 0 || null < 0 || pipe2(pipes, O_CLOEXEC))
		return -1;
	while (left && (n = splice(fd, NULL, pipes[1], NULL, BLOCK, 0)) > 0) {
		left -= (size_t)n < left ? (size_t)n : left;
		while (n > 0) {
			ssize_t out = splice(pipes[0], NULL, null, NULL, (size_t)n, 0);

			if (out <= 0)
				return -1;
			n -= out;
		}
	}
	close(fd);
	close(null);
	close(pipes[0]);
	close(pipes[1]);
	return n < 0 ? -1 : 0;
}

static NOINLINE int cmd_copy(void)
{
	int from = open(path, O_RDONLY | O_CLOEXEC), to = open(path2, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	size_t left = arg[0];
	ssize_t n = 1;

	if (from < 0 || to < 0)
		return -1;
	while (left && (n = copy_file_range(from, NULL, to, NULL, left, 0)) > 0)
		left -= (size_t)n;
	close(from);
	close(to);
	return n < 0 || left ? -1 : 0;
}

static NOINLINE int cmd_truncate(void)
{
	return truncate(path, (off_t)arg[0]);
}

static NOINLINE int cmd_punch(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	int done = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)arg[0], (off_t)arg[1]);

	close(fd);
	return done;
}

static NOINLINE int cmd_sync(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	int done = fsync(fd);

	close(fd);
	return done;
}

static NOINLINE int cmd_exit(void)
{
	_exit((int)arg[0]);
}

// Parameters of a command: `s` a slot, `n` a number, `p` a path.
struct command {
	const char *name;
	const char *takes;
	int (*run)(void);
};

#define COMMAND(name, takes) { #name, takes, cmd_##name }

// The kernel gives this process no huge pages from now on.
static NOINLINE int cmd_no_huge_pages(void)
{
	return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

static const struct command commands[] = {
	COMMAND(anon, "sn"), COMMAND(reserve, "sn"), COMMAND(shared, "sn"), COMMAND(memfd, "sn"),
	COMMAND(memfd_private, "sn"),
	COMMAND(hugetlb, "sn"), COMMAND(populate, "sn"), COMMAND(mapfile, "sp"), COMMAND(mapprivate, "sp"),
	COMMAND(touch, "snn"), COMMAND(again, "snn"), COMMAND(look, "snn"), COMMAND(number, "snn"),
	COMMAND(fill, "snn"), COMMAND(advise, "snnn"), COMMAND(lock, "snn"), COMMAND(unlock, "snn"),
	COMMAND(protect, "snnn"), COMMAND(unmap, "snn"), COMMAND(move, "s"), COMMAND(grow, "sn"),
	COMMAND(shrink, "sn"), COMMAND(remove_range, "snn"), COMMAND(memfd_write, "sn"), COMMAND(uffd, "snn"),
	COMMAND(stack, "n"), COMMAND(heap, "n"), COMMAND(realloc, "n"), COMMAND(free, ""), COMMAND(no_huge_pages, ""),
	COMMAND(fork, "snn"), COMMAND(end, ""), COMMAND(vfork, "snn"), COMMAND(clone_vm, "snn"),
	COMMAND(exec, ""), COMMAND(read, "pnn"), COMMAND(write, "pnn"), COMMAND(direct, "pn"),
	COMMAND(readahead, "pn"), COMMAND(splice, "pn"), COMMAND(copy, "ppn"), COMMAND(truncate, "pn"),
	COMMAND(punch, "pnn"), COMMAND(sync, "p"), COMMAND(exit, "n"),
};

static int take_arguments(const char *takes, char **save)
{
	size_t *to = arg;

	path = path2 = NULL;
	for (; *takes; takes++) {
		char *word = strtok_r(NULL, " ", save);

		if (*takes == 'p') {
			*(path ? &path2 : &path) = word;
			if (!word)
				return fail(EINVAL);
		} else if (number(word, to) || (*takes == 's' && *to >= SLOTS)) {
			return fail(EINVAL);
		} else {
			to++;
		}
	}
	return strtok_r(NULL, " ", save) ? fail(E2BIG) : 0;
}

static NOINLINE int run_command(char *line)
{
	char *save = NULL;
	char *name = strtok_r(line, " ", &save);

	for (size_t i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(name, commands[i].name))
			return take_arguments(commands[i].takes, &save) ? -1 : commands[i].run();
	return fail(ENOSYS);
}

static NOINLINE int serve(void)
{
	char line[2 * PATH_MAX + 64];

	while (read_line(line, sizeof(line)))
		answer(sigsetjmp(before_command, 1) ? -1 : run_command(line));
	return 0;
}

static int open_as(const char *name, int flags, int fd)
{
	int opened = open(name, flags);

	return opened < 0 || dup2(opened, fd) < 0 || close(opened) ? -1 : 0;
}

int main(int argc, char **argv)
{
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	program_args = argv;
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	on_bad_address(bad_address);
	if (argc > 2 && (open_as(argv[1], O_RDONLY, STDIN_FILENO) || open_as(argv[2], O_WRONLY, STDOUT_FILENO)))
		return 1;
	// Faults in the function's code: if the C library is on a tmpfs, its pages count as shared memory.
	close(memfd_create("", 0));
	answer(0);
	return serve();
}
