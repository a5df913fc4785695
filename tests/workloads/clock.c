// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A library to preload that sets the system's clock for one process: the clock of the machine is everybody's.
//
// Build:
//   cc -O1 -g -fno-omit-frame-pointer -shared -fPIC -o clock clock.c
//
// It adds the seconds in the file MEMPROF_TEST_CLOCK, a 64-bit integer that may change at any time, to CLOCK_REALTIME.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *seconds;

static __attribute__((constructor)) void start(void)
{
	const char *path = getenv("MEMPROF_TEST_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*seconds), PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		abort();
	seconds = p;
	close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	long result = syscall(SYS_clock_gettime, clock, time);

	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		time->tv_sec += seconds ? *seconds : 0;
	return (int)result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	time->tv_sec = now.tv_sec;
	time->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}
