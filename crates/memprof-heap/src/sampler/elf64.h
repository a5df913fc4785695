/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The structures of the ELF format that next.c reads, with the names of the specification, and the list of loaded files
 * from <link.h>.
 */
#ifndef MEMPROF_SAMPLER_ELF64_H
#define MEMPROF_SAMPLER_ELF64_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t Elf64_Addr;

typedef struct {
	uint32_t p_type, p_flags;
	uint64_t p_offset;
	Elf64_Addr p_vaddr, p_paddr;
	uint64_t p_filesz, p_memsz, p_align;
} Elf64_Phdr;

typedef struct {
	Elf64_Addr r_offset;
	uint64_t r_info;
	int64_t r_addend;
} Elf64_Rela;

typedef struct {
	int64_t d_tag;
	Elf64_Addr d_ptr;
} Elf64_Dyn;

typedef struct {
	uint32_t st_name;
	uint8_t st_info, st_other;
	uint16_t st_shndx;
	Elf64_Addr st_value;
	uint64_t st_size;
} Elf64_Sym;

enum { PT_LOAD = 1, PT_DYNAMIC = 2, PT_GNU_RELRO = 0x6474e552, PF_W = 2 };
enum { DT_NULL = 0, DT_PLTRELSZ = 2, DT_HASH = 4, DT_STRTAB = 5, DT_SYMTAB = 6, DT_RELA = 7, DT_RELASZ = 8, DT_JMPREL = 23 };
enum { DT_GNU_HASH = 0x6ffffef5, DT_VERSYM = 0x6ffffff0 };
enum { STB_LOCAL = 0, STT_NOTYPE = 0, STT_FUNC = 2, STT_GNU_IFUNC = 10, SHN_UNDEF = 0 };

/* Relocations at which a loader writes the address of a symbol. */
#if defined(__x86_64__)
enum { R_ADDRESS = 1, R_GLOB_DAT = 6, R_JUMP_SLOT = 7 };
#elif defined(__aarch64__)
enum { R_ADDRESS = 257, R_GLOB_DAT = 1025, R_JUMP_SLOT = 1026 };
#endif

struct dl_phdr_info {
	Elf64_Addr dlpi_addr;
	const char *dlpi_name;
	const Elf64_Phdr *dlpi_phdr;
	uint16_t dlpi_phnum;
	/* Numbers of files ever loaded and unloaded; some C libraries lack them. */
	unsigned long long dlpi_adds, dlpi_subs;
};
extern __attribute__((weak)) int dl_iterate_phdr(int (*)(struct dl_phdr_info *, size_t, void *), void *);

#endif
