// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A program whose page faults happen in functions that the compiler inlined.
//
// Build:
//   cc -O1 -g -o inlined inlined.c
//
// For each line on stdin it writes to 1 MiB of new memory and answers `ok`; it ends at the end of input.
// Markers on the lines that tests refer to: INNER, MIDDLE, OUTER.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SIZE (1UL << 20)

static inline __attribute__((always_inline)) void inner(volatile char *p)
{
    for (size_t i = 0; i < SIZE; i += 4096)
        p[i] = 1; // INNER
}

static inline __attribute__((always_inline)) void middle(volatile char *p)
{
    inner(p); // MIDDLE
}

static __attribute__((noinline)) void outer(void)
{
    char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || madvise(p, SIZE, MADV_NOHUGEPAGE) != 0)
        exit(1);
    middle(p); // OUTER
}

int main(void)
{
    char line[64];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        outer();
        puts("ok");
        fflush(stdout);
    }
    return 0;
}
