/*
 * A library to preload into a program: interrupts its threads at random moments, STOPS times, wherever they are. The
 * signal's handler writes to a fresh page in stopped(), so that each interruption is a page fault with the interrupted
 * stack. Prints "stopped N" when all are done. With HOLD, each interruption prints "held THREAD" and stops the process, until
 * it is continued.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_THREADS = 64, LOOK_EVERY = 16, SHORTEST_NS = 100000, SPREAD_NS = 400000,
       BEFORE_NS = 500000000 };

static char *pages;
static long wanted, next_page;
static int hold;

/* On the interrupted thread's own stack. */
__attribute__((noinline)) void stopped(int number)
{
	long page = __atomic_fetch_add(&next_page, 1, __ATOMIC_RELAXED);

	(void)number;
	if (page >= wanted)
		return;
	*(volatile char *)(pages + page * PAGE) = 1;
	if (hold) {
		char text[32];
		int n = snprintf(text, sizeof(text), "held %ld\n", (long)syscall(SYS_gettid));

		if (write(1, text, n) == n)
			kill(getpid(), SIGSTOP);
	}
}

static uint64_t random_number(void)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int threads(pid_t *found)
{
	pid_t own = syscall(SYS_gettid);
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir && n < MAX_THREADS && (entry = readdir(dir))) {
		found[n] = atoi(entry->d_name);
		n += found[n] > 0 && found[n] != own;
	}
	if (dir)
		closedir(dir);
	return n;
}

static void *stop_threads(void *none)
{
	static pid_t found[MAX_THREADS];
	/* `env` has started this program: memprof has yet to find the interpreter in it. */
	const struct timespec before = { .tv_nsec = BEFORE_NS };
	char text[32];
	int n = 0;

	(void)none;
	nanosleep(&before, NULL);
	for (long i = 0; __atomic_load_n(&next_page, __ATOMIC_RELAXED) < wanted; i++) {
		struct timespec wait = { .tv_nsec = SHORTEST_NS + random_number() % SPREAD_NS };

		nanosleep(&wait, NULL);
		if (i % LOOK_EVERY == 0)
			n = threads(found);
		if (n)
			syscall(SYS_tgkill, getpid(), found[random_number() % n], SIGPROF);
	}
	n = snprintf(text, sizeof(text), "stopped %ld\n", wanted);
	return write(1, text, n) == n ? NULL : text;
}

__attribute__((constructor)) static void start(void)
{
	const char *text = getenv("STOPS");
	struct sigaction action = { .sa_handler = stopped, .sa_flags = SA_RESTART };
	pthread_t thread;
	sigset_t all, old;

	wanted = text ? atol(text) : 0;
	hold = getenv("HOLD") != NULL;
	if (wanted <= 0)
		return;
	/* Only this process. */
	unsetenv("LD_PRELOAD");
	unsetenv("STOPS");
	pages = mmap(NULL, wanted * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || madvise(pages, wanted * PAGE, MADV_NOHUGEPAGE))
		abort();
	sigaction(SIGPROF, &action, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	pthread_create(&thread, NULL, stop_threads, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
