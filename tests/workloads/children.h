// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Workloads of several processes: children, and a byte for each thing that one tells another.

#ifndef CHILDREN_H
#define CHILDREN_H

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common.h"

/* A child that ends with this process. */
static inline pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static inline void tell(int pipe, const char *what)
{
	if (write(pipe, what, 1) != 1)
		die("write");
}

static inline void await(int pipe)
{
	char byte;

	if (read(pipe, &byte, 1) != 1)
		die("read");
}

static NOINLINE __attribute__((unused)) void hold(size_t mib)
{
	store_each_page(map_memory(mib << 20), mib << 20);
}

#endif
