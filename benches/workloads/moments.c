// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Prints when its main function began and ended.
//
// `moments [--wait]` prints `began_ns N ended_ns N`, times of CLOCK_MONOTONIC. With --wait it first waits
// for a line of input.

#include "workload.h"

int main(int argc, char **argv)
{
	unsigned long long began = wall_ns();

	if (argc > 1 && strcmp(argv[1], "--wait") == 0)
		wait_for_line();
	printf("began_ns %llu ended_ns %llu\n", began, (unsigned long long)wall_ns());
	return 0;
}
