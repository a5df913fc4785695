/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The first and only process of a 64-bit ARM guest. It loads the BPF programs of the recorder and of memprof, so that this
 * kernel's verifier checks every part of them, attaches them, and compares what they see with what this process does.
 *
 * The argument is NONCE. It prints its findings to the console, a line `result: …`, and
 * `VM-EXIT:NONCE:STATUS`. Linked statically with libbpf; see tests/vm.sh.
 */
#define _GNU_SOURCE
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "guest.h"

static const char *nonce = "none";

static __attribute__((noreturn)) void end(int status)
{
	printf("VM-EXIT:%s:%d\n", nonce, status);
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	_exit(status);
}

void fail(const char *format, ...)
{
	va_list args;
	int error = errno;

	va_start(args, format);
	printf("result: ");
	vprintf(format, args);
	printf(" (%s)\n", strerror(error));
	end(1);
}

static int say(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_WARN ? vprintf(format, args) : 0;
}

static void mount_all(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/ramfs", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("sysfs", "/sys", "sysfs", 0, NULL) ||
	    mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL) ||
	    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) || mount("ramfs", "/ramfs", "ramfs", 0, NULL))
		fail("proc, sysfs, tracefs, cgroup2 and ramfs cannot be mounted");
}

int main(int argc, char **argv)
{
	const char *recorder, *memprof;
	struct utsname kernel;

	nonce = argc > 1 ? argv[1] : nonce;
	setvbuf(stdout, NULL, _IOLBF, 0);
	libbpf_set_print(say);
	mount_all();
	uname(&kernel);
	printf("guest %s %s\n", kernel.machine, kernel.release);
	/* First, because memprof's programs stay attached and follow this process. */
	recorder = check_recorder();
	memprof = check_memprof();
	printf("result: %s; the recorder: %s\n", memprof, recorder);
	end(0);
}
