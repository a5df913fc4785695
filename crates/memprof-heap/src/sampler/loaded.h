/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * next.c: loaded files, as described by their own dynamic sections.
 */
#ifndef MEMPROF_SAMPLER_LOADED_H
#define MEMPROF_SAMPLER_LOADED_H

#include "elf64.h"
#include "sampler.h"

/* A loaded file's symbols, and its relocations. */
struct symbols {
	Elf64_Addr base;
	const Elf64_Sym *table;
	const char *names;
	const uint32_t *gnu_hash, *hash;
	const uint16_t *versions;
	const Elf64_Rela *rela, *jmprel;
	size_t rela_bytes, jmprel_bytes;
};

/* Returns false if the file has no symbols. */
bool symbols_of(const struct dl_phdr_info *file, struct symbols *out);
/* The address of a function that the file defines; NULL if it defines none of this name. */
void *find_symbol(const struct symbols *in, const char *name);
bool is_in(const struct dl_phdr_info *file, uintptr_t address);
bool is_own(const struct dl_phdr_info *file);
bool equal(const char *a, const char *b);

#endif
