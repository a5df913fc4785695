/*
 * A program that needs a library (-DLIBRARY), whose function touches LEAF bytes as the first thing that the program does.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

enum { PAGE = 4096, LEAF = 16 * PAGE };
void served_leaf(void);

#ifdef LIBRARY
void served_leaf(void)
{
	char *at = mmap(NULL, LEAF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (size_t i = 0; i < LEAF; i += PAGE)
		((volatile char *)at)[i] = 1;
}
#else
int main(void)
{
	served_leaf();
	return 0;
}
#endif
