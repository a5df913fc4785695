// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: makes cheap system calls as fast as it can.
//
// Build:
//   cc -O2 -o syscalls syscalls.c
//
//   syscalls [--calls N] [--start-on-stdin]
//
// Prints one line:
//   calls 2000000 getppid_ns 81.2 read_ns 95.7
// The figures are CPU time. `read` reads 0 bytes of /dev/zero. --start-on-stdin waits for a line on stdin
// first, and finally for the end of stdin.

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workload.h"

int main(int argc, char **argv)
{
	unsigned long calls = 2000000;
	uint64_t start, getppid_ns, read_ns;
	int wait = 0, fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char byte;
	const struct option options[] = {
		{ "--calls", .number = &calls },
		{ "--start-on-stdin", .flag = &wait },
		{ 0 },
	};

	read_options(argc, argv, 1, options, "syscalls [--calls N] [--start-on-stdin]");
	if (fd < 0)
		die("/dev/zero");
	if (wait)
		wait_for_line();
	start = cpu_ns();
	for (unsigned long i = 0; i < calls; i++)
		syscall(SYS_getppid);
	getppid_ns = cpu_ns() - start;
	start = cpu_ns();
	for (unsigned long i = 0; i < calls; i++)
		if (read(fd, &byte, 0) != 0)
			die("read");
	read_ns = cpu_ns() - start;
	printf("calls %lu getppid_ns %.1f read_ns %.1f\n", calls, (double)getppid_ns / (double)calls,
	       (double)read_ns / (double)calls);
	fflush(stdout);
	if (wait)
		wait_for_end();
	return 0;
}
