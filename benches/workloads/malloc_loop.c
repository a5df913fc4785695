// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Allocates and frees, and does nothing else.
//
//   malloc_loop SIZE COUNT     each block is freed at once
//   malloc_loop mixed COUNT    10,000 blocks of 16 to 512 bytes live; a random one is replaced each time

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	static void *blocks[10000];
	uint64_t random = 1;

	if (argc != 3)
		return 2;
	size_t size = strtoul(argv[1], NULL, 10);
	for (long n = strtol(argv[2], NULL, 10); n > 0; n--) {
		if (size) {
			free(malloc(size));
			continue;
		}
		random = random * 6364136223846793005u + 1442695040888963407u;
		void **block = &blocks[(random >> 33) % 10000];
		free(*block);
		*block = malloc(16 + (random >> 50) % 497);
	}
	return 0;
}
