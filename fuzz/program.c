/* The program tests/corpus/program-x86_64:
 *
 *   gcc -O2 -g -Wl,-z,norelro -Wl,-z,noseparate-code -o program-x86_64 program.c
 *
 * packed-x86_64, zstd-x86_64 and zdebug-x86_64 are what objcopy --compress-debug-sections=zlib, zstd and zlib-gnu make of it; in lines-x86_64 a fuzzer has
 * damaged the line numbers, over which an earlier reader panicked.
 *
 * sectionless-x86_64 is a copy that ends with its last segment, whose header says that there are no sections.
 *
 * minidebug-x86_64 is a stripped copy with its symbols in .gnu_debugdata, as the MiniDebugInfo chapter of gdb's manual
 * makes it; go-x86_64 and go1-x86_64 are stripped copies with a .gopclntab of Go 1.20 and Go 1.2 for the same functions.
 */
#include <stdlib.h>
#include <alloca.h>
#include <string.h>
static inline void *in(int n) { return malloc(n); }
__attribute__((noinline)) void *out(int n) { return in(n + 1); }
__attribute__((noinline)) int aligned(int n) { char b[n] __attribute__((aligned(64))); memset(b, n, n); return b[n / 2]; }
int main(int c, char **v) { return out(c) == 0 ? aligned(c) : c; }
