/*
 * Has its peak long before its end, in the way that its argument names, and prints what it had then:
 * `FUNCTION BYTES` for each function that held memory, and `VmHWM BYTES` for the kernel's figure at the end.
 * `cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls`
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

static void pause_ms(long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void touch(char *at, size_t size)
{
	for (size_t i = 0; i < size; i += PAGE)
		at[i] = 1;
}

static char *map(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		abort();
	/* A huge page of zeros is memory that no function touched. */
	madvise(at, size, MADV_NOHUGEPAGE);
	return at;
}

char *hold_base(size_t size)
{
	char *at = map(size);

	touch(at, size);
	return at;
}

char *hold_highest(size_t size)
{
	char *at = map(size);

	touch(at, size);
	return at;
}

char *hold_lower(size_t size)
{
	char *at = map(size);

	touch(at, size);
	return at;
}

static void held(const char *function, size_t size)
{
	printf("%s %zu\n", function, size);
}

/* Grows until its end. */
static void ramp(void)
{
	for (int i = 0; i < 48; i++) {
		hold_highest(MIB);
		pause_ms(5);
	}
	held("hold_highest", 48 * MIB);
}

/* Grows, and drops less each time than it has grown by; in the end, it drops everything. */
static void teeth(void)
{
	char *at[24];

	for (int i = 0; i < 24; i++) {
		at[i] = hold_highest(2 * MIB);
		munmap(hold_lower(MIB), MIB);
		pause_ms(2);
	}
	/* The last tooth was part of the peak. */
	held("hold_highest", 48 * MIB);
	held("hold_lower", MIB);
	for (int i = 0; i < 24; i++)
		munmap(at[i], 2 * MIB);
	pause_ms(50);
}

/* Spikes of milliseconds; the highest is not the last. */
static void spikes(void)
{
	static const size_t sizes[] = { 12, 24, 20, 48, 30, 40, 8 };

	hold_base(8 * MIB);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t size = sizes[i] * MIB;
		char *at = sizes[i] == 48 ? hold_highest(size) : hold_lower(size);

		pause_ms(5);
		munmap(at, size);
		pause_ms(5);
	}
	held("hold_base", 8 * MIB);
	held("hold_highest", 48 * MIB);
}

/* One spike right after the other: what comes next is there before anybody can look. */
static void dense(void)
{
	hold_base(8 * MIB);
	munmap(hold_highest(48 * MIB), 48 * MIB);
	for (int i = 0; i < 20; i++)
		munmap(hold_lower(40 * MIB), 40 * MIB);
	held("hold_base", 8 * MIB);
	held("hold_highest", 48 * MIB);
}

/* Drops part of a mapping that stays. */
static void emptied(void)
{
	char *at = hold_highest(48 * MIB);

	pause_ms(5);
	madvise(at + 8 * MIB, 40 * MIB, MADV_DONTNEED);
	pause_ms(50);
	held("hold_highest", 48 * MIB);
}

#define BLOCKS 24576
static char *blocks[BLOCKS];

void allocate_blocks(int from, int to)
{
	for (int i = from; i < to; i++) {
		blocks[i] = malloc(2000);
		memset(blocks[i], 1, 2000);
	}
}

/* Small blocks: the heap grows and shrinks by brk. */
static void blocks_of_malloc(void)
{
	for (int round = 0; round < 2; round++) {
		int n = round ? BLOCKS / 2 : BLOCKS;

		allocate_blocks(0, n);
		pause_ms(3);
		for (int i = 0; i < n; i++)
			free(blocks[i]);
		malloc_trim(0);
	}
	held("allocate_blocks", BLOCKS * 2016ul);
}

/* Filled without faults. */
static void populated(void)
{
	char *at = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	pause_ms(5);
	munmap(at, 32 * MIB);
	held("populated", 32 * MIB);
}

/* A file that is mapped and read. */
static void file(const char *path)
{
	char *at;
	FILE *f = fopen(path, "w+");

	if (!f || ftruncate(fileno(f), 0))
		abort();
	for (size_t i = 0; i < 32 * MIB / PAGE; i++) {
		static char page[PAGE] = { 1 };

		fwrite(page, 1, PAGE, f);
	}
	fflush(f);
	at = mmap(NULL, 32 * MIB, PROT_READ, MAP_SHARED, fileno(f), 0);
	for (size_t i = 0; i < 32 * MIB; i += PAGE)
		(void)*(volatile char *)(at + i);
	pause_ms(5);
	munmap(at, 32 * MIB);
}

static void high_water(void)
{
	char line[256];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmHWM: %lu kB", &kib) == 1)
			break;
	printf("VmHWM %lu\n", kib << 10);
	fflush(stdout);
}

/* Holds much and executes a program that holds little. */
static void exec(char *self)
{
	hold_highest(48 * MIB);
	pause_ms(5);
	held("hold_highest", 48 * MIB);
	high_water();
	execlp(self, self, "nothing", (char *)NULL);
	abort();
}

static void tree(void)
{
	for (int i = 0; i < 3; i++) {
		if (!fork()) {
			hold_lower((8 + i) * MIB);
			pause_ms(3000);
			_exit(0);
		}
	}
	hold_base(8 * MIB);
	while (wait(NULL) > 0)
		;
	held("hold_base", 8 * MIB);
	held("hold_lower", 27 * MIB);
}

static void wait_for_end(const char *line)
{
	printf("%s\n", line);
	fflush(stdout);
	while (getchar() != EOF)
		;
}

/*
 * Three children have peaks of milliseconds, one after the other. The second one has its own in a program that it
 * executes, and ends with it; the others have more than their parent's memory only for a moment. The parent has a peak,
 * too, before it waits for the end of its input.
 */
static void family(char *self)
{
	hold_base(8 * MIB);
	for (int i = 0; i < 3; i++) {
		size_t size = (12ul << i) * MIB;

		if (!fork()) {
			if (i == 1)
				execlp(self, self, "spike", "24", (char *)NULL);
			munmap(hold_highest(size), size);
			pause_ms(5);
			_exit(0);
		}
		wait(NULL);
	}
	munmap(hold_highest(36 * MIB), 36 * MIB);
	wait_for_end("dropped");
	held("hold_highest", 36 * MIB);
	held("hold_base", 8 * MIB);
}

/* Ends at its peak after a life of milliseconds. */
static void spike(size_t size)
{
	hold_highest(size);
	_exit(0);
}

/* A child is killed with all that it holds, once reports have seen it. */
static void victim(void)
{
	pid_t child = fork();

	if (!child) {
		hold_highest(20 * MIB);
		for (;;)
			pause_ms(1000);
	}
	pause_ms(2500);
	kill(child, SIGKILL);
	wait(NULL);
	printf("%d\n", child);
	wait_for_end("killed");
}

/* Is killed with all that it holds. */
static void killed(void)
{
	hold_highest(48 * MIB);
	pause_ms(5);
	kill(getpid(), SIGKILL);
}

/* Takes more and more, until there is no more. */
static void greedy(void)
{
	for (;;)
		hold_highest(MIB);
}

/* Waits for the end of its input after its peak. */
static void served(void)
{
	char *at = hold_highest(48 * MIB);

	pause_ms(5);
	munmap(at, 48 * MIB);
	wait_for_end("dropped");
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	if (!strcmp(how, "ramp"))
		ramp();
	else if (!strcmp(how, "teeth"))
		teeth();
	else if (!strcmp(how, "spikes"))
		spikes();
	else if (!strcmp(how, "dense"))
		dense();
	else if (!strcmp(how, "emptied"))
		emptied();
	else if (!strcmp(how, "blocks"))
		blocks_of_malloc();
	else if (!strcmp(how, "populated"))
		populated();
	else if (!strcmp(how, "file"))
		file(argv[2]);
	else if (!strcmp(how, "exec"))
		exec(argv[0]);
	else if (!strcmp(how, "tree"))
		tree();
	else if (!strcmp(how, "family"))
		family(argv[0]);
	else if (!strcmp(how, "spike"))
		spike(atol(argv[2]) * MIB);
	else if (!strcmp(how, "victim"))
		victim();
	else if (!strcmp(how, "killed"))
		killed();
	else if (!strcmp(how, "greedy"))
		greedy();
	else if (!strcmp(how, "served"))
		served();
	if (strcmp(how, "nothing"))
		high_water();
	return 0;
}
