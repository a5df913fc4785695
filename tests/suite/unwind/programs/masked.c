/*
 * Functions without unwind information that have a pointer to zeros on the stack in the frame pointer register. Each touches
 * LEAF bytes: one itself, the other by a function that it calls. Their code does not show either what they have on the stack.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

enum { PAGE = 4096, LEAF = 16 * PAGE };

static char *pages(size_t size)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

__attribute__((noinline, noclone, used)) void called_leaf(char *at)
{
	for (size_t i = 0; i < LEAF; i += PAGE)
		((volatile char *)at)[i] = 1;
}

#define UNKNOWN_STACK "mov %rsp, %rax\nmov %rax, %rsp\n"

void masked_leaf(char *at, long *zeros);
void masked_caller(char *at, long *zeros);
__asm__(".text\n.type masked_leaf, @function\nmasked_leaf:\n"
	"push %rbp\nmov %rsi, %rbp\n" UNKNOWN_STACK "mov $16, %ecx\n"
	"1: movb $1, (%rdi)\nadd $4096, %rdi\ndec %ecx\njnz 1b\n"
	"pop %rbp\nret\n.size masked_leaf, .-masked_leaf\n"
	".type masked_caller, @function\nmasked_caller:\n"
	"push %rbp\nmov %rsi, %rbp\n" UNKNOWN_STACK "call called_leaf\npop %rbp\nret\n.size masked_caller, .-masked_caller\n");

int main(void)
{
	long zeros[4] = { 0 };

	masked_leaf(pages(LEAF), zeros);
	masked_caller(pages(LEAF), zeros);
	return 0;
}
