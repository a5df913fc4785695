/* The program tests/corpus/program-x86_64:
 *
 *   gcc -O2 -g -Wl,-z,norelro -Wl,-z,noseparate-code -o program-x86_64 program.c
 */
#include <stdlib.h>
#include <alloca.h>
#include <string.h>
static inline void *in(int n) { return malloc(n); }
__attribute__((noinline)) void *out(int n) { return in(n + 1); }
__attribute__((noinline)) int aligned(int n) { char b[n] __attribute__((aligned(64))); memset(b, n, n); return b[n / 2]; }
int main(int c, char **v) { return out(c) == 0 ? aligned(c) : c; }
