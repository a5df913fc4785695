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
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "children.h"
#include "common.h"
#include "fuse.h"

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

int main(int argc, char **argv)
{
	size_t mib = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), answer[2], told[2], done[2], cached, direct;
	char line[16], byte;
	pid_t pid, reader = 0;

	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (!mib) {
		fprintf(stderr, "usage: locked DIRECTORY MIB\n");
		return 2;
	}
	if (fuse < 0 || pipe(answer) || pipe(told) || pipe(done))
		die("/dev/fuse");
	mount_file(fuse, argv[1]);
	if (child() == 0) {
		serve(fuse, answer[0], 0);
		_exit(0);
	}
	close(fuse);
	open_file(argv[1], &cached, &direct);
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
