// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Benchmark workload: repeatedly brings a file into the page cache by read(2). Before each pass it drops
// the file from the cache.
//
// Build:
//   cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -o readfile readfile.c
//
//   readfile FILE [--mib N] [--passes N] [--repeat N] [--name NAME] [--start-on-stdin]
//
// FILE is created if it does not exist or has another size; it is not removed. Prints one line per
// repetition, and flushes it:
//   pages 65536 ns_per_page 312.7
// The figure is the CPU time in read(2) for each 4 KiB of the file; dropping the cache is not counted.
// --start-on-stdin waits for a line on stdin first, and finally for the end of stdin.

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workload.h"

enum { BLOCK = 128 * 1024 };

static unsigned char block[BLOCK];

static void make_file(int fd, size_t bytes)
{
	struct stat st;

	if (fstat(fd, &st))
		die("fstat");
	if ((size_t)st.st_size == bytes)
		return;
	if (ftruncate(fd, 0))
		die("ftruncate");
	memset(block, 0x5a, sizeof(block));
	for (size_t done = 0; done < bytes; done += sizeof(block))
		if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
			die("write");
	if (fsync(fd))
		die("fsync");
}

static NOINLINE void drop_cache(int fd)
{
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) {
		fprintf(stderr, "readfile: posix_fadvise failed\n");
		exit(1);
	}
}

static NOINLINE void read_through(int fd)
{
	ssize_t n;

	if (lseek(fd, 0, SEEK_SET))
		die("lseek");
	while ((n = read(fd, block, sizeof(block))) > 0)
		;
	if (n < 0)
		die("read");
}

int main(int argc, char **argv)
{
	unsigned long mib = 64, passes = 4, repeat = 1;
	const char *path = argv[1], *name = NULL;
	int wait = 0, fd;
	const struct option options[] = {
		{ "--mib", .number = &mib }, { "--passes", .number = &passes }, { "--repeat", .number = &repeat },
		{ "--name", .text = &name }, { "--start-on-stdin", .flag = &wait }, { 0 },
	};

	read_options(argc, argv, 2, options,
		     "readfile FILE [--mib N] [--passes N] [--repeat N] [--name NAME] [--start-on-stdin]");
	if (!mib || !passes) {
		fprintf(stderr, "readfile: --mib and --passes are at least 1\n");
		return 2;
	}
	if (name)
		prctl(PR_SET_NAME, name);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		die(path);
	make_file(fd, (size_t)mib << 20);
	if (wait)
		wait_for_line();
	for (unsigned long i = 0; i < repeat; i++) {
		size_t pages = ((size_t)mib << 20) / 4096 * passes;
		uint64_t ns = 0;

		for (unsigned long pass = 0; pass < passes; pass++) {
			uint64_t before;

			drop_cache(fd);
			before = cpu_ns();
			read_through(fd);
			ns += cpu_ns() - before;
		}
		printf("pages %zu ns_per_page %.1f\n", pages, (double)ns / (double)pages);
		fflush(stdout);
	}
	if (wait)
		wait_for_end();
	return close(fd) ? 1 : 0;
}
