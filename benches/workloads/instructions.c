// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: counts the instructions of one operation, for each of the given paths, in a guest whose clock counts
// instructions (benches/instructions.sh).
//
//   instructions [--programs] PATH…
//
// Prints a line for each path: instructions of this process and of its children, the median of ROUNDS rounds, the lowest and the
// highest; then memprof's own instructions for each operation, if memprof has started this program, otherwise 0.
//   count touch 2731.2 2729.0 2745.1 12.3
// With --programs also a line for each BPF program that ran (bpf_programs.h). The path `start` is no operation: it is what
// memprof has taken when it starts this program.

#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "bpf_programs.h"
#include "memory_paths.h"

enum { ROUNDS = 7 };

static int zero;

// CPU time of this process and of its children that have ended: in the guest, a nanosecond is an instruction.
static double own_instructions(void)
{
	struct rusage ended;

	if (getrusage(RUSAGE_CHILDREN, &ended))
		die("getrusage");
	return (double)cpu_ns() + 1e3 * (double)(ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) +
	       1e9 * (double)(ended.ru_utime.tv_sec + ended.ru_stime.tv_sec);
}

// CPU time of the memprof that has started this program.
static double memprof_instructions(void)
{
	char path[64], name[16] = "";
	clockid_t clock;
	FILE *comm;

	snprintf(path, sizeof(path), "/proc/%d/comm", getppid());
	comm = fopen(path, "re");
	if (!comm || !fgets(name, sizeof(name), comm) || fclose(comm))
		die(path);
	if (strcmp(name, "memprof\n"))
		return 0;
	if (clock_getcpuclockid(getppid(), &clock))
		die("clock_getcpuclockid");
	return (double)clock_ns(clock);
}

static void call_getppid(unsigned long calls)
{
	while (calls--)
		syscall(SYS_getppid);
}

static void open_zero(void)
{
	zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (zero < 0)
		die("/dev/zero");
}

static void read_nothing(unsigned long calls)
{
	char byte;

	while (calls--)
		if (read(zero, &byte, 0) != 0)
			die("read");
}

static void close_zero(void)
{
	close(zero);
}

static void *do_nothing(void *argument)
{
	return argument;
}

static void start_threads(unsigned long threads)
{
	pthread_t thread;

	while (threads--)
		if (pthread_create(&thread, NULL, do_nothing, NULL) || pthread_join(thread, NULL))
			die("pthread_create");
}

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status)
		die("the child");
}

static void fork_children(unsigned long children)
{
	while (children--) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		wait_for(child);
	}
}

static void spawn_programs(unsigned long programs)
{
	char *const argv[] = { "/bin/nothing", NULL };

	while (programs--) {
		pid_t child;

		wait_for(posix_spawn(&child, argv[0], NULL, NULL, argv, NULL) ? -1 : child);
	}
}

struct path {
	const char *name;
	unsigned long operations;
	void (*run)(unsigned long operations);
	void (*prepare)(void);
	void (*clean)(void);
};

static const struct path paths[] = {
	{ "touch", PAGES, touch, map_memory, unmap_memory },
	{ "new-stack", FEWER, touch_under_new_stacks, map_memory, unmap_memory },
	{ "copy", FEWER, touch, share_memory, unshare_memory },
	{ "huge", HUGE_PAGES, touch_huge, map_huge, unmap_huge },
	{ "file", FEWER, read_file, open_file, close_file },
	{ "mmap", 1000, map_and_unmap, NULL, NULL },
	{ "brk", 1000, move_break, NULL, NULL },
	{ "malloc", 2000, allocate, NULL, NULL },
	{ "getppid", 10000, call_getppid, NULL, NULL },
	{ "read", 10000, read_nothing, open_zero, close_zero },
	{ "thread", 200, start_threads, NULL, NULL },
	{ "fork", 50, fork_children, NULL, NULL },
	{ "spawn", 50, spawn_programs, NULL, NULL },
};

static int compare(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static double measure(const struct path *path)
{
	double before, after, clock;

	if (path->prepare)
		path->prepare();
	before = own_instructions();
	clock = own_instructions() - before;
	before = own_instructions();
	path->run(path->operations);
	after = own_instructions();
	if (path->clean)
		path->clean();
	return (after - before - clock) / (double)path->operations;
}

static void count(const struct path *path, int programs)
{
	static struct runs before, after;
	double operations = (double)path->operations * ROUNDS, memprof, figures[ROUNDS];

	// memprof always walks the first 16,384 page faults, which are over after these rounds of `touch`.
	for (int i = 0; i < (path->operations == PAGES ? 5 : 1); i++)
		measure(path);
	if (programs)
		read_runs(&before);
	memprof = memprof_instructions();
	for (int i = 0; i < ROUNDS; i++)
		figures[i] = measure(path);
	memprof = memprof_instructions() - memprof;
	if (programs) {
		read_runs(&after);
		print_runs(path->name, &before, &after, operations);
	}
	qsort(figures, ROUNDS, sizeof(*figures), compare);
	printf("count %s %.1f %.1f %.1f %.1f\n", path->name, figures[ROUNDS / 2], figures[0], figures[ROUNDS - 1],
	       memprof / operations);
	fflush(stdout);
}

static const struct path *path_of(const char *name)
{
	for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
		if (!strcmp(paths[i].name, name))
			return &paths[i];
	fprintf(stderr, "instructions: there is no path %s\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	double start = memprof_instructions();
	int programs = argc > 1 && strcmp(argv[1], "--programs") == 0;

	set_huge_pages(1);
	for (int i = 1 + programs; i < argc; i++)
		if (strcmp(argv[i], "start"))
			count(path_of(argv[i]), programs);
		else
			printf("count start %.1f %.1f %.1f 0\n", start, start, start);
	return 0;
}
