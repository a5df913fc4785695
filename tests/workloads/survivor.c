// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that continuously loads and unloads libraries, for tests of what memprof's end does to it.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o survivor survivor.c
//
// Its first thread and two more continuously load and unload libm and libz, and write new memory. It prints
// `survivor PID main`. After a line of input it runs 20 more rounds of each thread, loads a library in a new
// thread, and runs itself in a child. Then it prints `survivor PID done TRACER` with its tracer's process id
// (0 for none), and ends with status 0 at the next line or the end of its input. It ignores termination
// signals. If a library cannot be loaded, it ends with status 1.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define ROUNDS_AFTER 20

static atomic_uint rounds[THREADS];
static atomic_int stop;

static void say(const char *what, const char *more)
{
	char text[64];
	int len = snprintf(text, sizeof(text), "survivor %d %s%s\n", (int)getpid(), what, more);

	if (write(STDOUT_FILENO, text, (size_t)len) != len)
		_exit(1);
}

static void load(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);

	if (!library) {
		fprintf(stderr, "survivor: %s\n", dlerror());
		_exit(1);
	}
	if (dlclose(library))
		_exit(1);
}

static void one_round(unsigned n)
{
	size_t len = 64 << 10;
	unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		_exit(1);
	memset(p, 1, len);
	load(n % 2 ? "libz.so.1" : "libm.so.6");
	munmap(p, len);
}

static void *work(void *number)
{
	while (!atomic_load(&stop)) {
		one_round(atomic_fetch_add((atomic_uint *)number, 1));
		usleep(2000);
	}
	return NULL;
}

static void *load_once(void *unused)
{
	load("libz.so.1");
	return unused;
}

static int lines_waiting(void)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&in, 1, 0) > 0;
}

// Reads a line, or returns at the end of the input.
static void read_line(void)
{
	char c;

	while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n')
		;
}

static void tracer(char *to, size_t size)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	int pid;

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "TracerPid: %d", &pid) == 1)
			snprintf(to, size, " %d", pid);
	if (status)
		fclose(status);
}

static void run_itself(const char *self)
{
	int status = 0, pid = fork();

	if (pid == 0) {
		execl(self, self, "--child", (char *)NULL);
		_exit(1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
		fprintf(stderr, "survivor: its child ended with status %#x\n", status);
		_exit(1);
	}
}

static int after(const unsigned *before)
{
	for (int i = 0; i < THREADS; i++)
		if (atomic_load(&rounds[i]) - before[i] < ROUNDS_AFTER)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS - 1], late;
	unsigned before[THREADS];
	char whose[20] = " ?";

	if (argc > 1) {
		for (unsigned n = 0; n < 4; n++)
			one_round(n);
		return 0;
	}
	for (int *s = (int[]){ SIGINT, SIGTERM, SIGHUP, SIGQUIT, 0 }; *s; s++)
		signal(*s, SIG_IGN);
	say("main", "");
	for (int i = 1; i < THREADS; i++)
		if (pthread_create(&threads[i - 1], NULL, work, &rounds[i]))
			return 1;
	while (!lines_waiting()) {
		one_round(atomic_fetch_add(&rounds[0], 1));
		usleep(2000);
	}
	read_line();
	for (int i = 0; i < THREADS; i++)
		before[i] = atomic_load(&rounds[i]);
	while (!after(before)) {
		one_round(atomic_fetch_add(&rounds[0], 1));
		usleep(2000);
	}
	if (pthread_create(&late, NULL, load_once, NULL) || pthread_join(late, NULL))
		return 1;
	run_itself(argv[0]);
	tracer(whose, sizeof(whose));
	say("done", whose);
	read_line();
	atomic_store(&stop, 1);
	for (int i = 1; i < THREADS; i++)
		pthread_join(threads[i - 1], NULL);
	return 0;
}
