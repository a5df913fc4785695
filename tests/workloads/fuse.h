// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A file system (FUSE) with one file that is slow to read. Needs root.

#ifndef FUSE_H
#define FUSE_H

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "common.h"

#define FILE_NODE 2
#define FILE_BYTES 4096

static inline void reply(int fuse, __u64 unique, int error, const void *data, size_t size)
{
	struct fuse_out_header header = {
		.len = (__u32)(sizeof(header) + size), .error = error, .unique = unique,
	};
	struct iovec parts[] = { { &header, sizeof(header) }, { (void *)data, size } };

	/* The kernel may have given the request up. */
	if (writev(fuse, parts, 2) < 0)
		return;
}

/*
 * The file system: one file, the first opening of which is cached. Who reads it has an answer once `told` says so, or if there is no
 * `told` after so many microseconds.
 */
static inline void serve(int fuse, int told, unsigned int delay)
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

	while (poll(from, told < 0 ? 1 : 2, -1) > 0) {
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
			if (told < 0) {
				usleep(delay);
				reply(fuse, reads, 0, page, sizeof(page));
			}
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
			break;
		default:
			reply(fuse, in->unique, -ENOSYS, NULL, 0);
		}
	}
}

/* Mounts it. */
static inline void mount_file(int fuse, const char *directory)
{
	char options[64];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (mount("memprof-test", directory, "fuse", MS_NOSUID | MS_NODEV, options))
		die("mount");
}

/* Opens the file, by way of the page cache and past it, and has the mount go once it is closed. */
static inline void open_file(const char *directory, int *cached, int *direct)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/file", directory);
	*cached = open(path, O_RDONLY | O_CLOEXEC);
	*direct = open(path, O_RDONLY | O_CLOEXEC);
	if (umount2(directory, MNT_DETACH) || *cached < 0 || *direct < 0)
		die("cannot open the file");
}

#endif
