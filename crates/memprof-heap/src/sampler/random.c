/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sampling intervals and weights, without libm.
 *
 * Sampling points are a Poisson process over the bytes that a thread allocates: the distance T to the next point is
 * exponential, with the interval as its mean. An allocation of `size` bytes is sampled if a point lies in it: if T <
 * size, which is floor(T) < size, because sizes are whole. So p = 1 - exp(-size / mean), exactly. If the allocation is
 * not sampled, T - size is distributed as T was, and floor(T) - size as floor(T). If it is sampled, a new T is drawn
 * for the bytes after it, independently of the earlier values. So allocations are sampled independently of each other.
 * The sum of size / p over the samples is an unbiased estimate of the sum of all sizes. The sum of (size / p)^2 (1 - p)
 * is an unbiased estimate of its variance.
 */
#include "sampler.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t next_random(uint64_t *random)
{
	return mix(*random += GOLDEN);
}

/* ln(x) for finite x > 0 that are not denormal; relative error below 1e-14. */
static double ln(double x)
{
	union {
		double value;
		uint64_t bits;
	} u = {x};
	int exponent = (int)(u.bits >> 52) - 1023;
	u.bits = (u.bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
	if (u.value > 1.4142135623730951) {
		u.value *= 0.5;
		exponent++;
	}
	/* ln(m) = 2 atanh((m - 1) / (m + 1)), whose argument is within 0.1716. */
	double s = (u.value - 1) / (u.value + 1), s2 = s * s, sum = 0;
	for (int n = 19; n > 0; n -= 2)
		sum = sum * s2 + 1.0 / n;
	return exponent * 0.6931471805599453 + 2 * s * sum;
}

/* exp(-x) for 0 <= x <= 40; relative error below 1e-13. */
static double exp_minus(double x)
{
	int halvings = (int)(x * 1.4426950408889634);
	double rest = x - halvings * 0.6931471805599453, sum = 1;
	for (int n = 18; n > 0; n--)
		sum = 1 - rest / n * sum;
	union {
		uint64_t bits;
		double value;
	} scale = {(uint64_t)(1023 - halvings) << 52};
	return sum * scale.value;
}

/* x / (1 - exp(-x)); relative error below 1e-9. */
static double inverse_share(double x)
{
	if (x > 40)
		return x;
	if (x > 0.5)
		return x / (1 - exp_minus(x));
	/* 1 - exp(-x) would cancel. The series has Bernoulli's numbers; the next term is below 1e-12 here. */
	double x2 = x * x;
	return 1 + x / 2 + x2 / 12 * (1 - x2 / 60 * (1 - x2 / 42 * (1 - x2 / 40)));
}

/* Uniform in (0, 1]. */
static double uniform(uint64_t random)
{
	return (double)((random >> 11) + 1) * 0x1p-53;
}

/*
 * The program may have chosen another rounding mode, or traps for inexact results, and may read the status flags of its
 * own calculations.
 */
#if defined(__x86_64__)
typedef uint32_t float_state;
static float_state float_begin(void)
{
	uint32_t state, usual = 0x1f80;
	__asm__ volatile("stmxcsr %0" : "=m"(state));
	__asm__ volatile("ldmxcsr %0" ::"m"(usual));
	return state;
}
static void float_end(float_state state)
{
	__asm__ volatile("ldmxcsr %0" ::"m"(state));
}
#elif defined(__aarch64__)
typedef struct {
	uint64_t control, status;
} float_state;
static float_state float_begin(void)
{
	float_state state;
	__asm__ volatile("mrs %0, fpcr\n mrs %1, fpsr\n msr fpcr, xzr" : "=r"(state.control), "=r"(state.status));
	return state;
}
static void float_end(float_state state)
{
	__asm__ volatile("msr fpcr, %0\n msr fpsr, %1" ::"r"(state.control), "r"(state.status));
}
#endif

/*
 * Compilers move calculations across such statements. They do not if the calculations depend on a value pinned after
 * the first statement, and a value pinned before the last statement depends on them.
 */
#define PIN(integer) __asm__ volatile("" : "+r"(integer))

/* floor(T) for the next T. */
uint64_t draw_interval(uint64_t *random)
{
	uint64_t mean = memprof_heap_config.interval, bits = next_random(random);
	if (mean == 0)
		return 0;
	float_state state = float_begin();
	PIN(mean);
	PIN(bits);
	uint64_t bytes = (uint64_t)(-ln(uniform(bits)) * (double)mean);
	PIN(bytes);
	float_end(state);
	return bytes;
}

/* size / p, stochastically rounded, so the expectation is exact. Never below size. */
uint64_t weighted_bytes(size_t size, uint64_t *random)
{
	uint64_t mean = memprof_heap_config.interval, bits = next_random(random);
	/* In double precision, p is 1. */
	if (size / 40 >= mean)
		return size;
	size_t bytes = size;
	float_state state = float_begin();
	PIN(mean);
	PIN(bits);
	PIN(bytes);
	double exact = (double)mean * inverse_share((double)bytes / (double)mean);
	uint64_t whole = (uint64_t)exact;
	whole += exact - (double)whole >= uniform(bits);
	PIN(whole);
	float_end(state);
	return whole < size ? size : whole;
}
