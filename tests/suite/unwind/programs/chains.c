/*
 * Call chains of every kind that is hard to walk without frame pointers. At the end of each, a separate
 * function touches 64 KiB. Compiled by tests/suite/unwind with -O2 -fomit-frame-pointer; the deep chains are in
 * deep.inc, which the test writes.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 65536
#define PAGE 4096
#define NOINLINE __attribute__((noinline, noclone))
/* After a call: prevents a tail call. */
#define STAY() __asm__ volatile("" ::: "memory")

static char *fresh(void)
{
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		_exit(3);
	return p;
}

/* Volatile, because signal handlers read it. */
static char *volatile buffer;

static inline __attribute__((always_inline)) void touch(void)
{
	volatile char *p = buffer;

	for (int i = 0; i < SIZE; i += PAGE)
		p[i] = 1;
}

#define LEAF(name) \
	NOINLINE void name(void) \
	{ \
		touch(); \
		STAY(); \
	}

#if __has_include("deep.inc")
#include "deep.inc"
#else /* compiled on its own, for its warnings */
LEAF(a0)
LEAF(b0)
#endif

NOINLINE void deep100_case(void) { a0(); STAY(); }
NOINLINE void deep200_case(void) { b0(); STAY(); }

LEAF(huge_frame_leaf)
NOINLINE void huge_frame(void)
{
	volatile char frame[540000];

	frame[sizeof(frame) - 1] = 1;
	huge_frame_leaf();
	frame[0] = frame[sizeof(frame) - 1];
}
NOINLINE void huge_frame_case(void) { huge_frame(); STAY(); }

LEAF(realigned_leaf)
NOINLINE __attribute__((force_align_arg_pointer)) void realigned(int n)
{
	_Alignas(64) volatile char aligned[256];
	volatile char *more = alloca(n);

	aligned[0] = more[0] = 1;
	realigned_leaf();
	aligned[1] = more[n - 1];
	if ((uintptr_t)aligned & 63)
		_exit(4);
}
NOINLINE void realigned_case(int n) { realigned(n); STAY(); }

LEAF(alloca_leaf)
NOINLINE void alloca_frame(int n)
{
	volatile char *more = alloca(n);

	more[0] = 1;
	alloca_leaf();
	more[n - 1] = more[0];
}
NOINLINE void alloca_case(int n) { alloca_frame(n); STAY(); }

static int touched;
LEAF(qsort_leaf)
NOINLINE int qsort_callback(const void *a, const void *b)
{
	if (!touched++)
		qsort_leaf();
	return *(const int *)a - *(const int *)b;
}
NOINLINE void qsort_case(void)
{
	int values[] = { 3, 1, 2 };

	qsort(values, 3, sizeof(int), qsort_callback);
	STAY();
}

LEAF(bsearch_leaf)
static int found;
NOINLINE int bsearch_callback(const void *a, const void *b)
{
	if (!found++)
		bsearch_leaf();
	return *(const int *)a - *(const int *)b;
}
NOINLINE void bsearch_case(int key)
{
	static int values[100];

	/* By a pointer, because the header would inline it. */
	void *(*volatile search)(const void *, const void *, size_t, size_t,
				 int (*)(const void *, const void *)) = bsearch;
	search(&key, values, 100, sizeof(int), bsearch_callback);
	STAY();
}

LEAF(raised_leaf)
NOINLINE void raised_handler(int sig) { (void)sig; raised_leaf(); STAY(); }
NOINLINE void raised_case(void)
{
	signal(SIGUSR1, raised_handler);
	raise(SIGUSR1);
	STAY();
}

/* A signal in the middle of a function whose CFA depends on the frame pointer register. */
static sigjmp_buf out;
LEAF(fault_leaf)
NOINLINE void fault_handler(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info, (void)context;
	fault_leaf();
	siglongjmp(out, 1);
}
static volatile int *volatile nowhere;
NOINLINE void faulting(int n)
{
	volatile char *more = alloca(n);

	more[0] = 1;
	*nowhere = 1;
	more[1] = 1;
}
NOINLINE void fault_case(int n)
{
	struct sigaction action = { .sa_sigaction = fault_handler, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &action, NULL);
	if (!sigsetjmp(out, 1))
		faulting(n);
	STAY();
}

LEAF(altstack_leaf)
NOINLINE void altstack_handler(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info, (void)context;
	altstack_leaf();
	siglongjmp(out, 1);
}
/* A leaf without a frame: the interrupted instruction is one of its first. */
NOINLINE void bare_fault(volatile int *at) { *at = 1; }
NOINLINE void altstack_case(void)
{
	struct sigaction action = { .sa_sigaction = altstack_handler,
				    .sa_flags = SA_SIGINFO | SA_ONSTACK };
	stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };

	sigaltstack(&stack, NULL);
	sigaction(SIGSEGV, &action, NULL);
	if (!sigsetjmp(out, 1))
		bare_fault(NULL);
	STAY();
}

LEAF(vfork_leaf)
NOINLINE void vfork_child(void) { vfork_leaf(); STAY(); }
NOINLINE void vfork_case(void)
{
	pid_t pid = vfork();

	if (pid == 0) {
		vfork_child();
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	waitpid(pid, NULL, 0);
}

LEAF(clone_leaf)
NOINLINE int clone_child(void *arg)
{
	(void)arg;
	clone_leaf();
	_exit(0);
}
NOINLINE void clone_case(void)
{
	char *stack = malloc(1 << 16);
	pid_t pid = clone(clone_child, stack + (1 << 16), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);

	waitpid(pid, NULL, 0);
}

/* The child keeps its pages until the parent has ended. */
LEAF(fork_leaf)
NOINLINE void fork_child(int ready, int wait_for)
{
	char byte;

	fork_leaf();
	close(ready);
	while (read(wait_for, &byte, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}
NOINLINE void fork_case(void)
{
	int ends[2], ready[2];
	char byte;

	if (pipe(ends) || pipe(ready))
		_exit(5);
	if (fork() == 0) {
		close(ends[1]);
		close(ready[0]);
		fork_child(ready[1], ends[0]);
	}
	close(ends[0]);
	close(ready[1]);
	while (read(ready[0], &byte, 1) < 0 && errno == EINTR)
		;
}

LEAF(tail_leaf)
NOINLINE void tail_two(void) { tail_leaf(); }
NOINLINE void tail_one(void) { tail_two(); }
NOINLINE void tail_case(void) { tail_one(); STAY(); }

LEAF(recursion_leaf)
NOINLINE void recursion(int n)
{
	if (n == 0)
		recursion_leaf();
	else
		recursion(n - 1);
	STAY();
}
NOINLINE void recursion_case(void) { recursion(29); STAY(); }

LEAF(thread_leaf)
NOINLINE void *thread_start(void *arg) { thread_leaf(); STAY(); return arg; }
NOINLINE void thread_case(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_start, NULL);
	pthread_join(thread, NULL);
}

NOINLINE void read_leaf(void)
{
	int fd = open("/dev/zero", O_RDONLY);

	if (read(fd, buffer, SIZE) != SIZE)
		_exit(6);
	close(fd);
}
NOINLINE void read_case(void) { read_leaf(); STAY(); }

NOINLINE void populate_leaf(void)
{
	munmap(buffer, SIZE);
	buffer = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	STAY();
}
NOINLINE void populate_case(void) { populate_leaf(); STAY(); }

NOINLINE void write_leaf(const char *path)
{
	static const char bytes[SIZE];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (write(fd, bytes, SIZE) != SIZE)
		_exit(7);
	STAY();
}
NOINLINE void write_case(const char *path) { write_leaf(path); STAY(); }

#define RUN(call) \
	do { \
		buffer = fresh(); \
		call; \
	} while (0)

/* Has the stack's pages come in, or one of them may do so below the deep recursions, and count as theirs. */
static NOINLINE void touch_stack(void)
{
	char pages[64 * 1024];

	for (size_t i = 0; i < sizeof(pages); i += 4096)
		((volatile char *)pages)[i] = 1;
}

/* `chains CACHE_FILE`: all cases but the fork; `chains fork`: the fork. */
int main(int argc, char **argv)
{
	if (argc != 2)
		return 8;
	if (!strcmp(argv[1], "fork")) {
		RUN(fork_case());
		return 0;
	}
	touch_stack();
	RUN(deep100_case());
	RUN(deep200_case());
	RUN(huge_frame_case());
	RUN(realigned_case(argc * 100));
	RUN(alloca_case(argc * 100));
	RUN(qsort_case());
	RUN(bsearch_case(argc));
	RUN(raised_case());
	RUN(fault_case(argc * 100));
	RUN(altstack_case());
	RUN(vfork_case());
	RUN(clone_case());
	RUN(tail_case());
	RUN(recursion_case());
	RUN(thread_case());
	RUN(read_case());
	RUN(populate_case());
	RUN(write_case(argv[1]));
	return 0;
}
