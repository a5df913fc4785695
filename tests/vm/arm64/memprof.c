/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Loads memprof's BPF program and attaches it. Has it walk the stacks of a system call and of a page fault, whose page then has
 * that stack in the ledger.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"
#include "memprof.h"

/* The address of a variable of the program: of its initial value before loading, of the variable itself after. */
static void *variable(struct bpf_object *object, const char *section, const char *name)
{
	struct btf *btf = bpf_object__btf(object);
	int id = btf__find_by_name_kind(btf, section, BTF_KIND_DATASEC);
	const struct btf_type *type = id > 0 ? btf__type_by_id(btf, id) : NULL;
	struct bpf_map *map;
	size_t size;

	for (int i = 0; type && i < btf_vlen(type); i++) {
		const struct btf_var_secinfo *at = btf_var_secinfos(type) + i;
		const struct btf_type *of = btf__type_by_id(btf, at->type);

		if (strcmp(btf__name_by_offset(btf, of->name_off), name))
			continue;
		bpf_object__for_each_map(map, object) {
			const char *map_name = bpf_map__name(map);

			if (strlen(map_name) >= strlen(section) &&
			    !strcmp(map_name + strlen(map_name) - strlen(section), section))
				return (char *)bpf_map__initial_value(map, &size) + at->offset;
		}
	}
	fail("the program has no variable %s in %s", name, section);
}

/* So far, Linux has these tracepoints only on x86 and RISC-V. */
static int is_page_fault(struct bpf_program *program)
{
	return strstr(bpf_program__section_name(program), "page_fault_") != NULL;
}

static int kernel_has(const char *tracepoint)
{
	struct btf *kernel = btf__load_vmlinux_btf();
	char name[64];
	int id;

	if (!kernel)
		fail("this kernel has no BTF");
	snprintf(name, sizeof(name), "btf_trace_%s", tracepoint);
	id = btf__find_by_name_kind(kernel, name, BTF_KIND_TYPEDEF);
	btf__free(kernel);
	return id > 0;
}

/* ---- The stack to walk: system calls without the C library, so that the innermost function is known. ---- */

NOINLINE long inner(int fd, const char *bytes, long size)
{
	register long x8 __asm__("x8") = SYS_write, x0 __asm__("x0") = fd,
		      x1 __asm__("x1") = (long)bytes, x2 __asm__("x2") = size;

	/* A call, so that this function has a frame. */
	sched_yield();
	x8 = SYS_write, x0 = fd, x1 = (long)bytes, x2 = size;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}
NOINLINE long middle(int fd, const char *bytes, long size) { return inner(fd, bytes, size) + 1; }
NOINLINE long outer(int fd, const char *bytes, long size) { return middle(fd, bytes, size) + 1; }

/* ---- The same for a page fault. ---- */

NOINLINE long touch_inner(volatile char *page)
{
	/* A call, so that this function has a frame. */
	sched_yield();
	*page = 1;
	return 1;
}
NOINLINE long touch_middle(volatile char *page) { return touch_inner(page) + 1; }
NOINLINE long touch_outer(volatile char *page) { return touch_middle(page) + 1; }

/* ---- Results. ---- */

static struct stack_event found;
static int stacks;

static int each(void *context, void *data, size_t size)
{
	struct stack_event *event = data;

	(void)context;
	if (size < 24 || event->kind != EVENT_STACK)
		return 0;
	stacks++;
	memset(&found, 0, sizeof(found));
	memcpy(&found, event, size < sizeof(found) ? size : sizeof(found));
	return 0;
}

/* Whether an address is in this function; no function here is longer. */
static int is_in(__u64 address, void *function)
{
	return address >= (__u64)function && address < (__u64)function + 256;
}

/* The innermost frames must be these functions'. */
static void check_stack(const char *names, void *first, void *second, void *third)
{
	printf("a stack, outcome %u:", found.outcome);
	for (__u32 i = 0; i < found.nr; i++)
		printf(" %llx", found.frames[i]);
	printf("\n");
	if (found.nr < 4 || !is_in(found.frames[0], first) || !is_in(found.frames[1], second) ||
	    !is_in(found.frames[2], third))
		fail("the stack is not %s and so on", names);
	if (found.outcome != OUTCOME_ASSISTED)
		fail("the walk did not reach its end");
}

/* Runs one of the BPF program's iterators once. */
static void run_iterator(struct bpf_object *object, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, name);
	struct bpf_link *link = program ? bpf_program__attach_iter(program, NULL) : NULL;
	char nothing[64];
	int fd;

	if (!link)
		fail("%s cannot be attached", name);
	fd = bpf_iter_create(bpf_link__fd(link));
	if (fd < 0 || read(fd, nothing, sizeof(nothing)) < 0)
		fail("%s cannot be run", name);
	close(fd);
}

/* Follows this process and binds its code. In unknown code, a chain of frame pointers has no end. */
static void follow_own(struct bpf_object *object)
{
	struct bpf_map *wanted = bpf_object__find_map_by_name(object, "wanted");
	__u32 pid = getpid();
	__u8 yes = 1;

	if (!wanted || bpf_map__update_elem(wanted, &pid, sizeof(pid), &yes, sizeof(yes), BPF_ANY))
		fail("the own process cannot be asked for");
	run_iterator(object, "find_process");
	run_iterator(object, "bind_process");
}

/* As src/probe/load.rs does: this program does the pending work of others. */
static void set_walker(struct bpf_object *object, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, name);
	struct bpf_map *walker = bpf_object__find_map_by_name(object, "walker");
	__u32 first = 0;
	int fd = program ? bpf_program__fd(program) : -1;

	if (!walker || fd < 0 || bpf_map__update_elem(walker, &first, sizeof(first), &fd, sizeof(fd), BPF_ANY))
		fail("%s cannot be written into the map of the walker", name);
}

static void walk_one(struct ring_buffer *ring)
{
	static char bytes[8192];
	int fd = open("/ramfs/file", O_WRONLY | O_CREAT, 0600);

	if (!ring || fd < 0)
		fail("no ring buffer or no file");
	/* The first access would be a page fault with a stack of its own, the last one. */
	memset(&found, 0, sizeof(found));
	if (outer(fd, bytes, sizeof(bytes)) != sizeof(bytes) + 2)
		fail("the file cannot be written");
	if (ring_buffer__consume(ring) < 0 || !stacks)
		fail("no stack came");
	check_stack("inner, middle, outer", inner, middle, outer);
}

/* The stack that the ledger has for a page of this process; STACK_NONE if it has none. */
static __u32 owner_of(struct bpf_object *object, void *address)
{
	__u64 vpage = (__u64)address / getpagesize();
	__u64 key = (__u64)found.mm_id << REGION_BITS | vpage >> CHUNK_SHIFT;
	struct bpf_map *pages = bpf_object__find_map_by_name(object, "pages");
	static struct page_chunk chunk;

	if (!pages || bpf_map__lookup_elem(pages, &key, sizeof(key), &chunk, sizeof(chunk), 0))
		return STACK_NONE;
	return chunk.stack[vpage & (CHUNK_PAGES - 1)];
}

static void fault_one(struct bpf_object *object, struct ring_buffer *ring)
{
	char *page = mmap(NULL, 2 * getpagesize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED || ring_buffer__consume(ring) < 0)
		fail("no memory, or the ring buffer cannot be read");
	stacks = 0;
	touch_outer(page);
	if (ring_buffer__consume(ring) < 0 || !stacks)
		fail("no stack came of a page fault");
	check_stack("touch_inner, touch_middle, touch_outer", touch_inner, touch_middle, touch_outer);
	if (owner_of(object, page) != found.stack_id)
		fail("the page's owner is stack %u, not %u", owner_of(object, page), found.stack_id);
	if (owner_of(object, page + getpagesize()) != STACK_NONE)
		fail("a page that was not touched has an owner");
}

/*
 * `without_hook` counts the page faults' programs that this kernel has no tracepoint for. The verifier checks them anyway: a raw
 * tracepoint's program is loaded without it, the others on another hook with three numbers.
 */
static struct bpf_object *open_object(int *without_hook)
{
	struct bpf_object *object = bpf_object__open_file("/memprof.bpf.o", NULL);
	struct bpf_program *program;
	struct stat ns;

	if (!object)
		fail("the BPF object cannot be opened");
	if (stat("/proc/self/ns/pid", &ns))
		fail("no /proc/self/ns/pid");
	*(__u32 *)variable(object, ".rodata", "view_ns") = ns.st_ino;
	*(__u32 *)variable(object, ".bss", "bind_pid") = getpid();
	bpf_object__for_each_program(program, object) {
		if (!is_page_fault(program) || kernel_has("page_fault_user"))
			continue;
		++*without_hook;
		if (!strncmp(bpf_program__section_name(program), "tp_btf/", 7) &&
		    bpf_program__set_attach_target(program, 0, "mm_vmscan_kswapd_wake"))
			fail("no other hook for the page fault's program");
	}
	return object;
}

/* Has the probes that user space attaches one by one, with --heap to those of samplers. */
NOINLINE void probed(void)
{
	asm volatile("nop");
}

/* The page faults of this process, unless the kernel has tracepoints for them. */
static struct bpf_link *attach_to_faults(struct bpf_program *program)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attributes),
		.config = PERF_COUNT_SW_PAGE_FAULTS,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_ADDR,
	};
	int event = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);

	return event < 0 ? NULL : bpf_program__attach_perf_event(program, event);
}

static int is_at_function(const char *section)
{
	return !strncmp(section, "fentry/", 7) || !strncmp(section, "fexit/", 6);
}

static struct bpf_link *attach(struct bpf_program *program)
{
	LIBBPF_OPTS(bpf_uprobe_opts, at, .func_name = "probed");

	if (!strcmp(bpf_program__section_name(program), "perf_event"))
		return attach_to_faults(program);
	if (strcmp(bpf_program__section_name(program), "uprobe"))
		return bpf_program__attach(program);
	return bpf_program__attach_uprobe_opts(program, -1, "/proc/self/exe", 0, &at);
}

const char *check_memprof(void)
{
	static char found_all[256];
	int without_hook = 0, programs = 0, attached = 0;
	struct bpf_object *object = open_object(&without_hook);
	struct bpf_program *program;
	struct ring_buffer *ring;

	if (bpf_object__load(object))
		fail("the kernel refused the program");
	bpf_object__for_each_program(program, object) {
		const char *section = bpf_program__section_name(program);

		programs++;
		if (!strncmp(section, "iter/", 5) || (without_hook && is_page_fault(program)))
			continue;
		if (!without_hook && !strcmp(section, "perf_event"))
			continue;
		/* memprof runs these itself, another program tail-calls them, or memprof does not use them on 64-bit ARM. */
		if (!strcmp(section, "raw_tp") || strstr(section, "probe.multi") || is_at_function(section))
			continue;
		if (!attach(program))
			fail("%s cannot be attached", section);
		attached++;
	}
	set_walker(object, without_hook ? "walk_pending" : "fault_user");
	follow_own(object);
	ring = ring_buffer__new(bpf_map__fd(bpf_object__find_map_by_name(object, "events")), each, NULL, NULL);
	walk_one(ring);
	fault_one(object, ring);
	snprintf(found_all, sizeof(found_all),
		 "%d programs accepted (%d of them for page-fault tracepoints, which this kernel does not have), %d attached; "
		 "the stacks of a system call and of a page fault are right, and the page has its owner",
		 programs, without_hook, attached);
	return found_all;
}
