// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program that performs many memory operations concurrently and indefinitely, for tests of drift and growth.
//
// Build:
//   cc -O1 -g -pthread -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
//      -o soak soak.c
//
// `soak DIRECTORY` has a thread for each of: mappings that grow, move, shrink and are unmapped (two threads);
// threads; forks that write inherited memory; execs; libraries; files in DIRECTORY, written, read, mapped,
// truncated and removed; shared memory; and four long-lived children, which also change their memory and are
// replaced at random. It prints `ready`, and runs one command per line of its input:
//   hold      waits until every thread has finished its round and stops the children; answers `held PID…` with
//             its own process id and the children's, which are then its only processes
//   go        continues; answers `ok`
//   late MIB  late_allocation writes MIB MiB, and keeps them; answers `ok`. No child inherits them
// It ends with status 0 at the end of its input; its children end with it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common.h"

#define CHILDREN 4

static const char *self, *directory;
static pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;
// Written by one thread during its rounds, read while the gate is closed.
static pid_t children[CHILDREN];
// Memory that forked children inherit and write.
static unsigned char *inherited;

#define INHERITED (64 * page_size)

static NOINLINE void soak_touch(unsigned char *start, size_t len)
{
	store_each_page(start, len);
}

static NOINLINE unsigned char *map(size_t len, int flags, int fd)
{
	unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static NOINLINE void soak_mappings(uint32_t dice)
{
	size_t len = page_size << (dice % 9);
	unsigned char *p = map_memory(len);

	soak_touch(p, len);
	if (dice & 0x200) {
		drop_pages(p, len / 2);
		soak_touch(p, len / 4);
	}
	if (dice & 0x400) {
		p = resize(p, len, len * 2);
		len *= 2;
		soak_touch(p, len);
	}
	if (dice & 0x800) {
		p = resize(p, len, page_size);
		len = page_size;
	}
	if (munmap(p, len))
		die("munmap");
}

static NOINLINE void *thread_body(void *unused)
{
	unsigned char on_stack[32 * 1024];

	soak_touch(on_stack, sizeof(on_stack));
	return unused;
}

static NOINLINE void soak_threads(uint32_t dice)
{
	pthread_t threads[4];
	unsigned n = dice % 4 + 1;

	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, thread_body, NULL))
			die("pthread_create");
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

static void wait_for(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("waitpid");
	if (status) {
		fprintf(stderr, "soak: a child ended with status %#x\n", (unsigned)status);
		_exit(1);
	}
}

static NOINLINE void soak_forks(uint32_t dice)
{
	pid_t pid = fork();

	if (pid == 0) {
		soak_touch(inherited, INHERITED / (dice % 4 + 1));
		for (unsigned i = 0; i < 3; i++)
			soak_mappings(dice + i);
		_exit(0);
	}
	wait_for(pid);
}

static NOINLINE void soak_execs(uint32_t dice)
{
	pid_t pid = fork();

	if (pid == 0) {
		if (dice % 2)
			execl("/bin/true", "true", (char *)NULL);
		else
			execl(self, self, "--child", (char *)NULL);
		_exit(127);
	}
	wait_for(pid);
}

static NOINLINE void soak_libraries(uint32_t dice)
{
	static const char *const names[] = { "libz.so.1", "libm.so.6", "libresolv.so.2" };
	void *library = dlopen(names[dice % 3], RTLD_NOW);

	if (!library) {
		fprintf(stderr, "soak: %s\n", dlerror());
		_exit(1);
	}
	dlclose(library);
}

static NOINLINE void soak_files(uint32_t dice)
{
	static unsigned char block[64 * 1024];
	char path[4096];
	unsigned blocks = dice % 16 + 1;
	size_t len = blocks * sizeof(block);
	unsigned char *p;
	int fd;

	snprintf(path, sizeof(path), "%s/soak-%u", directory, dice % 8);
	fd = open(path, O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		die(path);
	for (unsigned i = 0; i < blocks; i++)
		if (pwrite(fd, block, sizeof(block), (off_t)(i * sizeof(block))) != sizeof(block))
			die(path);
	for (unsigned i = 0; i < blocks; i++)
		if (pread(fd, block, sizeof(block), (off_t)(i * sizeof(block))) != sizeof(block))
			die(path);
	p = map(len, MAP_SHARED, fd);
	soak_touch(p, len);
	munmap(p, len);
	p = map(len, MAP_PRIVATE, fd);
	soak_touch(p, len / 2);
	munmap(p, len);
	if (dice & 0x100 && ftruncate(fd, (off_t)len / 2))
		die(path);
	close(fd);
	if (dice & 0x200)
		unlink(path);
}

static NOINLINE void soak_shared(uint32_t dice)
{
	size_t len = page_size << (dice % 8);
	int fd = memfd_create("soak", 0);
	unsigned char *p;

	if (fd < 0 || ftruncate(fd, (off_t)len))
		die("memfd_create");
	p = map(len, MAP_SHARED, fd);
	soak_touch(p, len);
	if (madvise(p, len, MADV_REMOVE))
		die("madvise");
	soak_touch(p, len / 2);
	munmap(p, len);
	close(fd);
	p = map(len, MAP_SHARED | MAP_ANONYMOUS, -1);
	soak_touch(p, len);
	munmap(p, len);
}

static NOINLINE void long_lived(uint32_t dice)
{
	unsigned char *kept = map_memory(INHERITED);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		dice = dice * 1664525 + 1013904223;
		soak_touch(kept, INHERITED / ((dice >> 16) % 8 + 1));
		soak_mappings(dice >> 16);
		if ((dice >> 16) % 16 == 0)
			drop_pages(kept, INHERITED);
		usleep(5000);
	}
}

// Replaces one of the children.
static NOINLINE void soak_children(uint32_t dice)
{
	pid_t *child = &children[dice % CHILDREN];
	int status;

	if (*child) {
		kill(*child, SIGKILL);
		if (waitpid(*child, &status, 0) != *child)
			die("waitpid");
	}
	*child = fork();
	if (*child < 0)
		die("fork");
	if (*child == 0)
		long_lived(dice);
}

struct work {
	void (*round)(uint32_t dice);
	unsigned pause_us;
};

static const struct work works[] = {
	{ soak_mappings, 500 },	  { soak_mappings, 1000 }, { soak_threads, 3000 }, { soak_forks, 20000 },
	{ soak_execs, 30000 },	  { soak_libraries, 5000 }, { soak_files, 10000 },  { soak_shared, 3000 },
	{ soak_children, 500000 },
};

static NOINLINE void *rounds(void *argument)
{
	const struct work *work = argument;
	uint32_t dice = (uint32_t)(work - works) + 1;

	for (;;) {
		dice = dice * 1664525 + 1013904223;
		pthread_rwlock_rdlock(&gate);
		work->round(dice >> 16);
		pthread_rwlock_unlock(&gate);
		usleep(work->pause_us);
	}
	return NULL;
}

static void hold(void)
{
	char text[256];
	int status, len;

	pthread_rwlock_wrlock(&gate);
	len = snprintf(text, sizeof(text), "held %d", (int)getpid());
	for (int i = 0; i < CHILDREN; i++) {
		if (!children[i])
			continue;
		kill(children[i], SIGSTOP);
		if (waitpid(children[i], &status, WUNTRACED) != children[i] || !WIFSTOPPED(status))
			die("waitpid");
		len += snprintf(text + len, sizeof(text) - (size_t)len, " %d", (int)children[i]);
	}
	snprintf(text + len, sizeof(text) - (size_t)len, "\n");
	say(text);
}

static void go(void)
{
	for (int i = 0; i < CHILDREN; i++)
		if (children[i])
			kill(children[i], SIGCONT);
	pthread_rwlock_unlock(&gate);
	say("ok\n");
}

static NOINLINE void late_allocation(size_t len)
{
	unsigned char *p = map_memory(len);

	// Another thread may fork meanwhile, and the child would hold what is written by then.
	if (madvise(p, len, MADV_DONTFORK))
		die("madvise");
	soak_touch(p, len);
	keep_frame();
}

int main(int argc, char **argv)
{
	pthread_rwlockattr_t holder_first;
	unsigned long mib;
	char line[64];

	self = "/proc/self/exe";
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	if (argc == 2 && strcmp(argv[1], "--child") == 0) {
		for (uint32_t dice = 0; dice < 3; dice++) {
			soak_libraries(dice);
			soak_mappings(dice + 3);
		}
		return 0;
	}
	if (argc != 2)
		return 2;
	directory = argv[1];
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	pthread_rwlockattr_init(&holder_first);
	pthread_rwlockattr_setkind_np(&holder_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&gate, &holder_first);
	inherited = map_memory(INHERITED);
	soak_touch(inherited, INHERITED);
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, rounds, (void *)(uintptr_t)&works[i]))
			die("pthread_create");
	}
	say("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "hold\n") == 0)
			hold();
		else if (strcmp(line, "go\n") == 0)
			go();
		else if (sscanf(line, "late %lu", &mib) == 1) {
			late_allocation(mib << 20);
			say("ok\n");
		} else
			return 2;
	}
	_exit(0);
}
