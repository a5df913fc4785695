/*
 * Makes functions at run time, all at one address, and names them as runtimes do: in a perf map, or in a jitdump file.
 * Function fN of round N touches 1 + N % 7 pages, which stay. At the end it kills itself, so that nothing is freed.
 *
 *   jit map ROUNDS            a perf map
 *   jit memfd ROUNDS          the same, of code in shared memory that is mapped twice: once to write, once to run
 *   jit trampoline ROUNDS     a perf map of functions like those of `python -X perf`
 *   jit dump ROUNDS           a jitdump file in the current directory; a pause between rounds
 *   jit hostile WHAT          a perf map that is not one, or is damaged; then as with `map 8`
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define CODE_BYTES 64

typedef void function(char *at, long pages);

static char map_path[64];
static char *code;

__attribute__((noinline)) void touch(char *at, long pages)
{
	for (long i = 0; i < pages; i++)
		((volatile char *)at)[i * PAGE] = 1;
}

static void put(unsigned char **to, const void *bytes, size_t n)
{
	memcpy(*to, bytes, n);
	*to += n;
}

/* Code that calls touch(), always the same: only its name differs. */
static void make(int trampoline)
{
	unsigned char *to = (unsigned char *)code;
	uint64_t target = (uint64_t)touch;

#if defined(__x86_64__)
	if (trampoline)
		put(&to, "\x48\x83\xec\x08", 4); /* sub $8, %rsp */
	else
		put(&to, "\x55\x48\x89\xe5", 4); /* push %rbp; mov %rsp, %rbp */
	put(&to, "\x48\xb8", 2);
	put(&to, &target, 8);
	put(&to, "\xff\xd0", 2);
	if (trampoline)
		put(&to, "\x48\x83\xc4\x08\xc3", 5); /* add $8, %rsp; ret */
	else
		put(&to, "\x5d\xc3", 2); /* pop %rbp; ret */
#else
	uint32_t words[] = {
		0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
		0x910003fd, /* mov x29, sp */
		0xd2800009 | (uint32_t)(target & 0xffff) << 5,
		0xf2a00009 | (uint32_t)(target >> 16 & 0xffff) << 5,
		0xf2c00009 | (uint32_t)(target >> 32 & 0xffff) << 5,
		0xf2e00009 | (uint32_t)(target >> 48 & 0xffff) << 5,
		0xd63f0120, /* blr x9 */
		0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
		0xd65f03c0, /* ret */
	};
	put(&to, words, sizeof(words));
#endif
	__builtin___clear_cache(code, code + CODE_BYTES);
}

static void must(int yes, const char *what)
{
	if (!yes) {
		perror(what);
		exit(1);
	}
}

static void write_all(int fd, const void *bytes, size_t n)
{
	must(write(fd, bytes, n) == (ssize_t)n, "write");
}

static void name_in_map(int fd, const char *format, int round)
{
	char line[128], name[64];

	snprintf(name, sizeof(name), format, round);
	snprintf(line, sizeof(line), "%lx %x %s\n", (unsigned long)code, CODE_BYTES, name);
	write_all(fd, line, strlen(line));
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void name_in_dump(int fd, int round)
{
	struct {
		uint32_t id, size;
		uint64_t time, addr, lines, line_addr;
		uint32_t line, discriminator;
		char file[8];
	} debug = { 2, sizeof(debug), now(), (uint64_t)code, 1, (uint64_t)code, 100 + round, 0, "/jit.x" };
	struct {
		uint32_t id, size;
		uint64_t time;
		uint32_t pid, tid;
		uint64_t vma, addr, bytes, index;
		char name[16];
		char code[CODE_BYTES];
	} load = { 0, sizeof(load), 0, getpid(), getpid(), (uint64_t)code, (uint64_t)code, CODE_BYTES, round, "", "" };

	snprintf(load.name, sizeof(load.name), "f%07d", round);
	/* The name and its terminator end where the code begins. */
	load.size -= sizeof(load.name) - (strlen(load.name) + 1);
	memcpy(load.name + strlen(load.name) + 1, code, CODE_BYTES);
	load.time = now();
	write_all(fd, &debug, sizeof(debug));
	write_all(fd, &load, load.size);
}

static int open_dump(void)
{
	struct {
		uint32_t magic, version, size, machine, pad, pid;
		uint64_t time, flags;
	} header = { 0x4a695444, 1, sizeof(header), 62, 0, getpid(), now(), 0 };
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "jit-%d.dump", getpid());
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	must(fd >= 0, path);
	write_all(fd, &header, sizeof(header));
	must(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED, "mmap the dump");
	return fd;
}

static int open_map(void)
{
	int fd = open(map_path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	must(fd >= 0, map_path);
	return fd;
}

static void hostile(const char *what)
{
	char *junk = malloc(1 << 20);
	int fd;

	memset(junk, 'x', 1 << 20);
	unlink(map_path);
	if (!strcmp(what, "fifo")) {
		must(!mkfifo(map_path, 0600), "mkfifo");
		fd = open("/dev/null", O_WRONLY);
	} else if (!strcmp(what, "symlink")) {
		must(!symlink("/etc/shadow", map_path), "symlink");
		fd = open("/dev/null", O_WRONLY);
	} else {
		fd = open_map();
	}
	if (!strcmp(what, "long line")) {
		for (int i = 0; i < 8; i++)
			write_all(fd, junk, 1 << 20);
		write_all(fd, "\n", 1);
	} else if (!strcmp(what, "nonsense")) {
		for (int i = 0; i < 1 << 20; i++)
			junk[i] = rand();
		write_all(fd, junk, 1 << 20);
		dprintf(fd, "\n%lx %lx whole\nffffffffffffffff ffffffffffffffff end\n%lx 0 none\n", 0ul, -1ul,
			(unsigned long)code);
	} else if (!strcmp(what, "many")) {
		for (int i = 0; i < 500000; i += 16384) {
			int n = 0;

			for (int k = 0; k < 16384; k++)
				n += sprintf(junk + n, "%x 10 a long name of a function %d\n", (i + k) * 16, i + k);
			write_all(fd, junk, n);
		}
	}
	for (int i = 0; i < 8; i++) {
		name_in_map(fd, "f%d", i);
		((function *)code)(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
				   1 + i % 7);
		if (!strcmp(what, "truncated")) {
			must(!ftruncate(fd, 0), "ftruncate");
			lseek(fd, 0, SEEK_SET);
		}
		usleep(50000);
	}
}

static void move_to_memfd(void)
{
	int fd = memfd_create("code", MFD_CLOEXEC);

	must(fd >= 0 && !ftruncate(fd, PAGE) && write(fd, code, PAGE) == PAGE, "memfd");
	must(!munmap(code, PAGE), "munmap");
	code = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	must(code != MAP_FAILED, "mmap");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	int rounds = argc > 2 ? atoi(argv[2]) : 0, fd = -1;
	char *memory;

	snprintf(map_path, sizeof(map_path), "/tmp/perf-%d.map", getpid());
	code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(code != MAP_FAILED, "mmap");
	make(!strcmp(mode, "trampoline"));
	if (!strcmp(mode, "memfd"))
		move_to_memfd();
	/* A runtime starts, too. */
	usleep(500000);
	if (!strcmp(mode, "hostile")) {
		hostile(argv[2]);
	} else {
		memory = mmap(NULL, (size_t)rounds * 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(memory != MAP_FAILED, "mmap");
		madvise(memory, (size_t)rounds * 8 * PAGE, MADV_NOHUGEPAGE);
		fd = !strcmp(mode, "dump") ? open_dump() : open_map();
		for (int i = 0; i < rounds; i++) {
			if (!strcmp(mode, "dump")) {
				/* Its records are seen when they are read, every 10 ms. */
				usleep(100000);
				name_in_dump(fd, i);
				usleep(100000);
			} else {
				name_in_map(fd, !strcmp(mode, "trampoline") ? "py::f%d:/jit.py" : "f%d", i);
			}
			((function *)code)(memory + (size_t)i * 8 * PAGE, 1 + i % 7);
		}
	}
	usleep(500000);
	if (getenv("JIT_WAITS")) {
		puts("done");
		fflush(stdout);
		/* Until the test is over. */
		(void)getchar();
	}
	kill(getpid(), SIGKILL);
	return 0;
}
