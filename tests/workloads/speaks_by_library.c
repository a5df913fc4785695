// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Does what speaker.c does, with its probes in a library that it loads: its first argument.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int (*speak)(void) = library ? (int (*)(void))dlsym(library, "speak") : NULL;

	if (!speak) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return speak();
}
