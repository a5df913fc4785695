/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Detours: functions of an allocator inside the executable, whose calls pass through no import. A jump at the entry of
 * each leads to code near the executable, and from there to a function of replacements.h. The instructions that the jump
 * has displaced are in the same code (crates/memprof-code/src/allocators/detours.rs).
 */
#include "detours.h"

#include "loaded.h"

struct detours EXPORTED memprof_heap_detours;

#if defined(__x86_64__)

#include "replacements.h"

const struct tables EXPORTED memprof_heap_tables = {.functions = FUNCTIONS, .quick = {[FREES] = filter}};

static struct detour detours[MAX_DETOURS];

/* A C library's functions would set errno, and a static program has none that could be called. */
enum { SYS_mmap = 9, SYS_mprotect = 10, SYS_munmap = 11, SYS_pwrite64 = 18, SYS_close = 3, SYS_openat = 257, SYS_newfstatat = 262 };
enum { PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20, MAP_FIXED_NOREPLACE = 0x100000 };
enum { AT_FDCWD = -100, O_RDONLY = 0, O_RDWR = 2, O_CLOEXEC = 02000000 };

static long system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = e;
	register long sixth __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	return result;
}

static bool is_error(long result)
{
	return result < 0 && result >= -4095;
}

static void end(enum detours_state state, long result)
{
	memprof_heap_detours.state = state;
	memprof_heap_detours.error = is_error(result) ? (uint64_t)-result : 0;
}

static int program(struct dl_phdr_info *file, size_t size, void *data)
{
	(void)size;
	*(struct dl_phdr_info *)data = *file;
	return 1;
}

/* Whether all functions of the plan are in the executable. */
static bool is_of(const struct plan *plan, const struct dl_phdr_info *executable)
{
	for (const struct planned *function = plan->functions; function < plan->functions + plan->count; function++) {
		const uint8_t *code = (const uint8_t *)(executable->dlpi_addr + function->address);
		if (!is_in(executable, (uintptr_t)code) || !is_in(executable, (uintptr_t)code + function->length - 1))
			return false;
		for (int n = 0; n < function->length; n++)
			if (code[n] != function->displaced[n])
				return false;
	}
	return true;
}

/* The only thread of this process runs this. */
static bool is_alone(void)
{
	/* struct stat; a directory has two links more than directories in it. */
	uint64_t about[18] = {0};
	long result = system_call(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/task", (long)about, 0, 0, 0);
	return !is_error(result) && about[2] == 3;
}

/* Maps the code and its words, and fills in the words. */
static bool map_code(const struct plan *plan, int fd, uint8_t *near)
{
	long code = system_call(SYS_mmap, (long)near, (long)plan->code_bytes, PROT_READ | PROT_EXEC,
				MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd,
				(long)(memprof_heap_config.plan + plan->code));
	uint8_t *after = near + plan->code_bytes;
	long words = system_call(SYS_mmap, (long)after, (long)plan->words_bytes, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	/* Before Linux 4.17, the kernel takes the address for a wish. */
	if (code != (long)near || words != (long)after) {
		if (!is_error(code))
			system_call(SYS_munmap, code, (long)plan->code_bytes, 0, 0, 0, 0);
		if (!is_error(words))
			system_call(SYS_munmap, words, (long)plan->words_bytes, 0, 0, 0, 0);
		end(DETOURS_NO_ROOM, is_error(code) ? code : words);
		return false;
	}
	uintptr_t *word = (uintptr_t *)after;
	for (size_t n = 0; n < plan->count; n++) {
		const struct planned *function = &plan->functions[n];
		detours[n] = (struct detour){
			.next = (void *)(near + n * SLOT + MOVED),
			.size = function->size,
			.count = function->count,
			.pointer = function->pointer,
		};
		*word++ = (uintptr_t)&detours[n];
		int kind = function->kind % KINDS;
		const void *quick = memprof_heap_tables.quick[kind];
		*word++ = (uintptr_t)memprof_heap_tables.functions[kind][function->entry != 0];
		*word++ = quick ? (uintptr_t)quick : memprof_heap_detours.left;
	}
	system_call(SYS_mprotect, (long)after, (long)plan->words_bytes, PROT_READ, 0, 0, 0);
	memprof_heap_detours.count = plan->count;
	return true;
}

/*
 * Writes the jumps. A file of /proc lets a process write to its own code, without making it writable for others
 * meanwhile, which some sandboxes forbid.
 */
static void write_jumps(const struct plan *plan, uintptr_t base, const uint8_t *near)
{
	long memory = system_call(SYS_openat, AT_FDCWD, (long)"/proc/self/mem", O_RDWR | O_CLOEXEC, 0, 0, 0);
	if (is_error(memory)) {
		end(DETOURS_NOT_WRITTEN, memory);
		return;
	}
	end(DETOURS_PLACED, 0);
	for (size_t n = 0; n < plan->count; n++) {
		uintptr_t at = base + plan->functions[n].address;
		uintptr_t to = (uintptr_t)near + n * SLOT + plan->functions[n].entry;
		int32_t distance = (int32_t)(to - at - JUMP);
		uint8_t jump[JUMP] = {0xe9};
		__builtin_memcpy(jump + 1, &distance, sizeof distance);
		long written = system_call(SYS_pwrite64, memory, (long)jump, JUMP, (long)at, 0, 0);
		if (written != JUMP) {
			end(DETOURS_NOT_WRITTEN, written);
			break;
		}
	}
	system_call(SYS_close, memory, 0, 0, 0, 0, 0);
}

static void place(const struct plan *plan, int fd, const struct dl_phdr_info *executable)
{
	uint8_t *near = (uint8_t *)(executable->dlpi_addr + (uint64_t)plan->near);
	memprof_heap_detours.base = executable->dlpi_addr;
	if (plan->count > MAX_DETOURS || !is_of(plan, executable))
		end(DETOURS_OTHER, 0);
	else if (!is_injected() && !is_alone())
		end(DETOURS_THREADS, 0);
	else if (!map_code(plan, fd, near))
		return;
	else if (is_injected())
		end(DETOURS_PREPARED, 0);
	else
		write_jumps(plan, executable->dlpi_addr, near);
}

COLD void place_detours(const char *own_path)
{
	uintptr_t thread;
	__asm__("mov %%fs:0, %0" : "=r"(thread));
	memprof_heap_detours.left = (uintptr_t)&this_thread()->left - thread;
	struct dl_phdr_info executable = {0};
	if (memprof_heap_config.plan == 0 || !own_path || !dl_iterate_phdr || !dl_iterate_phdr(program, &executable))
		return;
	long fd = system_call(SYS_openat, AT_FDCWD, (long)own_path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
	if (is_error(fd)) {
		end(DETOURS_NO_FILE, fd);
		return;
	}
	long plan = system_call(SYS_mmap, 0, (long)memprof_heap_config.plan_bytes, PROT_READ, MAP_PRIVATE, fd,
				(long)memprof_heap_config.plan);
	if (is_error(plan)) {
		end(DETOURS_NO_FILE, plan);
	} else {
		place((const struct plan *)plan, (int)fd, &executable);
		system_call(SYS_munmap, plan, (long)memprof_heap_config.plan_bytes, 0, 0, 0, 0);
	}
	system_call(SYS_close, fd, 0, 0, 0, 0, 0);
}

#else

void place_detours(const char *own_path)
{
	(void)own_path;
}

#endif
