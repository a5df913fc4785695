// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A process that notices what is done to it: threads in many states, each of which checks what it gets back.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls -o sentinel sentinel.c
//
//   sentinel MIB
//
// MIB is how much memory it keeps besides. A line on stdin is answered with figures as JSON: what went wrong, how often waiting ended
// early (EINTR), how often each thread went round, and how many children there are that a wait for any child would find.
// An `l`, followed by instructions in hexadecimal, installs a seccomp filter for its first thread; an `L` for all threads.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "common.h"

enum { THREADS = 5 };

static atomic_long wrong, early, signals, rounds[THREADS];
static int fds[2];

// Values in vector and general registers over a time in which it may be stopped.
static NOINLINE double spin(double x, long n)
{
	double a = x, b = x + 1, c = x + 2, d = x + 3;
	unsigned long h = n, g = n * 3;

	for (long i = 0; i != 20000; i++) {
		a = a * 1.0000001 + b;
		b = b * 0.9999999 - c;
		c = c * 1.0000002 + d;
		d = d * 0.9999998 - a * 1e-9;
		h = h * 6364136223846793005UL + g;
		g ^= h >> 7;
	}
	return a + b + c + d + (double)(h ^ g);
}

static void *compute(void *arg)
{
	volatile double start = 1.5;
	double first = spin(start, 77);

	(void)arg;
	for (;; rounds[0]++)
		if (spin(start, 77) != first)
			wrong++;
	return NULL;
}

static void *sleeps(void *arg)
{
	(void)arg;
	for (;; rounds[1]++) {
		struct timespec time = { .tv_nsec = 3000000 };

		if (nanosleep(&time, NULL)) {
			if (errno == EINTR)
				early++;
			else
				wrong++;
		}
	}
	return NULL;
}

static void *polls(void *arg)
{
	(void)arg;
	for (;; rounds[2]++) {
		struct pollfd pfd = { .fd = fds[0], .events = POLLIN };
		struct timespec time = { .tv_nsec = 5000000 };
		sigset_t none;
		int got;

		sigemptyset(&none);
		sigaddset(&none, SIGALRM);
		got = rounds[2] % 2 ? poll(&pfd, 1, 5) : ppoll(&pfd, 1, &time, &none);
		if (got < 0 && errno == EINTR)
			early++;
		else if (got)
			wrong++;
	}
	return NULL;
}

static void *allocates(void *arg)
{
	unsigned seed = 5;
	void *slots[256] = { 0 };

	(void)arg;
	for (;; rounds[3]++) {
		void **slot = &slots[rand_r(&seed) % 256];

		free(*slot);
		*slot = malloc(rand_r(&seed) % 5000 + 1);
		memset(*slot, rand_r(&seed), 1);
	}
	return NULL;
}

// Signals arrive all the time; the handler counts them.
static void on_signal(int signal)
{
	(void)signal;
	signals++;
}

static void *waits(void *arg)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

	(void)arg;
	pthread_mutex_lock(&mutex);
	for (;; rounds[4]++) {
		struct timespec until;
		int got;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 2000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		got = pthread_cond_timedwait(&cond, &mutex, &until);
		if (got != ETIMEDOUT && got != 0)
			wrong++;
	}
	return NULL;
}

static void on_child(int signal)
{
	(void)signal;
	wrong++;
}

// The main thread alone gets the timer's signals: system calls of the others end early for no other reason than memprof.
static void restart_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct itimerval timer = { { 0, 7000 }, { 0, 7000 } };
	sigset_t alarm;

	sigaction(SIGALRM, &action, NULL);
	signal(SIGCHLD, on_child);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void filter(unsigned flags, const char *hex)
{
	unsigned long instructions[64];
	struct sock_fprog program = { 0, (struct sock_filter *)instructions };
	char *end;

	for (; program.len != 64; program.len++, hex = end) {
		instructions[program.len] = strtoul(hex, &end, 16);
		if (end == hex)
			break;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program))
		die("seccomp");
}

int main(int argc, char **argv)
{
	void *(*const does[THREADS])(void *) = { compute, sleeps, polls, allocates, waits };
	long mib = argc > 1 ? atol(argv[1]) : 0;
	pthread_t thread;
	sigset_t alarm;
	char line[2048];

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pipe(fds))
		die("pipe");
	for (long i = 0; i != mib * 16; i++)
		store_each_page(malloc(1 << 16), 1 << 16);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	for (int i = 0; i != THREADS; i++)
		if (pthread_create(&thread, NULL, does[i], NULL))
			die("pthread_create");
	restart_signals();
	while (fgets(line, sizeof(line), stdin)) {
		int children = waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;

		if (line[0] == 'l')
			filter(0, line + 1);
		if (line[0] == 'L')
			filter(SECCOMP_FILTER_FLAG_TSYNC, line + 1);
		printf("{\"wrong\":%ld,\"early\":%ld,\"signals\":%ld,\"children\":%d,\"rounds\":[%ld,%ld,%ld,%ld,%ld]}\n", wrong,
		       early, signals, children, rounds[0], rounds[1], rounds[2], rounds[3], rounds[4]);
	}
	return 0;
}
