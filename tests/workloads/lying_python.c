/*
 * Claims to be CPython 3.11, and shows frames that no interpreter has. The argument says which: cycle, wild, huge, deep.
 * Then allocates memory in allocate(), prints "ready", and ends with stdin.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default"), used))
#define WORD(at, offset) (*(uint64_t *)((char *)(at) + (offset)))
#define HALF(at, offset) (*(uint32_t *)((char *)(at) + (offset)))

enum { MEMORY = 16 << 20, DEEP = 600 };

EXPORT const unsigned long Py_Version = 0x030b02f0;
EXPORT char _PyRuntime[4096] = { 1 };
EXPORT char PyCode_Type[408] = { 1 };

static char code[192], frames[2][128], state[512], text[256], lines[64];

EXPORT __attribute__((noinline)) void *_PyEval_EvalFrameDefault(void)
{
	char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(memory, 1, MEMORY);
	return memory;
}

__attribute__((noinline)) static void *run(uint64_t *cframe)
{
	/* _PyCFrame, in this function's stack frame: the innermost frame, and the previous cframe. */
	cframe[1] = (uint64_t)frames[0];
	WORD(state, 0x38) = (uint64_t)cframe;
	return _PyEval_EvalFrameDefault();
}

/* The outermost frame of its evaluator: is_entry. */
static void last(char *frame)
{
	frame[0x44] = 1;
	WORD(frame, 0x30) = 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "cycle";
	uint64_t cframe[4] = { 0 };
	pthread_key_t key;

	if (pthread_key_create(&key, NULL) || pthread_setspecific(key, state))
		return 1;
	HALF(_PyRuntime, 0x250) = 1;
	HALF(_PyRuntime, 0x254) = key;
	WORD(state, 0x98) = (uint64_t)pthread_self();

	/* A text of length 4, one byte a character, ASCII. */
	WORD(text, 16) = 4;
	HALF(text, 32) = 1 << 2 | 1 << 5 | 1 << 6;
	strcpy(text + 48, "name");
	WORD(lines, 16) = 0;
	WORD(code, 0) = 1;
	WORD(code, 8) = (uint64_t)PyCode_Type;
	HALF(code, 0x48) = 7;
	WORD(code, 0x70) = WORD(code, 0x80) = (uint64_t)text;
	WORD(code, 0x88) = (uint64_t)lines;
	for (int i = 0; i < 2; i++) {
		WORD(frames[i], 0x20) = (uint64_t)code;
		WORD(frames[i], 0x30) = (uint64_t)frames[1 - i];
		WORD(frames[i], 0x38) = (uint64_t)code + 0xb8;
	}
	if (!strcmp(mode, "wild")) {
		WORD(frames[1], 0x20) = 0xdeadbeef00ull;
		WORD(frames[1], 0x30) = 0xffffffff80000000ull;
	} else if (!strcmp(mode, "huge")) {
		last(frames[1]);
		WORD(text, 16) = 1ull << 62;
		WORD(lines, 16) = 1ull << 40;
	} else if (!strcmp(mode, "deep")) {
		char *all = calloc(DEEP, 128);

		for (int i = 0; i < DEEP; i++) {
			memcpy(all + 128 * i, frames[0], 128);
			WORD(all + 128 * i, 0x30) = i + 1 < DEEP ? (uint64_t)(all + 128 * (i + 1)) : 0;
		}
		last(all + 128 * (DEEP - 1));
		WORD(frames[0], 0x30) = (uint64_t)all;
	}
	if (!run(cframe))
		return 1;
	puts("ready");
	fflush(stdout);
	getchar();
	return 0;
}
