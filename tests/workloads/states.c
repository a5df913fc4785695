// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A process in one of the states that a thread can be in. It checks its memory all the time, and counts how often.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -o states states.c
// Run:
//   states STATE BEATS [DIRECTORY]
//
//   plain      a thread that sleeps, and one that computes
//   vfork      it is in vfork most of the time, and waits for its child
//   disk       it waits for a slow file system most of the time, which is mounted on DIRECTORY for a moment (as root)
//   faults     it handles its page faults (userfaultfd) and forks, in a thread
//   outside    the same, but another process does, a second after it has heard of it
//   traced     another process traces it and stops it all the time
//   handler    it handles signals most of the time
//   altstack   the same, on a stack of their own
//   rseq       it is in a restartable sequence most of the time
//   threads    threads come and go
//   leader     its first thread has ended
//   exec       it executes itself again and again
//   strict     seccomp's strict mode
//
// BEATS is a file, which it maps: see `struct beats`. It prints `ready PID` and ends at the end of its input, with status 0.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "children.h"
#include "common.h"
#include "fuse.h"

enum { BLOCKS = 400, BLOCK = 64 * 1024, NAP = 2000, LONG = 60000 };

struct beats {
	/* How often memory was found to be right, and something to be wrong. */
	_Atomic uint64_t beats, wrong;
	/* The longest time between two beats, in microseconds. */
	_Atomic uint64_t longest;
	/* When the last one was. */
	_Atomic uint64_t last;
};

static struct beats *beats;
static unsigned char *blocks[BLOCKS];

static uint64_t micros(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void wrong(void)
{
	beats->wrong++;
}

static void fill(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = malloc(BLOCK);
		if (!blocks[i])
			die("malloc");
		memset(blocks[i], i & 0xff, BLOCK);
	}
}

/* Checks a part of the memory. */
static void check(void)
{
	unsigned int n = (unsigned int)(beats->beats % BLOCKS);

	for (int i = 0; i < BLOCK; i += 64)
		if (blocks[n][i] != (n & 0xff))
			wrong();
	beats->beats++;
}

static void beat(void)
{
	uint64_t at = micros(), gap = beats->last ? at - beats->last : 0;

	check();
	if (gap > beats->longest)
		beats->longest = gap;
	beats->last = at;
}

static void beat_for_ever(void)
{
	for (;;) {
		beat();
		usleep(NAP);
	}
}

static void *beating(void *unused)
{
	beat_for_ever();
	return unused;
}

static void start(void *(*body)(void *), void *with)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, body, with))
		die("pthread_create");
	pthread_detach(thread);
}

static void *compute(void *unused)
{
	for (volatile unsigned long n = 0;; n++)
		if (n % 1000000 == 0)
			usleep(1);
	return unused;
}

static void in_vfork(void)
{
	for (;;) {
		int status = 0;
		pid_t pid = vfork();

		if (pid == 0) {
			usleep(LONG);
			_exit(7);
		}
		if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
			wrong();
		beat();
		usleep(NAP);
	}
}

static void on_disk(const char *directory)
{
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), cached, direct;
	char byte;

	if (fuse < 0)
		die("/dev/fuse");
	mount_file(fuse, directory);
	if (child() == 0) {
		serve(fuse, -1, LONG);
		_exit(0);
	}
	close(fuse);
	open_file(directory, &cached, &direct);
	for (;;) {
		if (posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED) || pread(cached, &byte, 1, 0) != 1)
			wrong();
		beat();
		usleep(NAP);
	}
}

/* Fills pages and hears of forks. */
static void *handle_faults(void *with)
{
	int *faults = with;
	struct uffd_msg message;

	for (;;) {
		if (read(*faults, &message, sizeof(message)) != sizeof(message)) {
			usleep(NAP);
		} else if (message.event == UFFD_EVENT_PAGEFAULT) {
			struct uffdio_zeropage zero = {
				.range = { message.arg.pagefault.address & ~(page_size - 1), page_size },
			};

			ioctl(*faults, UFFDIO_ZEROPAGE, &zero);
		} else if (message.event == UFFD_EVENT_FORK) {
			close((int)message.arg.fork.ufd);
		}
	}
	return NULL;
}

static int open_faults(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK };
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api))
		die("userfaultfd");
	return faults;
}

static unsigned char *with_faults(int faults)
{
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	unsigned char *pages = map_memory(256 * page_size);

	range.range = (struct uffdio_range){ (uintptr_t)pages, 256 * page_size };
	if (ioctl(faults, UFFDIO_REGISTER, &range))
		die("userfaultfd");
	return pages;
}

static void in_faults(void)
{
	static int faults;
	unsigned char *pages;

	faults = open_faults();
	pages = with_faults(faults);
	start(handle_faults, &faults);
	for (size_t n = 0;; n = (n + 1) % 256) {
		if (pages[n * page_size])
			wrong();
		drop_pages(pages + n * page_size, page_size);
		beat();
		usleep(NAP);
	}
}

/* A child has the file alone. (No memory is registered when it is made.) */
static void outside(void)
{
	int faults = open_faults();
	struct uffd_msg message;

	if (child() == 0) {
		struct pollfd one = { .fd = faults, .events = POLLIN };

		while (poll(&one, 1, -1) == 1) {
			usleep(1000000);
			if (read(faults, &message, sizeof(message)) == sizeof(message) &&
			    message.event == UFFD_EVENT_FORK)
				close((int)message.arg.fork.ufd);
		}
		_exit(0);
	}
	with_faults(faults);
	close(faults);
	start(beating, NULL);
	for (;;)
		pause();
}

static void trace(pid_t pid)
{
	int status, stop;

	if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_EXITKILL))
		die("ptrace");
	for (;;) {
		usleep(NAP);
		ptrace(PTRACE_INTERRUPT, pid, 0, 0);
		if (waitpid(pid, &status, __WALL) != pid || WIFEXITED(status) || WIFSIGNALED(status))
			_exit(0);
		stop = WSTOPSIG(status);
		usleep(NAP);
		ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : stop);
	}
}

/* Has a child trace this process. */
static void in_trace(void)
{
	int go[2];
	char byte;
	pid_t pid = getpid();

	if (pipe(go))
		die("pipe");
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	if (fork() == 0) {
		if (write(go[1], "", 1) != 1)
			_exit(1);
		trace(pid);
	}
	if (read(go[0], &byte, 1) != 1)
		die("read");
	start(beating, NULL);
	beat_for_ever();
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
	(void)signal;
	for (volatile int n = 0; n < 300000; n++)
		;
	handled++;
}

static void in_handler(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART | flags };
	struct itimerval each = { { 0, NAP }, { 0, NAP } };
	static char stack[1 << 16];
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) };

	if (sigaltstack(&alternate, NULL) || sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &each, NULL))
		die("sigaction");
	for (sig_atomic_t before = 0;; before = handled) {
		beat();
		while (handled == before)
			;
	}
}

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>

/* Spins in a restartable sequence, and counts once at its end. Returns whether it came to its end. */
static int sequence(volatile struct rseq *rseq, volatile uint64_t *count)
{
	uint64_t spins = 200000;

	__asm__ goto(
		".pushsection __rseq_cs, \"aw\"\n"
		".balign 32\n"
		"3: .long 0, 0\n"
		".quad 1f, 2f - 1f, 4f\n"
		".popsection\n"
		"leaq 3b(%%rip), %%rax\n"
		"movq %%rax, %[cs]\n"
		"1: subq $1, %[spins]\n"
		"jnz 1b\n"
		"addq $1, %[count]\n"
		"2: jmp 5f\n"
		".byte 0x0f, 0xb9, 0x3d\n"
		".long 0x53053053\n"
		"4: jmp %l[aborted]\n"
		"5:\n"
		:
		: [cs] "m"(rseq->rseq_cs), [spins] "r"(spins), [count] "m"(*count)
		: "rax", "memory", "cc"
		: aborted);
	rseq->rseq_cs = 0;
	return 1;
aborted:
	return 0;
}

static int has_sequences(void)
{
	return __rseq_size != 0;
}

static void in_sequence(void)
{
	volatile struct rseq *rseq =
		(volatile struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	static volatile uint64_t count;

	for (uint64_t done = 0;; beat()) {
		done += (uint64_t)sequence(rseq, &count);
		if (count != done)
			wrong();
	}
}
#else
static int has_sequences(void)
{
	return 0;
}

static void in_sequence(void)
{
}
#endif

static void *ends_soon(void *unused)
{
	for (volatile int n = 0; n < 20000; n++)
		;
	return unused;
}

static void with_threads(void)
{
	for (;;) {
		pthread_t threads[4];

		for (int n = 0; n < 4; n++)
			if (pthread_create(&threads[n], NULL, ends_soon, NULL))
				wrong();
		for (int n = 0; n < 4; n++)
			if (pthread_join(threads[n], NULL))
				wrong();
		beat();
	}
}

static void executes(char **argv)
{
	// Longer than a snapshot takes: one that is disturbed by it is taken again, three times in all.
	for (int n = 0; n < 400; n++) {
		beat();
		usleep(NAP);
	}
	execv("/proc/self/exe", argv);
	die("exec");
}

static void in_strict_mode(void)
{
	int ticks[2];
	char byte;

	if (pipe(ticks))
		die("pipe");
	if (child() == 0)
		for (;;) {
			usleep(NAP);
			if (write(ticks[1], "", 1) != 1)
				_exit(0);
		}
	close(ticks[1]);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		die("prctl");
	/* It may not read the clock either. */
	while (read(ticks[0], &byte, 1) == 1)
		check();
	syscall(SYS_exit, 1);
}

/* Ends the process with its input. */
static void *wait_for_end(void *unused)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
	return unused;
}

int main(int argc, char **argv)
{
	const char *state = argc > 2 ? argv[1] : "";
	int file = argc > 2 ? open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	int is = 1;

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (file < 0 || ftruncate(file, sizeof(*beats)))
		die("usage: states STATE BEATS [DIRECTORY]");
	beats = mmap(NULL, sizeof(*beats), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (beats == MAP_FAILED)
		die("mmap");
	close(file);
	fill();
	if (!strcmp(state, "rseq") && !has_sequences()) {
		puts("the C library has registered no restartable sequences");
		return 0;
	}
	if (!beats->beats) {
		printf("ready %d\n", getpid());
		fflush(stdout);
	}
	if (!strcmp(state, "vfork"))
		in_vfork();
	else if (!strcmp(state, "disk"))
		on_disk(argc > 3 ? argv[3] : "");
	else if (!strcmp(state, "handler"))
		in_handler(0);
	else if (!strcmp(state, "altstack"))
		in_handler(SA_ONSTACK);
	else if (!strcmp(state, "rseq"))
		in_sequence();
	else if (!strcmp(state, "exec"))
		executes(argv);
	else if (!strcmp(state, "strict"))
		in_strict_mode();
	else if (!strcmp(state, "traced"))
		in_trace();
	else if (!strcmp(state, "outside"))
		outside();
	else
		is = 0;
	if (is)
		return 1;
	start(wait_for_end, NULL);
	if (!strcmp(state, "faults"))
		in_faults();
	else if (!strcmp(state, "threads"))
		with_threads();
	else if (!strcmp(state, "plain"))
		start(compute, NULL);
	else if (strcmp(state, "leader"))
		die("no such state");
	start(beating, NULL);
	if (!strcmp(state, "leader"))
		pthread_exit(NULL);
	for (;;)
		pause();
}
