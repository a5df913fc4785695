// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Compares the sampler's own functions with libm's, and the mean of its intervals with what they are to be.

#include "../../crates/memprof-heap/src/sampler/random.c"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INTERVAL 4096
const volatile struct config memprof_heap_config = {.interval = INTERVAL};

static double worst;

static void compare(const char *what, double x, double is, double should_be)
{
	double error = fabs(is - should_be) / (should_be == 0 ? 1 : fabs(should_be));
	if (error > worst)
		worst = error;
	if (!(error < 1e-9)) {
		printf("%s(%g) is %.17g, not %.17g\n", what, x, is, should_be);
		exit(1);
	}
}

int main(void)
{
	for (double x = 0x1p-53; x <= 1; x *= 1.0009)
		compare("ln", x, ln(x), log(x));
	compare("ln", 1, ln(1), 0);
	for (double x = 1e-15; x < 39; x *= 1.0009) {
		compare("exp_minus", x, exp_minus(x), exp(-x));
		compare("inverse_share", x, inverse_share(x), x / -expm1(-x));
	}
	compare("inverse_share", 1e6, inverse_share(1e6), 1e6);

	uint64_t random = 1;
	double sum = 0, weights = 0, n = 4e6;
	for (int draw = 0; draw < n; draw++) {
		sum += (double)draw_interval(&random);
		weights += (double)weighted_bytes(100, &random);
	}
	// floor() takes half a byte off. The standard error of the mean is INTERVAL / 2000, of which five are allowed.
	double mean = sum / n + 0.5, weight = weights / n, should_be = 100 / -expm1(-100.0 / INTERVAL);
	if (fabs(mean - INTERVAL) > 5 * INTERVAL / 2000.0 || fabs(weight - should_be) > 5 * 0.5 / 2000) {
		printf("means %f and %f, not %d and %f\n", mean, weight, INTERVAL, should_be);
		return 1;
	}
	printf("largest relative error %g\n", worst);
	return 0;
}
