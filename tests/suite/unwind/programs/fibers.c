/*
 * Stacks whose first function was not called: a context of makecontext(), and a fiber that is begun and ended as
 * boost.context does. Each leaf function touches LEAF bytes.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { PAGE = 4096, LEAF = 16 * PAGE, STACK = 64 << 10 };
#define NOINLINE __attribute__((noinline, noclone))
/* After a call: prevents a tail call. */
#define STAY() __asm__ volatile("" ::: "memory")

static char *pages(size_t size)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

#define LEAF_FUNCTION(name)                                          \
	NOINLINE void name(void)                                     \
	{                                                            \
		char *at = pages(LEAF);                              \
                                                                     \
		for (size_t i = 0; i < LEAF; i += PAGE)              \
			((volatile char *)at)[i] = 1;                \
	}

LEAF_FUNCTION(context_leaf)
LEAF_FUNCTION(fiber_leaf)
LEAF_FUNCTION(resumed_leaf)

static ucontext_t back, there;

NOINLINE void context(void)
{
	size_t end = (size_t)__builtin_return_address(0) - 1;

	/* What ends the context has not run yet, so that it need not be in memory. */
	madvise((void *)(end & ~(size_t)(PAGE - 1)), PAGE, MADV_DONTNEED);
	context_leaf();
	STAY();
}

/* switch_to(from, to): saves the stack pointer, and goes on with another. The first time, in fiber_begin. */
void switch_to(void **from, void *to);
void fiber_begin(void);
__asm__(".text\n.type switch_to, @function\nswitch_to:\n"
	"push %rbp\npush %rbx\nmov %rsp, (%rdi)\nmov %rsi, %rsp\npop %rbx\npop %rbp\nret\n.size switch_to, .-switch_to\n"
	".type fiber_begin, @function\nfiber_begin:\n"
	"lea fiber_end(%rip), %rax\npush %rax\njmp *%rbx\n.size fiber_begin, .-fiber_begin\n"
	/* Nothing calls it: the fiber's function returns to it. */
	".type fiber_end, @function\nfiber_end:\n"
	"xor %rdi, %rdi\ncall _exit@PLT\nhlt\n.size fiber_end, .-fiber_end\n");

static void *here, *other;

NOINLINE void fiber(void)
{
	fiber_leaf();
	switch_to(&other, here);
	STAY();
}

int main(void)
{
	void **stack = (void **)(pages(STACK) + STACK);

	getcontext(&there);
	there.uc_stack.ss_sp = pages(STACK);
	there.uc_stack.ss_size = STACK;
	there.uc_link = &back;
	makecontext(&there, context, 0);
	swapcontext(&back, &there);

	*--stack = NULL;
	*--stack = fiber_begin;
	*--stack = NULL; /* rbp */
	*--stack = fiber; /* rbx */
	switch_to(&here, stack);
	resumed_leaf();
	return 0;
}
