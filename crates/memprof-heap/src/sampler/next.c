/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds the functions that the program would call without this library, as dlsym(RTLD_NEXT) does. In a process that was
 * already running, finds the functions that it calls. dlsym() is not an option: it may allocate, and older C libraries
 * have it in a library of its own.
 */
#include "loaded.h"

/* glibc makes the addresses in the dynamic section absolute, musl does not, and no loader does in the vDSO's. */
static const void *address_of(Elf64_Addr base, Elf64_Addr value)
{
	return (const void *)(value < base ? base + value : value);
}

bool symbols_of(const struct dl_phdr_info *file, struct symbols *out)
{
	const Elf64_Dyn *entry = NULL;
	for (int n = 0; n < file->dlpi_phnum; n++)
		if (file->dlpi_phdr[n].p_type == PT_DYNAMIC)
			entry = (const Elf64_Dyn *)(file->dlpi_addr + file->dlpi_phdr[n].p_vaddr);
	if (entry == NULL)
		return false;
	*out = (struct symbols){.base = file->dlpi_addr};
	for (; entry->d_tag != DT_NULL; entry++) {
		const void *address = address_of(file->dlpi_addr, entry->d_ptr);
		switch (entry->d_tag) {
		case DT_SYMTAB:
			out->table = address;
			break;
		case DT_STRTAB:
			out->names = address;
			break;
		case DT_GNU_HASH:
			out->gnu_hash = address;
			break;
		case DT_HASH:
			out->hash = address;
			break;
		case DT_VERSYM:
			out->versions = address;
			break;
		case DT_RELA:
			out->rela = address;
			break;
		case DT_RELASZ:
			out->rela_bytes = entry->d_ptr;
			break;
		case DT_JMPREL:
			out->jmprel = address;
			break;
		case DT_PLTRELSZ:
			out->jmprel_bytes = entry->d_ptr;
			break;
		}
	}
	return out->table && out->names;
}

bool equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* The function's address, if this entry of the symbol table defines it. */
static void *defined(const struct symbols *in, uint32_t index, const char *name)
{
	const Elf64_Sym *symbol = &in->table[index];
	int type = symbol->st_info & 0xf, binding = symbol->st_info >> 4;
	if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || binding == STB_LOCAL)
		return NULL;
	if (type != STT_FUNC && type != STT_NOTYPE && type != STT_GNU_IFUNC)
		return NULL;
	/* The highest bit marks an old version, only for programs that request it. */
	if ((in->versions && in->versions[index] & 0x8000) || !equal(in->names + symbol->st_name, name))
		return NULL;
	void *address = (void *)(in->base + symbol->st_value);
	return type == STT_GNU_IFUNC ? ((void *(*)(void))address)() : address;
}

static void *find_gnu(const struct symbols *in, const char *name)
{
	uint32_t hash = 5381;
	for (const char *at = name; *at; at++)
		hash = hash * 33 + (uint8_t)*at;
	uint32_t buckets = in->gnu_hash[0], first = in->gnu_hash[1], bloom_words = in->gnu_hash[2];
	const uint32_t *bucket = in->gnu_hash + 4 + 2 * bloom_words, *chain = bucket + buckets;
	uint32_t index = buckets ? bucket[hash % buckets] : 0;
	if (index < first)
		return NULL;
	for (;; index++) {
		uint32_t other = chain[index - first];
		void *found = (hash | 1) == (other | 1) ? defined(in, index, name) : NULL;
		if (found || other & 1)
			return found;
	}
}

static void *find_sysv(const struct symbols *in, const char *name)
{
	uint32_t hash = 0;
	for (const char *at = name; *at; at++) {
		hash = (hash << 4) + (uint8_t)*at;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	uint32_t buckets = in->hash[0];
	const uint32_t *bucket = in->hash + 2, *chain = bucket + buckets;
	void *found = NULL;
	for (uint32_t index = buckets ? bucket[hash % buckets] : 0; index && !found; index = chain[index])
		found = defined(in, index, name);
	return found;
}

void *find_symbol(const struct symbols *in, const char *name)
{
	return in->gnu_hash ? find_gnu(in, name) : in->hash ? find_sysv(in, name) : NULL;
}

/* Whether an address lies in a loaded file. */
bool is_in(const struct dl_phdr_info *file, uintptr_t address)
{
	uintptr_t here = address - file->dlpi_addr;
	for (int n = 0; n < file->dlpi_phnum; n++) {
		const Elf64_Phdr *header = &file->dlpi_phdr[n];
		if (header->p_type == PT_LOAD && here - header->p_vaddr < header->p_memsz)
			return true;
	}
	return false;
}

bool is_own(const struct dl_phdr_info *file)
{
	return is_in(file, (uintptr_t)&memprof_heap_config);
}

struct search {
	struct symbol_request *requests;
	size_t count;
	struct own *own;
	size_t files; /* examined so far, without this library */
	bool own_seen;
};

static int search_file(struct dl_phdr_info *file, size_t size, void *data)
{
	(void)size;
	struct search *search = data;
	struct symbols in;
	if (is_own(file)) {
		search->own_seen = true;
		search->own->path = file->dlpi_name;
		return 0;
	}
	if (!symbols_of(file, &in))
		return 0;
	/*
	 * Files before this library are the program, and libraries preloaded before it. Without preloading, only the
	 * program comes first.
	 */
	bool before = is_injected() ? search->files++ == 0 : !search->own_seen;
	if (before)
		search->own->program_has_malloc |= find_symbol(&in, "malloc") != NULL;
	if (before && !is_injected())
		return 0;
	for (struct symbol_request *request = search->requests; request < search->requests + search->count; request++)
		if (!request->address) {
			request->address = find_symbol(&in, request->symbol);
			request->file = in.base;
		}
	return 0;
}

void find_next(struct symbol_request *requests, size_t count, struct own *own)
{
	struct search search = {requests, count, own, 0, false};
	if (dl_iterate_phdr)
		dl_iterate_phdr(search_file, &search);
}

/* The compiler clears and copies structures with these functions. */
__attribute__((visibility("hidden"))) void *memset(void *to, int byte, size_t bytes)
{
	for (volatile uint8_t *at = to; bytes > 0; bytes--)
		*at++ = (uint8_t)byte;
	return to;
}

__attribute__((visibility("hidden"))) void *memcpy(void *to, const void *from, size_t bytes)
{
	const uint8_t *in = from;
	for (volatile uint8_t *at = to; bytes > 0; bytes--)
		*at++ = *in++;
	return to;
}
