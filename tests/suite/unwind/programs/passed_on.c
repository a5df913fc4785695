/*
 * A function that passes the result of a library's function on to a third one, as a thread's outermost function passes on the
 * thread's result. The library is compiled with -DLIBRARY. The program's unwind table has 16 pages, those of the library and
 * the loader together fewer.
 */
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LEAF = 16 * PAGE };

char *passed_leaf(char *at);

#ifdef LIBRARY

char *passed_leaf(char *at)
{
	for (size_t i = 0; i < LEAF; i += PAGE)
		((volatile char *)at)[i] = 1;
	return at;
}

#else

__asm__(".text\n.rept 16\n.cfi_startproc\n.skip 0xffff, 0x90\nret\n.cfi_endproc\n.endr\n");

static __attribute__((noinline, noclone)) void use(char *at)
{
	__asm__ volatile("" ::"r"(at) : "memory");
}

static void *body(void *at)
{
	use(passed_leaf(at));
	__asm__ volatile("" ::: "memory");
	return NULL;
}

int main(void)
{
	char *at = mmap(NULL, LEAF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	/* The library's table may have to be built again: it makes room for others until the library is mapped. */
	sleep(2);
	return pthread_create(&thread, NULL, body, at) || pthread_join(thread, NULL);
}

#endif
