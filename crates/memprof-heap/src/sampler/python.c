/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * CPython's own blocks: pymalloc, and the mimalloc of free-threaded builds.
 *
 * CPython calls its allocators through tables of four functions and a context, one table for each domain: "raw" (the C
 * library's malloc, which functions.c counts), "mem" and "obj". Other tables may lie in front of the allocator's own
 * functions: debug hooks and tracemalloc, whose context leads to the table behind them. Only the innermost functions
 * are replaced here, each by a function that does the same with the same context and counts the block. So each word can
 * be replaced by itself while threads run, whatever lies in front of it stays as it is, and hooks that are set up or
 * removed later save and restore functions that still do what they did.
 *
 * PyMem_SetAllocator() is not used: it takes a lock since CPython 3.12, copies all words at once, and cannot reach
 * tables behind hooks. Instead, the tables are found in the interpreter's data by their contents.
 *
 * The interpreter may reset its tables: PYTHONMALLOC, -X dev and PyPreConfig.allocator take effect after this library's
 * constructor, and a second Py_Initialize() in one process may reset all state. The tables are therefore checked again,
 * with a few loads: at the first calls of realloc(), one of which precedes the first Python object (pymalloc grows its
 * array of arenas, and the configuration its lists), and then at each sample.
 */
#include "loaded.h"
#include "python.h"
#include "samples.h"

struct python_stats EXPORTED memprof_heap_python;
uint32_t python_watch;

enum { MALLOC, CALLOC, REALLOC, FREE, FUNCTIONS };
enum { RAW, MEM, OBJ, DOMAINS };

/* PyMemAllocatorEx. */
struct table {
	void *context;
	void *functions[FUNCTIONS];
};

typedef void *malloc_function(void *, size_t);
typedef void *calloc_function(void *, size_t, size_t);
typedef void *realloc_function(void *, void *, size_t);
typedef void free_function(void *, void *);

/* The functions of the allocator that this library's functions call. Written once. */
struct originals {
	malloc_function *malloc;
	calloc_function *calloc;
	realloc_function *realloc;
	free_function *free;
};
/* pymalloc serves both domains; mimalloc has functions for each of them. */
static struct originals pymalloc, mimalloc_mem, mimalloc_obj;

/* pymalloc passes larger requests to the raw domain, so malloc() counts them. */
#define MAX_SMALL 512

static inline bool is_small(size_t size)
{
	return size - 1 < MAX_SMALL;
}

/*
 * Counts a block before it is allocated, so that the fast path ends with a jump to the allocator. False if it is to be
 * sampled. pymalloc's own tables come from the raw domain, and malloc() counts them as allocations.
 */
static inline __attribute__((always_inline)) bool is_counted(size_t size)
{
	uint64_t left;
	if (unlikely(__builtin_sub_overflow(thread.left, (uint64_t)size, &left)))
		return false;
	thread.left = left;
	return true;
}

/*
 * Without memory for an arena, pymalloc passes a small request to the raw domain, too. Then malloc() has counted the
 * block if it was not to be sampled here, so it is not sampled here either.
 */
#define SAMPLED_SMALL(call, size) \
	({ \
		uint64_t before = thread.left; \
		thread.left = UINT64_MAX; \
		void *block = (call); \
		bool is_small_one = thread.left != UINT64_MAX - (size); \
		thread.left = before; \
		sampled(is_small_one ? block : NULL, size); \
		block; \
	})

static COLD void *sampled_malloc(void *context, size_t size)
{
	return SAMPLED_SMALL(pymalloc.malloc(context, size), size);
}

static COLD void *sampled_calloc(void *context, size_t count, size_t size)
{
	return SAMPLED_SMALL(pymalloc.calloc(context, count, size), count * size);
}

static void *pymalloc_malloc(void *context, size_t size)
{
	if (!is_small(size) || likely(is_counted(size)))
		return pymalloc.malloc(context, size);
	return sampled_malloc(context, size);
}

static void *pymalloc_calloc(void *context, size_t count, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(count, size, &bytes) || !is_small(bytes) || likely(is_counted(bytes)))
		return pymalloc.calloc(context, count, size);
	return sampled_calloc(context, count, size);
}

/* As realloc() in functions.c. A block may move between pymalloc and the raw domain; CPython never resizes to 0 bytes. */
static inline __attribute__((always_inline)) void *resized(realloc_function *next, void *context, void *old, size_t size)
{
	slot *resizing = may_be_sample(old) ? resize_begin(old) : NULL;
	void *ptr = UNCOUNTED(next(context, old, size));
	if (unlikely(resizing != NULL))
		resize_end(resizing, old, ptr == NULL);
	return counted(ptr, size);
}

/* The rare part has the same parameters, so that the fast path moves none. */
#define RESIZE_AND_FREE(name) \
	static void *name##_realloc(void *context, void *old, size_t size) \
	{ \
		return resized(name.realloc, context, old, size); \
	} \
	static COLD void name##_free_sample(void *context, void *ptr) \
	{ \
		freed(ptr); \
		name.free(context, ptr); \
	} \
	static void name##_free(void *context, void *ptr) \
	{ \
		if (may_be_sample(ptr)) \
			name##_free_sample(context, ptr); \
		else \
			name.free(context, ptr); \
	}

/* mimalloc takes its memory from the kernel. */
#define ALLOCATE(name) \
	static void *name##_malloc(void *context, size_t size) \
	{ \
		return counted(name.malloc(context, size), size); \
	} \
	static void *name##_calloc(void *context, size_t count, size_t size) \
	{ \
		return counted(name.calloc(context, count, size), count * size); \
	}

RESIZE_AND_FREE(pymalloc)
ALLOCATE(mimalloc_mem)
RESIZE_AND_FREE(mimalloc_mem)
ALLOCATE(mimalloc_obj)
RESIZE_AND_FREE(mimalloc_obj)

/* An allocator's functions, and those of this library that replace them. */
struct allocator {
	struct originals *originals;
	void *own[FUNCTIONS];
};
#define ALLOCATOR(name) {&name, {name##_malloc, name##_calloc, name##_realloc, name##_free}}
static const struct allocator of_pymalloc = ALLOCATOR(pymalloc);
static const struct allocator of_mimalloc[DOMAINS] = {
	[MEM] = ALLOCATOR(mimalloc_mem),
	[OBJ] = ALLOCATOR(mimalloc_obj),
};

/* The interpreter: the first loaded file that defines PyMem_GetAllocator(). */
static struct interpreter {
	struct dl_phdr_info file;
	struct table *tables[DOMAINS]; /* NULL: not found. The raw domain's is not searched. */
	void *raw_malloc;              /* the innermost function of the raw domain */
	bool is_permanent;             /* never unloaded */
} python;

static void *load(void *const *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static bool is_in_python(const void *address)
{
	return is_in(&python.file, (uintptr_t)address);
}

/* A range of the interpreter's data that stays writable. */
struct data {
	uintptr_t start, end;
	uintptr_t initialized_end; /* zeroes follow */
};

/* Returns false if the segment contains no such data. */
static bool is_data_segment(const Elf64_Phdr *header, struct data *data)
{
	if (header->p_type != PT_LOAD || !(header->p_flags & PF_W))
		return false;
	uintptr_t start = header->p_vaddr, end = start + header->p_memsz;
	/* The loader makes the beginning read-only, in which 3.12 has a copy of its initial state. */
	for (int n = 0; n < python.file.dlpi_phnum; n++) {
		const Elf64_Phdr *other = &python.file.dlpi_phdr[n];
		uintptr_t other_end = other->p_vaddr + other->p_memsz;
		if (other->p_type == PT_GNU_RELRO && other->p_vaddr < end && other_end > start)
			start = other_end;
	}
	data->start = python.file.dlpi_addr + ((start + sizeof(void *) - 1) & -sizeof(void *));
	data->end = python.file.dlpi_addr + end;
	data->initialized_end = python.file.dlpi_addr + header->p_vaddr + header->p_filesz;
	return data->start < data->end;
}

/* Whether an aligned structure lies in the interpreter's data. */
static bool is_data(uintptr_t at, size_t bytes)
{
	struct data data;
	for (int n = 0; n < python.file.dlpi_phnum; n++)
		if (is_data_segment(&python.file.dlpi_phdr[n], &data) && at >= data.start && at < data.end)
			return at % sizeof(void *) == 0 && data.end - at >= bytes;
	return false;
}

/*
 * The table of the allocator's own functions, which have no context. NULL if the chain of tables leaves the interpreter:
 * the program has installed an allocator of its own.
 */
static struct table *innermost(struct table *at)
{
	enum { MAX_HOOKS = 8 };
	for (int n = 0; at && n < MAX_HOOKS; n++) {
		uintptr_t context = (uintptr_t)load(&at->context);
		void *function = load(&at->functions[MALLOC]);
		if (context == 0)
			return at;
		if (!is_in_python(function) || !is_data(context, sizeof(void *) + sizeof *at))
			return NULL;
		/* A letter for the domain precedes the table of debug hooks. */
		uintptr_t word = (uintptr_t)load((void **)context);
		at = (struct table *)(word - 1 < UINT8_MAX ? context + sizeof(void *) : context);
	}
	return NULL;
}

/* Replaces the functions of a table. Returns false if it has others. */
static bool replace(struct table *table, const struct allocator *allocator)
{
	bool replaced = true;
	void **originals = (void **)allocator->originals;
	for (int n = 0; n < FUNCTIONS; n++) {
		void *function = load(&table->functions[n]), *original = NULL;
		if (function == allocator->own[n])
			continue;
		if (__atomic_compare_exchange_n(
			    &originals[n], &original, function, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			original = function;
		replaced &= original == function &&
			    __atomic_compare_exchange_n(&table->functions[n], &function, allocator->own[n], false,
							__ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	}
	return replaced;
}

static enum python_state replace_all(void)
{
	struct table *tables[DOMAINS] = {NULL, innermost(python.tables[MEM]), innermost(python.tables[OBJ])};
	if (!tables[MEM] || !tables[OBJ])
		return PYTHON_HIDDEN;
	void *functions[DOMAINS] = {
		NULL, load(&tables[MEM]->functions[MALLOC]), load(&tables[OBJ]->functions[MALLOC])};
	enum python_state state = PYTHON_USES_MALLOC;
	for (int domain = MEM; domain <= OBJ; domain++) {
		const struct allocator *other = &of_mimalloc[domain];
		void *function = functions[domain];
		if (function == of_pymalloc.own[MALLOC] || function == other->own[MALLOC])
			state = PYTHON_SAMPLED;
		else if (function == python.raw_malloc)
			continue;
		else if (!is_in_python(function) ||
			 !replace(tables[domain], functions[MEM] == functions[OBJ] ? &of_pymalloc : other))
			return PYTHON_HIDDEN;
		else
			state = PYTHON_SAMPLED;
	}
	return state;
}

COLD void restore_python(void)
{
	/* Lost counts of other threads do no harm. */
	uint32_t watch = __atomic_load_n(&python_watch, __ATOMIC_RELAXED);
	if (watch != 0)
		__atomic_store_n(&python_watch, watch - 1, __ATOMIC_RELAXED);
	if (python.is_permanent)
		__atomic_store_n(&memprof_heap_python.state, replace_all(), __ATOMIC_RELAXED);
}

typedef void get_allocator(int domain, struct table *table);

static bool is_equal(const struct table *a, const struct table *b)
{
	bool equal = a->context == b->context;
	for (int n = 0; n < FUNCTIONS; n++)
		equal &= a->functions[n] == b->functions[n];
	return equal;
}

/*
 * Whether this is a domain's table, and not a copy of it behind inactive hooks. Replaces a function by one that does the
 * same for a moment.
 */
static bool is_table_of(struct table *at, get_allocator *get, int domain, const struct allocator *allocator)
{
	struct table now;
	void *function = load(&at->functions[MALLOC]), *original = NULL;
	void **originals = (void **)allocator->originals;
	if (!__atomic_compare_exchange_n(&originals[MALLOC], &original, function, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED) &&
	    original != function)
		return false;
	void *own = allocator->own[MALLOC], *expected = function;
	if (!__atomic_compare_exchange_n(
		    &at->functions[MALLOC], &expected, own, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	get(domain, &now);
	expected = own;
	__atomic_compare_exchange_n(
		&at->functions[MALLOC], &expected, function, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	return now.functions[MALLOC] == own;
}

/* Searches the initialized data of the interpreter for the table of a domain. */
static struct table *find_table(get_allocator *get, int domain, const struct allocator *allocator)
{
	struct table wanted;
	struct data data;
	get(domain, &wanted);
	for (int n = 0; n < python.file.dlpi_phnum; n++) {
		if (!is_data_segment(&python.file.dlpi_phdr[n], &data))
			continue;
		for (uintptr_t at = data.start; at + sizeof wanted <= data.initialized_end; at += sizeof(void *)) {
			struct table *table = (struct table *)at;
			if (table->functions[MALLOC] != wanted.functions[MALLOC] || !is_equal(table, &wanted))
				continue;
			/* A context belongs to one domain, and only its table has it. */
			if (wanted.context || is_table_of(table, get, domain, allocator))
				return table;
		}
	}
	return NULL;
}

static void find_tables(get_allocator *get)
{
	struct table raw, mem, obj, *inner;
	get(RAW, &raw);
	get(MEM, &mem);
	get(OBJ, &obj);
	inner = innermost(&raw);
	python.raw_malloc = inner ? inner->functions[MALLOC] : NULL;
	if ((inner = innermost(&mem)) && inner->functions[MALLOC] == python.raw_malloc &&
	    (inner = innermost(&obj)) && inner->functions[MALLOC] == python.raw_malloc && is_injected()) {
		memprof_heap_python.state = PYTHON_USES_MALLOC;
		return;
	}
	bool shared = mem.functions[MALLOC] == obj.functions[MALLOC];
	python.tables[MEM] = find_table(get, MEM, shared ? &of_pymalloc : &of_mimalloc[MEM]);
	python.tables[OBJ] = find_table(get, OBJ, shared ? &of_pymalloc : &of_mimalloc[OBJ]);
	memprof_heap_python.state = replace_all();
}

bool find_python_in(const struct dl_phdr_info *file, const struct symbols *symbols, bool is_permanent)
{
	enum { WATCHED = 4096 };
	if (memprof_heap_python.state != PYTHON_NONE)
		return true;
	get_allocator *get = find_symbol(symbols, "PyMem_GetAllocator");
	if (!get || !find_symbol(symbols, "PyObject_Malloc"))
		return false;
	python.file = *file;
	find_tables(get);
	python.is_permanent = is_permanent;
	python_watch = is_permanent && !is_injected() ? WATCHED : 0;
	return true;
}

struct search {
	size_t files;
};

static int search_file(struct dl_phdr_info *file, size_t size, void *data)
{
	(void)size;
	struct search *search = data;
	struct symbols symbols;
	/* Files that the program needs stay loaded. In a running process only the program itself is known to be needed. */
	bool is_permanent = !is_injected() || search->files == 0;
	search->files++;
	return !is_own(file) && symbols_of(file, &symbols) && find_python_in(file, &symbols, is_permanent);
}

void find_python(void)
{
	struct search search = {0};
	if (dl_iterate_phdr)
		dl_iterate_phdr(search_file, &search);
}
