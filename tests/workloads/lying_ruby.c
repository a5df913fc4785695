/*
 * Claims to be CRuby 3.1, and shows frames that no interpreter has. The argument says which: true (frames as there may be),
 * cycle, wild, huge, deep, endless. Then allocates memory in rb_vm_exec(), prints "ready", and ends with stdin.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default"), used, noinline))
#define WORD(at, offset) (*(uint64_t *)((char *)(at) + (offset)))
#define HALF(at, offset) (*(uint32_t *)((char *)(at) + (offset)))

enum { MEMORY = 16 << 20, DEEP = 600, FRAME = 64, BODY = 256 };

/* A value, the frames, then the one that is there from the start. */
static char stack[(DEEP + 2) * FRAME];
static char context[64], iseq[64], body[BODY], text[32], entries[16];
static uint64_t code[8], environments[2][4];

__attribute__((visibility("default"), used)) const int ruby_api_version[3] = { 3, 1, 0 };
__attribute__((visibility("default"), used)) __thread void *ruby_current_ec;

EXPORT void *rb_vm_exec(int cycle)
{
	/* { tag, retval, jump buffer of 5 words, prev }, which jumps into this function */
	volatile uint64_t tag[9] = { 0 };
	char *memory;

	tag[3] = (uint64_t)rb_vm_exec + 1;
	tag[7] = cycle ? (uint64_t)tag : 0;
	WORD(context, 24) = (uint64_t)tag;
	memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 1, MEMORY);
	return memory + tag[0];
}

EXPORT void *rb_iseq_eval(int cycle)
{
	return rb_vm_exec(cycle);
}

EXPORT void *rb_iseq_eval_main(int cycle)
{
	return rb_vm_exec(cycle);
}

/* A frame: pc, sp, iseq, self, ep. The last one ends vm_exec(). */
static void frame(char *at, int last)
{
	WORD(at, 0) = (uint64_t)(code + 2);
	WORD(at, 16) = (uint64_t)iseq;
	WORD(at, 32) = (uint64_t)&environments[last][2];
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "true";
	int nr = !strcmp(mode, "deep") ? DEEP : 2;
	char *first = stack + (DEEP + 1 - nr) * FRAME;

	/* A text of length 4 elsewhere. */
	WORD(text, 0) = 5 | 1 << 13;
	WORD(text, 16) = 4;
	WORD(text, 24) = (uint64_t) "name and more characters than the length says, for a length that is not true: "
				    "there have to be at least a hundred and twenty-eight of them";
	/* An internal object of kind 7: an instruction sequence of 8 words, all of line 7. */
	WORD(iseq, 0) = 0x1a | 7 << 12;
	WORD(iseq, 16) = (uint64_t)body;
	HALF(body, 0) = 1;
	HALF(body, 4) = 8;
	WORD(body, 8) = (uint64_t)code;
	WORD(body, 64) = WORD(body, 72) = WORD(body, 80) = (uint64_t)text;
	WORD(body, 88) = 7 << 1 | 1;
	WORD(body, 120) = (uint64_t)entries;
	WORD(body, 136) = 1;
	HALF(entries, 0) = 7;
	environments[1][2] = 0x20;

	for (int i = 0; i < nr; i++)
		frame(first + i * FRAME, i == nr - 1);
	WORD(context, 0) = (uint64_t)stack;
	WORD(context, 8) = sizeof(stack) / 8;
	WORD(context, 16) = (uint64_t)first;
	ruby_current_ec = context;
	if (!strcmp(mode, "wild")) {
		WORD(first + FRAME, 16) = 0xdeadbeef00ull;
		WORD(first, 32) = 0xffffffff80000000ull;
	} else if (!strcmp(mode, "huge")) {
		WORD(text, 16) = 1ull << 62;
		WORD(body, 136) = 0xffffffff;
		WORD(body, 144) = 0xffffffff80000000ull;
	} else if (!strcmp(mode, "endless")) {
		WORD(context, 8) = 1ull << 27;
		WORD(first + FRAME, 32) = (uint64_t)&environments[0][2];
	}
	if (!rb_iseq_eval(!strcmp(mode, "cycle")))
		return 1;
	puts("ready");
	fflush(stdout);
	getchar();
	return 0;
}
