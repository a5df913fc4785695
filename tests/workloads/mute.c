// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A process whose program lies on a file system that stops answering, as behind a file server that is gone.
//
// Build:
//   cc -O1 -g -fno-omit-frame-pointer -o mute mute.c
// Run, as root:
//   mute DIRECTORY MIB [USER]
//
// It mounts a file system of its own (FUSE) on DIRECTORY, in a mount namespace of its own, with one file: itself. It
// executes that file as a process that takes MIB of memory. Then it says `ready PID` and takes commands, one on each line,
// and answers `ok` to each. With USER, an id, the process and the file system are that user's, and nobody else may read it:
//
//   mute      the file system takes requests, and answers none. Who asks it something cannot be killed meanwhile.
//   speak     it answers all of them
//   grow      the process takes MIB more
//   quit      also at the end of the input
//
// With `mute DIRECTORY serve FILE COMMAND…` the file system contains FILE, under any name, and the process becomes the command.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "children.h"
#include "common.h"
#include "fuse.h"

#define MAX_WAITING 256

/* Answers a request. Nothing is cached of names and attributes, so every look at the file is one. */
static void answer(int fuse, int program, const struct fuse_in_header *in)
{
	static char part[1 << 20];
	const struct fuse_attr root = { .ino = FUSE_ROOT_ID, .mode = S_IFDIR | 0755, .nlink = 2 };
	struct fuse_attr file = { .ino = FILE_NODE, .mode = S_IFREG | 0755, .nlink = 1 };
	struct stat about;

	if (fstat(program, &about))
		die("fstat");
	file.size = (__u64)about.st_size;
	file.blocks = (__u64)about.st_blocks;
	switch (in->opcode) {
	case FUSE_INIT: {
		const struct fuse_init_in *wanted = (const void *)(in + 1);
		struct fuse_init_out out = {
			.major = FUSE_KERNEL_VERSION, .minor = wanted->minor,
			.max_readahead = wanted->max_readahead, .max_write = 1 << 17,
		};

		reply(fuse, in->unique, 0, &out, sizeof(out));
		break;
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = { .nodeid = FILE_NODE, .attr = file };

		reply(fuse, in->unique, 0, &out, sizeof(out));
		break;
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = { .attr = in->nodeid == FILE_NODE ? file : root };

		reply(fuse, in->unique, 0, &out, sizeof(out));
		break;
	}
	case FUSE_OPEN: {
		struct fuse_open_out out = { 0 };

		reply(fuse, in->unique, 0, &out, sizeof(out));
		break;
	}
	case FUSE_READ: {
		const struct fuse_read_in *wanted = (const void *)(in + 1);
		size_t size = wanted->size < sizeof(part) ? wanted->size : sizeof(part);
		ssize_t got = pread(program, part, size, (off_t)wanted->offset);

		reply(fuse, in->unique, got < 0 ? -EIO : 0, part, got < 0 ? 0 : (size_t)got);
		break;
	}
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		reply(fuse, in->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		reply(fuse, in->unique, -ENOSYS, NULL, 0);
	}
}

static void serve_program(int fuse, int program, int told)
{
	static char request[FUSE_MIN_READ_BUFFER + (1 << 17)];
	static void *waiting[MAX_WAITING];
	struct pollfd from[] = { { .fd = fuse, .events = POLLIN }, { .fd = told, .events = POLLIN } };
	size_t count = 0;
	char what = 's';

	while (poll(from, 2, -1) > 0) {
		const struct fuse_in_header *in = (const void *)request;
		ssize_t size;

		if (from[1].revents) {
			if (read(told, &what, 1) != 1)
				return;
			while (what == 's' && count) {
				answer(fuse, program, waiting[--count]);
				free(waiting[count]);
			}
			continue;
		}
		size = read(fuse, request, sizeof(request));
		if (size < (ssize_t)sizeof(*in))
			return;
		if (what == 's') {
			answer(fuse, program, in);
		} else if (count < MAX_WAITING) {
			waiting[count] = malloc((size_t)size);
			if (!waiting[count])
				die("malloc");
			memcpy(waiting[count++], request, (size_t)size);
		}
	}
}

/* Exported. */
NOINLINE void take(size_t mib)
{
	hold(mib);
	keep_frame();
}

/* The process: takes memory for each byte that comes. */
static void run(size_t mib)
{
	char what = 'g';

	/* It needs nothing of its file any more. */
	if (geteuid() == 0 && mlockall(MCL_CURRENT))
		die("mlockall");
	do {
		take(mib);
		if (write(STDOUT_FILENO, &what, 1) != 1)
			die("write");
	} while (read(STDIN_FILENO, &what, 1) == 1);
}

static void mount_at(const char *directory, int fuse, const char *user)
{
	char options[96];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%s,group_id=%s%s", fuse, user, user,
		 strcmp(user, "0") ? "" : ",allow_other");
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("mute", directory, "fuse", MS_NOSUID | MS_NODEV, options))
		die("mount");
}

/* Returns only where it fails. */
static int serve_beside(const char *directory, const char *file, char **command)
{
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), served = open(file, O_RDONLY | O_CLOEXEC), told[2];

	/* The server ends when nobody has the other end of the pipe any more. */
	if (fuse < 0 || served < 0 || pipe(told))
		die(file);
	mount_at(directory, fuse, "0");
	if (fork() == 0) {
		close(told[1]);
		serve_program(fuse, served, told[0]);
		_exit(0);
	}
	close(told[0]);
	execvp(command[0], command);
	die("exec");
	return 1;
}

int main(int argc, char **argv)
{
	int fuse, program, server[2], told[2], done[2];
	const char *user = argc > 3 ? argv[3] : "0";
	char path[4096], line[16];
	pid_t pid;

	if (argc > 4 && !strcmp(argv[2], "serve"))
		return serve_beside(argv[1], argv[3], argv + 4);
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: mute DIRECTORY MIB [USER]\n");
		return 2;
	}
	if (!strcmp(argv[1], "run")) {
		run(strtoul(argv[2], NULL, 10));
		return 0;
	}
	fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (fuse < 0 || program < 0 || pipe2(server, O_CLOEXEC) || pipe2(told, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
		die("/dev/fuse");
	mount_at(argv[1], fuse, user);
	if (child() == 0) {
		serve_program(fuse, program, server[0]);
		_exit(0);
	}
	close(fuse);
	snprintf(path, sizeof(path), "%s/mute", argv[1]);
	pid = child();
	if (pid == 0) {
		dup2(told[0], STDIN_FILENO);
		dup2(done[1], STDOUT_FILENO);
		if (setgid((gid_t)atoi(user)) || setuid((uid_t)atoi(user)))
			die("setuid");
		execl(path, path, "run", argv[2], NULL);
		die("exec");
	}
	await(done[0]);
	printf("ready %d\n", pid);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "mute\n") || !strcmp(line, "speak\n")) {
			tell(server[1], line);
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
