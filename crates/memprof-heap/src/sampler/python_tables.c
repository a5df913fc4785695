/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Has CPython call this library in place of its own allocators.
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

uint32_t python_watch;

/* PyMemAllocatorEx. */
struct table {
	void *context;
	void *functions[PYTHON_FUNCTIONS];
};

/* The interpreter: the first loaded file that defines PyMem_GetAllocator(). */
static struct interpreter {
	struct dl_phdr_info file;
	struct table *tables[PYTHON_DOMAINS]; /* NULL: not found. The raw domain's is not searched. */
	void *raw_malloc;                     /* the innermost function of the raw domain */
	bool is_permanent;                    /* never unloaded */
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
		void *function = load(&at->functions[PYTHON_MALLOC]);
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
static bool replace(struct table *table, const struct python_allocator *allocator)
{
	bool replaced = true;
	void **originals = allocator->originals;
	for (int n = 0; n < PYTHON_FUNCTIONS; n++) {
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
	struct table *tables[PYTHON_DOMAINS] = {NULL};
	void *functions[PYTHON_DOMAINS] = {NULL};
	for (int domain = PYTHON_MEM; domain <= PYTHON_OBJ; domain++) {
		tables[domain] = innermost(python.tables[domain]);
		if (!tables[domain])
			return PYTHON_HIDDEN;
		functions[domain] = load(&tables[domain]->functions[PYTHON_MALLOC]);
	}
	/* Only pymalloc has one function for both domains. */
	void *known = load(&python_pymalloc.originals[PYTHON_MALLOC]);
	bool are_equal = functions[PYTHON_MEM] == functions[PYTHON_OBJ];
	enum python_state state = PYTHON_USES_MALLOC;
	for (int domain = PYTHON_MEM; domain <= PYTHON_OBJ; domain++) {
		const struct python_allocator *mimalloc = &python_mimalloc[domain];
		void *function = functions[domain];
		if (function == python.raw_malloc)
			continue;
		state = PYTHON_SAMPLED;
		if (function == python_pymalloc.own[PYTHON_MALLOC] || function == mimalloc->own[PYTHON_MALLOC])
			continue;
		bool is_pymalloc = function == known || are_equal;
		if (!is_in_python(function) || !replace(tables[domain], is_pymalloc ? &python_pymalloc : mimalloc))
			return PYTHON_HIDDEN;
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
		__atomic_store_n(&memprof_heap_stats.python, replace_all(), __ATOMIC_RELAXED);
}

typedef void get_allocator(int domain, struct table *table);

static bool is_equal(const struct table *a, const struct table *b)
{
	for (int n = 0; n < PYTHON_FUNCTIONS; n++)
		if (a->functions[n] != b->functions[n])
			return false;
	return a->context == b->context;
}

/*
 * Whether this is a domain's table, and not a copy of it behind inactive hooks. Replaces a function by one that does the
 * same for a moment.
 */
static bool is_table_of(struct table *at, get_allocator *get, int domain, const struct python_allocator *allocator)
{
	struct table now;
	void *function = load(&at->functions[PYTHON_MALLOC]), *original = NULL;
	void **originals = allocator->originals;
	if (!__atomic_compare_exchange_n(&originals[PYTHON_MALLOC], &original, function, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED) &&
	    original != function)
		return false;
	void *own = allocator->own[PYTHON_MALLOC], *expected = function;
	if (!__atomic_compare_exchange_n(
		    &at->functions[PYTHON_MALLOC], &expected, own, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	get(domain, &now);
	expected = own;
	__atomic_compare_exchange_n(
		&at->functions[PYTHON_MALLOC], &expected, function, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	return now.functions[PYTHON_MALLOC] == own;
}

/* Searches the initialized data of the interpreter for the table of a domain. */
static struct table *find_table(get_allocator *get, int domain, const struct python_allocator *allocator)
{
	struct table wanted;
	struct data data;
	get(domain, &wanted);
	for (int n = 0; n < python.file.dlpi_phnum; n++) {
		if (!is_data_segment(&python.file.dlpi_phdr[n], &data))
			continue;
		for (uintptr_t at = data.start; at + sizeof wanted <= data.initialized_end; at += sizeof(void *)) {
			struct table *table = (struct table *)at;
			if (!is_equal(table, &wanted))
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
	get(PYTHON_RAW, &raw);
	get(PYTHON_MEM, &mem);
	get(PYTHON_OBJ, &obj);
	inner = innermost(&raw);
	/* Whether the other domains use malloc, which counts their blocks, cannot be known then. */
	if (!inner) {
		memprof_heap_stats.python = PYTHON_HIDDEN;
		return;
	}
	python.raw_malloc = inner->functions[PYTHON_MALLOC];
	bool use_malloc = (inner = innermost(&mem)) && inner->functions[PYTHON_MALLOC] == python.raw_malloc;
	use_malloc &= (inner = innermost(&obj)) && inner->functions[PYTHON_MALLOC] == python.raw_malloc;
	/* Before the start of the interpreter, this may still change. */
	if (use_malloc && is_injected()) {
		memprof_heap_stats.python = PYTHON_USES_MALLOC;
		return;
	}
	bool are_equal = mem.functions[PYTHON_MALLOC] == obj.functions[PYTHON_MALLOC];
	for (int domain = PYTHON_MEM; domain <= PYTHON_OBJ; domain++)
		python.tables[domain] = find_table(get, domain, are_equal ? &python_pymalloc : &python_mimalloc[domain]);
	memprof_heap_stats.python = replace_all();
}

bool find_python_in(const struct dl_phdr_info *file, const struct symbols *symbols, bool is_permanent)
{
	enum { WATCHED = 4096 };
	if (memprof_heap_stats.python != PYTHON_NEW && memprof_heap_stats.python != PYTHON_NONE)
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
	if (memprof_heap_stats.python == PYTHON_NEW)
		memprof_heap_stats.python = PYTHON_NONE;
}
