/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Patches the imports of a process that was already running. The program and its libraries contain the addresses of the
 * allocator's functions: the loader has written them to the targets of the files' relocations. They are replaced one by
 * one by the addresses of this library's functions. A thread calls either the old function, or the new one, which calls
 * the old one.
 *
 * This code runs in the library's constructor, under the loader's lock: no other file is loaded, relocated or unloaded
 * meanwhile. Files that are loaded later are patched when the program looks up a symbol, as it does in a file that it
 * has just loaded. The lookup also takes the loader's lock, and the loader calls look_again() under it.
 */
#include "loaded.h"
#include "python.h"

struct imports EXPORTED memprof_heap_imports;

extern __attribute__((weak)) unsigned long getauxval(unsigned long);
extern __attribute__((weak)) int mprotect(void *, size_t, int);

enum { PROT_READ = 1, PROT_WRITE = 2, AT_PAGESZ = 6, MAX_IMPORTS = 64, MAX_KNOWN = 1024 };

static struct import imports[MAX_IMPORTS];
static size_t count;

/* Load addresses of the files examined so far. A collision forgets the older file, which is then examined again. */
static uintptr_t known[MAX_KNOWN];
/* Numbers of files loaded and unloaded at that time. */
static unsigned long long adds, subs;

void add_import(const char *symbol, void *from, void *to)
{
	if (is_injected() && from && count < MAX_IMPORTS)
		imports[count++] = (struct import){symbol, from, to};
}

static const struct import *import_named(const char *name)
{
	for (size_t n = 0; n < count; n++)
		if (*imports[n].symbol == *name && equal(imports[n].symbol, name))
			return &imports[n];
	return NULL;
}

/* A file whose imports are patched. */
struct patching {
	const struct dl_phdr_info *file;
	uintptr_t read_only, read_only_end; /* the range of its data that the loader has made read-only */
	bool unlocked;                      /* the range is writable meanwhile */
	uint64_t patched, other, failed;
};

/* A word at which the loader writes the address of an import. */
struct import_entry {
	const struct import *import;
	uintptr_t at;
	uintptr_t own; /* the file's own function of that name, if any; the word may lead elsewhere; 0: none */
	bool is_call;
};

/* The target of such a word. */
enum entry_target { TARGET_NULL, TARGET_LIBRARY, TARGET_EXPECTED, TARGET_UNBOUND, TARGET_OTHER };

static enum entry_target find_target(const struct patching *in, const struct import_entry *entry)
{
	uintptr_t value = __atomic_load_n((uintptr_t *)entry->at, __ATOMIC_RELAXED);
	if (value == 0)
		return TARGET_NULL;
	if (value == (uintptr_t)entry->import->to)
		return TARGET_LIBRARY;
	if (value == (uintptr_t)entry->import->from)
		return TARGET_EXPECTED;
	/* With lazy binding, the word of a call leads to the file's own code until the first call. */
	return entry->is_call && is_in(in->file, value) && value != entry->own ? TARGET_UNBOUND : TARGET_OTHER;
}

static bool is_writable(const struct dl_phdr_info *file, uintptr_t address)
{
	uintptr_t here = address - file->dlpi_addr;
	for (int n = 0; n < file->dlpi_phnum; n++) {
		const Elf64_Phdr *header = &file->dlpi_phdr[n];
		if (header->p_type == PT_LOAD && header->p_flags & PF_W && here - header->p_vaddr < header->p_memsz)
			return true;
	}
	return false;
}

static bool protect(const struct patching *in, int protection)
{
	size_t bytes = in->read_only_end - in->read_only;
	return mprotect && mprotect((void *)in->read_only, bytes, protection) == 0;
}

static bool unlock(struct patching *in, uintptr_t at)
{
	if (at % sizeof(uint64_t) != 0 || !is_writable(in->file, at))
		return false;
	if (at >= in->read_only && at < in->read_only_end && !in->unlocked)
		in->unlocked = protect(in, PROT_READ | PROT_WRITE);
	return at < in->read_only || at >= in->read_only_end || in->unlocked;
}

typedef void visit(struct patching *in, const struct import_entry *entry);

static void count_other(struct patching *in, const struct import_entry *entry)
{
	in->other += find_target(in, entry) == TARGET_OTHER;
}

static void patch(struct patching *in, const struct import_entry *entry)
{
	enum entry_target target = find_target(in, entry);
	/* In a file with another allocator, lazy binding may choose that allocator. */
	if (target != TARGET_EXPECTED && (target != TARGET_UNBOUND || in->other))
		return;
	if (!unlock(in, entry->at)) {
		in->failed++;
		return;
	}
	__atomic_store_n((uintptr_t *)entry->at, (uintptr_t)entry->import->to, __ATOMIC_RELEASE);
	in->patched++;
}

static void for_each(struct patching *in, const struct symbols *symbols, const Elf64_Rela *rela, size_t bytes, visit *visit)
{
	for (const Elf64_Rela *end = rela + bytes / sizeof *rela; rela < end; rela++) {
		uint32_t type = (uint32_t)rela->r_info, index = rela->r_info >> 32;
		if ((type != R_ADDRESS && type != R_GLOB_DAT && type != R_JUMP_SLOT) || rela->r_addend || !index)
			continue;
		const Elf64_Sym *symbol = &symbols->table[index];
		const struct import *import = import_named(symbols->names + symbol->st_name);
		struct import_entry entry = {
			.import = import, .at = symbols->base + rela->r_offset, .is_call = type == R_JUMP_SLOT};
		if (symbol->st_shndx != SHN_UNDEF)
			entry.own = symbols->base + symbol->st_value;
		if (import)
			visit(in, &entry);
	}
}

static void for_all(struct patching *in, const struct symbols *symbols, visit *visit)
{
	if (symbols->rela)
		for_each(in, symbols, symbols->rela, symbols->rela_bytes, visit);
	if (symbols->jmprel)
		for_each(in, symbols, symbols->jmprel, symbols->jmprel_bytes, visit);
}

static bool has_adds(size_t size)
{
	return size >= sizeof(struct dl_phdr_info);
}

static int patch_file(struct dl_phdr_info *file, size_t size, void *data)
{
	(void)data;
	if (has_adds(size)) {
		adds = file->dlpi_adds;
		subs = file->dlpi_subs;
	}
	uintptr_t *seen = &known[mix(file->dlpi_addr) % MAX_KNOWN];
	struct symbols symbols;
	if (*seen == file->dlpi_addr + 1 || is_own(file) || !symbols_of(file, &symbols))
		return 0;
	*seen = file->dlpi_addr + 1;
	find_python_in(file, &symbols, false);
	struct patching in = {.file = file};
	uintptr_t page = getauxval ? getauxval(AT_PAGESZ) : 4096;
	for (int n = 0; n < file->dlpi_phnum; n++) {
		const Elf64_Phdr *header = &file->dlpi_phdr[n];
		if (header->p_type != PT_GNU_RELRO)
			continue;
		/* Rounded as by the loader. */
		in.read_only = (file->dlpi_addr + header->p_vaddr) & -page;
		in.read_only_end = (file->dlpi_addr + header->p_vaddr + header->p_memsz) & -page;
	}
	for_all(&in, &symbols, count_other);
	for_all(&in, &symbols, patch);
	if (in.unlocked)
		protect(&in, PROT_READ);
	memprof_heap_imports.other += in.other;
	memprof_heap_imports.failed += in.failed;
	memprof_heap_imports.patched += in.patched;
	memprof_heap_imports.files += in.patched != 0;
	return 0;
}

static void *(*next_dlsym)(void *, const char *);
/* The library's handle for dlsym(). */
static void *own_handle;

static void nothing(void)
{
}

/* An ifunc resolver. The loader calls it to choose a function when the symbol is looked up. */
static __attribute__((used)) void (*look_again(void))(void)
{
	dl_iterate_phdr(patch_file, NULL);
	return nothing;
}
void EXPORTED memprof_heap_look_again(void) __attribute__((ifunc("look_again")));

static int has_changed(struct dl_phdr_info *file, size_t size, void *data)
{
	bool *unloaded = data;
	if (!has_adds(size) || (file->dlpi_adds == adds && file->dlpi_subs == subs))
		return 1;
	*unloaded = file->dlpi_subs != subs;
	return 2;
}

static void *own_dlsym(void *handle, const char *name)
{
	bool unloaded = false;
	if (own_handle && dl_iterate_phdr(has_changed, &unloaded) == 2) {
		/* Another file may have the address of an unloaded one. */
		for (size_t n = 0; unloaded && n < MAX_KNOWN; n++)
			__atomic_store_n(&known[n], 0, __ATOMIC_RELAXED);
		next_dlsym(own_handle, "memprof_heap_look_again");
	}
	/* A jump: the result of dlsym() depends on its caller. */
	__attribute__((musttail)) return next_dlsym(handle, name);
}

static void find_loader(void)
{
	enum { RTLD_DL_LINKMAP = 2 };
	struct symbol_request requests[] = {{.symbol = "dlsym"}, {.symbol = "dladdr1"}};
	struct own own;
	find_next(requests, 2, &own);
	next_dlsym = requests[0].address;
	int (*dladdr1)(const void *, void *, void **, int) = requests[1].address;
	void *info[4];
	if (next_dlsym && dladdr1 && !dladdr1((const void *)&memprof_heap_config, info, &own_handle, RTLD_DL_LINKMAP))
		own_handle = NULL;
	add_import("dlsym", next_dlsym, own_dlsym);
}

void patch_imports(void)
{
	find_loader();
	if (dl_iterate_phdr)
		dl_iterate_phdr(patch_file, NULL);
	__atomic_store_n(&memprof_heap_imports.done, 1, __ATOMIC_RELEASE);
}
