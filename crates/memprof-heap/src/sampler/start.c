/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The start of a process, a thread and a forked child: seeds of the random numbers, and the environment of programs
 * executed later.
 */
#include "sampler.h"

#ifndef MEMPROF_SAMPLER_TEST
#define TEST_INTERVAL (512 << 10)
#define TEST_SEED 0
#endif

/* memprof patches this in its copy of the file, so the compiler must not assume the values. */
const volatile struct config EXPORTED memprof_heap_config = {
	.magic = CONFIG_MAGIC, .interval = TEST_INTERVAL, .seed = TEST_SEED};

extern __attribute__((weak)) unsigned long getauxval(unsigned long);
extern __attribute__((weak)) char **environ;

#define AT_RANDOM 25
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t key, threads, forks;
static const char *own_path;

/*
 * Called before the first allocation. The kernel gives each process 16 random bytes, which need no system call: a
 * sandbox may forbid it.
 */
void start(const char *path)
{
	own_path = path;
	key = memprof_heap_config.seed;
	const uint64_t *bytes = key == 0 && getauxval ? (const uint64_t *)getauxval(AT_RANDOM) : NULL;
	if (bytes)
		key = mix(bytes[0] + GOLDEN) ^ mix(bytes[1]);
	else if (key == 0)
		key = mix((uintptr_t)&bytes) ^ mix((uintptr_t)&key);
}

/* Each thread has its own sequence of random numbers. */
void new_thread(struct thread *thread)
{
	uint64_t number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
	thread->random = mix(key + number * GOLDEN);
	if (thread->random == 0)
		thread->random = 1;
	thread->left = draw_interval(&thread->random);
}

void reseed(uint64_t with)
{
	key = mix(key ^ mix(with + GOLDEN));
	threads = forks = 0;
}

/*
 * The sequence of a forked child depends on the number of the fork in its parent. The first sample of a child is also
 * its own: if all children took the sample that their parent would have taken next, their errors would not be
 * independent.
 */
static void before_fork(void)
{
	__atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
}

static void after_fork_in_child(void)
{
	reseed(forks);
	new_thread(this_thread());
}

static void register_at_fork(void)
{
	struct symbol_request requests[] = {{.symbol = "__register_atfork"}, {.symbol = "pthread_atfork"}};
	struct own own;
	find_next(requests, 2, &own);
	int (*glibc)(void (*)(void), void (*)(void), void (*)(void), void *) = requests[0].address;
	int (*other)(void (*)(void), void (*)(void), void (*)(void)) = requests[1].address;
	if (glibc)
		glibc(before_fork, NULL, after_fork_in_child, NULL);
	else if (other)
		other(before_fork, NULL, after_fork_in_child);
}

static size_t length(const char *text)
{
	size_t n = 0;
	while (text[n])
		n++;
	return n;
}

static bool begins(const char *text, const char *with, size_t bytes)
{
	size_t n = 0;
	while (n < bytes && text[n] == with[n])
		n++;
	return n == bytes;
}

/* Removes the library's path from LD_PRELOAD, in place, and the variable if it is empty then. */
static void leave_environment(void)
{
	static const char variable[] = "LD_PRELOAD=";
	if (!&environ || !environ || !own_path)
		return;
	size_t own = length(own_path);
	char **to = environ;
	for (char **from = environ; *from; from++) {
		if (!begins(*from, variable, sizeof variable - 1)) {
			*to++ = *from;
			continue;
		}
		char *start = *from + sizeof variable - 1, *out = start, *in = start;
		while (*in) {
			size_t entry = 0;
			while (in[entry] && in[entry] != ':' && in[entry] != ' ')
				entry++;
			bool is_own = entry == own && begins(in, own_path, own);
			size_t with_separator = entry + (in[entry] != 0);
			if (!is_own)
				for (size_t n = 0; n < with_separator; n++)
					*out++ = in[n];
			in += with_separator;
		}
		/* The separator of the last entry is already removed. */
		if (out > start && (out[-1] == ':' || out[-1] == ' '))
			out--;
		*out = 0;
		if (out > start)
			*to++ = *from;
	}
	*to = NULL;
}

/* Called once the C library has started. Returns the path of the library's file. */
const char *finish_start(void)
{
	register_at_fork();
	if (memprof_heap_config.flags & CONFIG_LEAVE_ENVIRONMENT)
		leave_environment();
	return own_path;
}
