// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A process whose mmap lock is held for as long as one likes, as behind a file server that does not answer.
//
// Build:
//   cc -O1 -g -fno-omit-frame-pointer -o locked locked.c
// Run, as root:
//   locked DIRECTORY MIB
//
// It mounts a file system of its own (FUSE) on DIRECTORY, only until its file is open, and starts a process that holds MIB of
// memory. Then it says `ready PID` and takes commands, one on each line, and answers `ok` to each:
//
//   lock      the process maps the file while somebody reads a page of it. The kernel waits for that page with the mmap lock
//             held, because the file was opened past the page cache; the file system does not answer.
//   unlock    the file system answers, and the process goes on
//   grow      the process takes MIB more
//   quit      also at the end of the input

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define FILE_NODE 2
#define FILE_BYTES 4096


static void reply(int fuse, __u64 unique, int error, const void *data, size_t size)
{
	struct fuse_out_header header = {
		.len = (__u32)(sizeof(header) + size), .error = error, .unique = unique,
	};
	struct iovec parts[] = { { &header, sizeof(header) }, { (void *)data, size } };

	/* The kernel may have given the request up. */
	if (writev(fuse, parts, 2) < 0)
		return;
}

/* The file system: one file, the first opening of which is cached. Who reads it has an answer once `told` says so. */
static void serve(int fuse, int told)
{
	static char request[FUSE_MIN_READ_BUFFER + (1 << 20)];
	static const char page[FILE_BYTES];
	const struct fuse_attr root = { .ino = FUSE_ROOT_ID, .mode = S_IFDIR | 0755, .nlink = 2 };
	const struct fuse_attr file = {
		.ino = FILE_NODE, .mode = S_IFREG | 0644, .nlink = 1, .size = FILE_BYTES, .blocks = 8,
	};
	struct pollfd from[] = { { .fd = fuse, .events = POLLIN }, { .fd = told, .events = POLLIN } };
	int opened = 0;
	__u64 reads = 0;

	while (poll(from, 2, -1) > 0) {
		const struct fuse_in_header *in = (const void *)request;
		ssize_t size;
		char byte;

		if (from[1].revents) {
			if (read(told, &byte, 1) != 1)
				return;
			reply(fuse, reads, 0, page, sizeof(page));
			continue;
		}
		size = read(fuse, request, sizeof(request));
		if (size < (ssize_t)sizeof(*in))
			return;
		switch (in->opcode) {
		case FUSE_INIT: {
			const struct fuse_init_in *wanted = (const void *)(in + 1);
			struct fuse_init_out out = {
				.major = FUSE_KERNEL_VERSION, .minor = wanted->minor,
				.max_readahead = wanted->max_readahead, .max_write = FILE_BYTES,
			};

			reply(fuse, in->unique, 0, &out, sizeof(out));
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out out = { .nodeid = FILE_NODE, .entry_valid = 60, .attr_valid = 60, .attr = file };

			reply(fuse, in->unique, 0, &out, sizeof(out));
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out out = { .attr_valid = 60, .attr = in->nodeid == FILE_NODE ? file : root };

			reply(fuse, in->unique, 0, &out, sizeof(out));
			break;
		}
		case FUSE_OPEN: {
			struct fuse_open_out out = { .open_flags = opened++ ? FOPEN_DIRECT_IO : FOPEN_KEEP_CACHE };

			reply(fuse, in->unique, 0, &out, sizeof(out));
			break;
		}
		case FUSE_READ:
			reads = in->unique;
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
			break;
		default:
			reply(fuse, in->unique, -ENOSYS, NULL, 0);
		}
	}
}

/* A child that ends with this process. */
static pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static NOINLINE void hold(size_t mib)
{
	store_each_page(map_memory(mib << 20), mib << 20);
}

/* The process: does what `told` says, `direct` is the file, opened past the page cache. */
static void run(int told, int done, int direct, size_t mib)
{
	char what = 'g';

	do {
		if (what == 'l') {
			void *p = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, direct, 0);

			if (p == MAP_FAILED)
				die("mmap");
			munmap(p, FILE_BYTES);
		} else {
			hold(mib);
		}
		if (write(done, "", 1) != 1)
			die("write");
	} while (read(told, &what, 1) == 1);
}

static void tell(int pipe, const char *what)
{
	if (write(pipe, what, 1) != 1)
		die("write");
}

static void await(int pipe)
{
	char byte;

	if (read(pipe, &byte, 1) != 1)
		die("read");
}

int main(int argc, char **argv)
{
	size_t mib = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), answer[2], told[2], done[2], cached, direct;
	char options[64], path[4096], line[16], byte;
	pid_t pid, reader = 0;

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (!mib) {
		fprintf(stderr, "usage: locked DIRECTORY MIB\n");
		return 2;
	}
	if (fuse < 0 || pipe(answer) || pipe(told) || pipe(done))
		die("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (mount("locked", argv[1], "fuse", MS_NOSUID | MS_NODEV, options))
		die("mount");
	if (child() == 0) {
		serve(fuse, answer[0]);
		_exit(0);
	}
	close(fuse);
	snprintf(path, sizeof(path), "%s/file", argv[1]);
	cached = open(path, O_RDONLY | O_CLOEXEC);
	direct = open(path, O_RDONLY | O_CLOEXEC);
	/* The file system stays as long as its file is open. */
	if (umount2(argv[1], MNT_DETACH) || cached < 0 || direct < 0)
		die("cannot open the file");
	pid = child();
	if (pid == 0) {
		run(told[0], done[1], direct, mib);
		_exit(0);
	}
	await(done[0]);
	printf("ready %d\n", pid);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "lock\n")) {
			reader = child();
			if (reader == 0)
				_exit(pread(cached, &byte, 1, 0) != 1);
			/* Until the page is being read, and until the process waits for it. */
			usleep(100000);
			tell(told[1], "l");
			usleep(100000);
		} else if (!strcmp(line, "unlock\n")) {
			/* It would read the page again, which the mapping takes away. It ends once it has the answer. */
			kill(reader, SIGKILL);
			tell(answer[1], "a");
			waitpid(reader, NULL, 0);
			await(done[0]);
		} else if (!strcmp(line, "grow\n")) {
			tell(told[1], "g");
			await(done[0]);
		} else {
			break;
		}
		say("ok\n");
	}
	return 0;
}
