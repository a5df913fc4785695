// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Allocates known amounts, many times over, and prints for each time what it did and what its samples estimate.
//
//   sampler KIND RUNS
//
// Preloads the sampler as it is built for tests. Kinds: see `kinds` at the end.

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sampler_listener.h"

#define BLOCKS 4000
#define THREADS 4

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

// What a run has done.
struct truth {
	double bytes, count, live_bytes, live_count;
};

static void did(struct truth *truth, size_t size)
{
	truth->bytes += (double)size;
	truth->count++;
}

// Frees about half of the blocks in a random order of decisions, then reports; the others are freed afterwards.
static void report(struct truth *truth, void **blocks, size_t *sizes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (next_random() & 1) {
			free(blocks[i]);
			blocks[i] = NULL;
		} else {
			truth->live_bytes += (double)sizes[i];
			truth->live_count++;
		}
	print_run(truth->bytes, truth->count, truth->live_bytes, truth->live_count);
	for (size_t i = 0; i < n; i++)
		free(blocks[i]);
}

static void *blocks[BLOCKS];
static size_t sizes[BLOCKS];

static size_t small(void)
{
	return 1 + next_random() % 800;
}

// From far below the sampling interval to far above it.
static size_t any(void)
{
	return (size_t)1 << (4 + next_random() % 14) | next_random() % 16;
}

static void each(size_t n, size_t (*size)(void), void *(*allocate)(size_t))
{
	struct truth truth = {0};

	for (size_t i = 0; i < n; i++) {
		sizes[i] = size();
		blocks[i] = allocate(sizes[i]);
		did(&truth, sizes[i]);
	}
	report(&truth, blocks, sizes, n);
}

static void run_small(void)
{
	each(BLOCKS, small, malloc);
}

static void run_any(void)
{
	each(BLOCKS / 4, any, malloc);
}

static void *by_calloc(size_t size)
{
	return size % 2 ? calloc(1, size) : calloc(size / 2, 2);
}

static void run_calloc(void)
{
	each(BLOCKS, small, by_calloc);
}

static void *aligned(size_t size)
{
	void *ptr = NULL;

	switch (next_random() % 4) {
	case 0:
		return aligned_alloc(64, size);
	case 1:
		return memalign(256, size);
	case 2:
		return posix_memalign(&ptr, 32, size) ? NULL : ptr;
	default:
		return valloc(size);
	}
}

static void run_aligned(void)
{
	each(BLOCKS, small, aligned);
}

// Arrays that grow and shrink; each new size is an allocation.
static void run_realloc(void)
{
	struct truth truth = {0};
	volatile size_t too_many = SIZE_MAX / 2;

	for (size_t i = 0; i < BLOCKS / 4; i++) {
		sizes[i] = small();
		blocks[i] = realloc(NULL, sizes[i]);
		did(&truth, sizes[i]);
		for (int n = next_random() % 6; n > 0; n--) {
			sizes[i] = small();
			blocks[i] = n % 2 ? realloc(blocks[i], sizes[i]) : reallocarray(blocks[i], sizes[i], 1);
			did(&truth, sizes[i]);
		}
		// Fails, and changes nothing.
		if (realloc(blocks[i], too_many) || reallocarray(blocks[i], too_many, 3))
			abort();
	}
	report(&truth, blocks, sizes, BLOCKS / 4);
}

// Blocks of one thread are freed by others. Each thread is new in each run.
struct part {
	struct truth truth;
	uint64_t random;
	void **blocks;
	size_t *sizes;
};

static void *thread(void *argument)
{
	struct part *part = argument;

	for (size_t i = 0; i < BLOCKS / THREADS; i++) {
		part->random = part->random * 6364136223846793005u + 1442695040888963407u;
		part->sizes[i] = 1 + (part->random >> 33) % 800;
		part->blocks[i] = malloc(part->sizes[i]);
		did(&part->truth, part->sizes[i]);
	}
	return NULL;
}

static void run_threads(void)
{
	struct part parts[THREADS] = {0};
	pthread_t threads[THREADS];
	struct truth truth = {0};

	for (int t = 0; t < THREADS; t++) {
		size_t from = BLOCKS / THREADS * t;
		parts[t] = (struct part){.random = next_random(), .blocks = &blocks[from], .sizes = &sizes[from]};
		if (pthread_create(&threads[t], NULL, thread, &parts[t]))
			abort();
	}
	for (int t = 0; t < THREADS; t++) {
		pthread_join(threads[t], NULL);
		truth.bytes += parts[t].truth.bytes;
		truth.count += parts[t].truth.count;
	}
	report(&truth, blocks, sizes, BLOCKS);
}

// Each run in a child of its own, and they all do the same. What the parent had sampled is not theirs.
static void run_fork(void)
{
	pid_t child = fork();

	if (child == 0) {
		listener_reset();
		each(BLOCKS, small, malloc);
		fflush(stdout);
		_exit(0);
	}
	int status;
	if (waitpid(child, &status, 0) != child || status)
		abort();
}

// A signal arrives while a sample is reported, and its handler allocates.
static struct truth in_handler;
static void *handler_blocks[BLOCKS];
static size_t handler_sizes[BLOCKS], handled;
static volatile int in_signal;

static void handler(int signal)
{
	(void)signal;
	if (handled < BLOCKS) {
		handler_sizes[handled] = small();
		handler_blocks[handled] = malloc(handler_sizes[handled]);
		did(&in_handler, handler_sizes[handled++]);
	}
}

static void raise_signal(void)
{
	if (!in_signal) {
		in_signal = 1;
		raise(SIGUSR1);
		in_signal = 0;
	}
}

static void run_signal(void)
{
	struct truth truth = {0};

	signal(SIGUSR1, handler);
	in_handler = truth;
	handled = 0;
	on_sample = raise_signal;
	for (size_t i = 0; i < BLOCKS; i++) {
		sizes[i] = small();
		blocks[i] = malloc(sizes[i]);
		did(&truth, sizes[i]);
	}
	on_sample = NULL;
	CHANGED_BY_LISTENER();
	truth.bytes += in_handler.bytes;
	truth.count += in_handler.count;
	truth.live_bytes = in_handler.bytes;
	truth.live_count = in_handler.count;
	report(&truth, blocks, sizes, BLOCKS);
	for (size_t i = 0; i < handled; i++)
		free(handler_blocks[i]);
}

// Before main, in a thread's last moments, and at the exit.
#define EARLY 20000
static double early_bytes, late_bytes;
static void *kept[3 * EARLY];
static size_t kept_count;

static double allocate_many(void)
{
	double bytes = 0;

	for (size_t i = 0; i < EARLY; i++) {
		size_t size = small();
		kept[kept_count++] = malloc(size);
		bytes += (double)size;
	}
	return bytes;
}

static const char *moment(void)
{
	const char *moment = getenv("SAMPLER_MOMENT");
	return moment ? moment : "";
}

__attribute__((constructor)) static void before_main(void)
{
	if (strcmp(moment(), "constructor") == 0)
		early_bytes = allocate_many();
}

static void at_exit(void)
{
	late_bytes = allocate_many();
	print_run(late_bytes, EARLY, late_bytes, EARLY);
	fflush(stdout);
}

static void in_destructor(void *value)
{
	(void)value;
	late_bytes = allocate_many();
}

static void *with_destructor(void *key)
{
	pthread_setspecific(*(pthread_key_t *)key, key);
	return NULL;
}

static void run_moment(void)
{
	if (strcmp(moment(), "constructor") == 0) {
		print_run(early_bytes, EARLY, early_bytes, EARLY);
	} else if (strcmp(moment(), "exit") == 0) {
		atexit(at_exit);
	} else {
		pthread_key_t key;
		pthread_t other;
		pthread_key_create(&key, in_destructor);
		if (pthread_create(&other, NULL, with_destructor, &key) || pthread_join(other, NULL))
			abort();
		print_run(late_bytes, EARLY, late_bytes, EARLY);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {
	{"small", run_small},	  {"any", run_any},   {"calloc", run_calloc}, {"aligned", run_aligned},
	{"realloc", run_realloc}, {"fork", run_fork}, {"threads", run_threads}, {"signal", run_signal},
	{"moment", run_moment},
};

int main(int argc, char **argv)
{
	static char out[1 << 16];

	if (argc != 3)
		return 2;
	setvbuf(stdout, out, _IOFBF, sizeof out);
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (int run = atoi(argv[2]); run > 0 && strcmp(kinds[k].name, argv[1]) == 0; run--) {
			if (kinds[k].run != run_moment)
				listener_reset();
			if (kinds[k].run == run_fork)
				fflush(stdout);
			kinds[k].run();
		}
	return 0;
}
