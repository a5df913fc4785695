// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A library that watches the dynamic loader (LD_AUDIT) and sleeps whenever a file is loaded.
//
// Build:
//   cc -O1 -g -shared -fPIC -o auditor auditor.c

#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <unistd.h>

unsigned int la_version(unsigned int version)
{
	return version;
}

unsigned int la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
	(void)map;
	(void)namespace;
	(void)cookie;
	usleep(2000);
	return 0;
}
