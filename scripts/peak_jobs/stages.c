/*
 * A job in stages: it reserves much and uses a part of it, fills blocks, maps a file, and ends with little.
 * The highest heap and the highest RSS are not at the same moment.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BLOCK (64 * 1024)

__attribute__((noinline)) static char *reserve(void)
{
	/* 200 MiB, of which it uses 20. */
	char *table = malloc(200 * MIB);

	memset(table, 1, 20 * MIB);
	return table;
}

__attribute__((noinline)) static char **fill(size_t blocks)
{
	char **all = malloc(blocks * sizeof(*all));

	for (size_t i = 0; i < blocks; i++)
		all[i] = memset(malloc(BLOCK), 2, BLOCK);
	return all;
}

__attribute__((noinline)) static long scan(const char *path, size_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	long sum = 0;
	char *file;

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		exit(1);
	file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(file, 3, bytes);
	for (size_t at = 0; at < bytes; at += 4096)
		sum += file[at];
	/* The highest RSS: the blocks and the file. */
	munmap(file, bytes);
	close(fd);
	unlink(path);
	return sum;
}

int main(int argc, char **argv)
{
	char *table = reserve(), **blocks;
	long sum;

	/* The highest heap: 200 MiB and 96 MiB. */
	blocks = fill(1536);
	free(table);
	sum = scan(argc > 1 ? argv[1] : "stages.tmp", 128 * MIB);
	for (size_t i = 0; i < 1536; i++)
		free(blocks[i]);
	free(blocks);
	usleep(200 * 1000);
	return sum == 0;
}
