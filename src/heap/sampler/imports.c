/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * In a process that was running already, programs and libraries have the addresses of the allocator's functions: the
 * loader has written them where the files' relocations say. They are replaced by those of this library's functions, one
 * by one: a thread calls either the old function or the new one, which calls the old one.
 *
 * This runs in the library's constructor, so the loader's lock is held: no other file is being loaded, relocated or
 * unloaded. Files that are loaded later are looked at when the program looks up a symbol, as it does in what it has
 * just loaded. That takes the loader's lock, too, and the loader calls look_again() while it holds it.
 */
#include "loaded.h"

struct imports EXPORTED memprof_heap_imports;

extern __attribute__((weak)) unsigned long getauxval(unsigned long);
extern __attribute__((weak)) int mprotect(void *, size_t, int);

enum { PROT_READ = 1, PROT_WRITE = 2, AT_PAGESZ = 6, MOST_IMPORTS = 64, KNOWN = 1024 };

static struct import imports[MOST_IMPORTS];
static size_t count;

/* Files that were looked at, by where they are loaded, as far as there is room. */
static uintptr_t known[KNOWN];
/* How many files had been loaded and unloaded then. */
static unsigned long long adds, subs;

void add_import(const char *symbol, void *from, void *to)
{
	if (is_injected() && from && count < MOST_IMPORTS)
		imports[count++] = (struct import){symbol, from, to};
}

static const struct import *import_named(const char *name)
{
	for (size_t n = 0; n < count; n++)
		if (*imports[n].symbol == *name && equal(imports[n].symbol, name))
			return &imports[n];
	return NULL;
}

/* A file whose places are patched. */
struct patching {
	const struct dl_phdr_info *file;
	uintptr_t read_only, read_only_end; /* the loader has made this part of its data read-only */
	bool unlocked;                      /* it is writable meanwhile */
	uint64_t patched, other, failed;
};

/* A place that the loader writes the address of an import to. */
struct place {
	const struct import *import;
	uintptr_t at;
	uintptr_t own; /* the file's own function of that name, which need not be what the place leads to; 0 if it has none */
	bool is_call;
};

/* Where it leads. */
enum leads { NOWHERE, TO_LIBRARY, AS_EXPECTED, UNBOUND, ELSEWHERE };

static enum leads leads(const struct patching *in, const struct place *place)
{
	uintptr_t value = __atomic_load_n((uintptr_t *)place->at, __ATOMIC_RELAXED);
	if (value == 0)
		return NOWHERE;
	if (value == (uintptr_t)place->import->to)
		return TO_LIBRARY;
	if (value == (uintptr_t)place->import->from)
		return AS_EXPECTED;
	/* Calls that the loader binds when they are first made lead to the file's code for that until then. */
	return place->is_call && is_in(in->file, value) && value != place->own ? UNBOUND : ELSEWHERE;
}

static bool is_writable(const struct dl_phdr_info *file, uintptr_t address)
{
	uintptr_t here = address - file->dlpi_addr;
	for (int n = 0; n < file->dlpi_phnum; n++) {
		const Elf64_Phdr *part = &file->dlpi_phdr[n];
		if (part->p_type == PT_LOAD && part->p_flags & PF_W && here - part->p_vaddr < part->p_memsz)
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

typedef void visit(struct patching *in, const struct place *place);

static void count_other(struct patching *in, const struct place *place)
{
	in->other += leads(in, place) == ELSEWHERE;
}

static void patch(struct patching *in, const struct place *place)
{
	enum leads where = leads(in, place);
	/* What is bound later in a file with another allocator may be bound to that one. */
	if (where != AS_EXPECTED && (where != UNBOUND || in->other))
		return;
	if (!unlock(in, place->at)) {
		in->failed++;
		return;
	}
	__atomic_store_n((uintptr_t *)place->at, (uintptr_t)place->import->to, __ATOMIC_RELEASE);
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
		struct place place = {.import = import, .at = symbols->base + rela->r_offset, .is_call = type == R_JUMP_SLOT};
		if (symbol->st_shndx != SHN_UNDEF)
			place.own = symbols->base + symbol->st_value;
		if (import)
			visit(in, &place);
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
	uintptr_t *place = &known[mix(file->dlpi_addr) % KNOWN];
	struct symbols symbols;
	if (*place == file->dlpi_addr + 1 || is_own(file) || !symbols_of(file, &symbols))
		return 0;
	*place = file->dlpi_addr + 1;
	struct patching in = {.file = file};
	uintptr_t page = getauxval ? getauxval(AT_PAGESZ) : 4096;
	for (int n = 0; n < file->dlpi_phnum; n++) {
		const Elf64_Phdr *part = &file->dlpi_phdr[n];
		if (part->p_type != PT_GNU_RELRO)
			continue;
		/* As the loader rounds. */
		in.read_only = (file->dlpi_addr + part->p_vaddr) & -page;
		in.read_only_end = (file->dlpi_addr + part->p_vaddr + part->p_memsz) & -page;
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
/* The library as dlsym() knows it. */
static void *own_handle;

static void nothing(void)
{
}

/* The loader calls this, as it would to choose one of several functions, when the symbol is looked up. */
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
		/* Another file may be where an unloaded one was. */
		for (size_t n = 0; unloaded && n < KNOWN; n++)
			__atomic_store_n(&known[n], 0, __ATOMIC_RELAXED);
		next_dlsym(own_handle, "memprof_heap_look_again");
	}
	/* A jump: what dlsym() finds depends on who has called it. */
	__attribute__((musttail)) return next_dlsym(handle, name);
}

static void find_loader(void)
{
	enum { RTLD_DL_LINKMAP = 2 };
	struct wanted wanted[] = {{.symbol = "dlsym"}, {.symbol = "dladdr1"}};
	struct own own;
	find_next(wanted, 2, &own);
	next_dlsym = wanted[0].address;
	int (*dladdr1)(const void *, void *, void **, int) = wanted[1].address;
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
