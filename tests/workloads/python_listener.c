// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Listens to the sampler inside a Python interpreter (see sampler_listener.h); python_blocks.py calls it.
#include "sampler_listener.h"

void python_reset(void)
{
	listener_reset();
}

void python_print_run(double bytes, double count, double live_bytes, double live_count)
{
	print_run(bytes, count, live_bytes, live_count);
	fflush(stdout);
}

uint64_t python_frees_of_others(void)
{
	return frees_of_others;
}
