/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The probe's stack walk, compiled for user space: the unchanged src/bpf with stand-ins for the kernel. It walks
 * stacks that were saved on another machine, possibly with another processor (-D__TARGET_ARCH_arm64 with
 * -I vmlinux/aarch64, or -D__TARGET_ARCH_x86 with -I vmlinux/x86_64).
 *
 * It reads 8-byte words, and prints a line for each walk. tests/suite/unwind/saved.rs controls it.
 *
 *   1 rules (2 words each)… | rows… | pages (5 words each)…   each after its number: the tables
 *   2 mm_id number (start end bias table)…                    the mappings of an address space, or 0: none are known
 *   3 number (start number words…)…                           all of the memory
 *   4 address word                                            replaces one word of it
 *   5 fresh mm_id mode depth ip sp fp bx lr in_syscall        a walk; fresh: by a new thread with an
 *                                                             empty unwind cache
 *
 * A line is "id outcome frame frame…". No C library headers: the kernel's types have the same names.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

/* Constants of the probe, which its loader sets. */
#define const
#include "memprof.bpf.c"
#undef const

int printf(const char *format, ...);
int fprintf(void *to, const char *format, ...);
void *calloc(unsigned long number, unsigned long size);
void free(void *memory);
unsigned long fread(void *to, unsigned long size, unsigned long number, void *from);
int fflush(void *to);
void exit(int status) __attribute__((noreturn));
extern void *stdin, *stdout, *stderr;

static void fail(const char *what)
{
	fprintf(stderr, "walk: %s\n", what);
	exit(2);
}

static void *allocate(unsigned long number, unsigned long size)
{
	void *memory = calloc(number ? number : 1, size);

	if (!memory)
		fail("no memory");
	return memory;
}

/* ---- Maps. ---- */

/* A map with keys: a linear search. */
struct table {
	void *map;
	__u32 key_size, value_size, nr, max;
	char *entries;
};

#define TABLE(map, max) { &map, sizeof(*map.key), sizeof(*map.value), 0, max, NULL }
static struct table tables[] = {
	TABLE(unwind_spaces, 8),
	TABLE(unwind_pages, 4096),
	TABLE(code_files, 1),
};

static struct unwind_rule *rules;
static __u64 nr_rules;
static struct unwind_rows *rows;
static struct stack_bucket buckets[STACK_BUCKETS];

/* Key and value are aligned. */
static __u64 entry_size(struct table *t)
{
	return (t->key_size + 7) / 8 * 8 + t->value_size;
}

static void *value_of(struct table *t, char *entry)
{
	return entry + (t->key_size + 7) / 8 * 8;
}

static struct table *table_of(void *map)
{
	for (unsigned int i = 0; i < sizeof(tables) / sizeof(*tables); i++)
		if (tables[i].map == map)
			return &tables[i];
	return NULL;
}

static void *find_entry(struct table *t, const void *key)
{
	for (__u32 i = 0; i < t->nr; i++) {
		char *entry = t->entries + i * entry_size(t);

		if (!__builtin_memcmp(entry, key, t->key_size))
			return value_of(t, entry);
	}
	return NULL;
}

void *bpf_map_lookup_elem(void *map, const void *key)
{
	struct table *t = table_of(map);
	__u32 index = *(__u32 *)key;

	if (t)
		return find_entry(t, key);
	if (map == &stacks)
		return index < STACK_BUCKETS ? &buckets[index] : NULL;
	if (map == &unwind_rules)
		return index < nr_rules ? &rules[index] : NULL;
	/* One array of rows is enough here; it is the only value. */
	if (map == &unwind_chunks)
		return index == 0 && rows ? rows : NULL;
	if (map == rows)
		return index == 0 ? rows : NULL;
	fail("a map that the walk is not known to use");
}

long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags)
{
	struct table *t = table_of(map);
	char *at;

	if (!t)
		fail("an update of a map that the walk is not known to use");
	at = find_entry(t, key);
	if (at && flags == BPF_NOEXIST)
		return -17;
	if (!t->entries)
		t->entries = allocate(t->max, entry_size(t));
	if (!at) {
		if (t->nr == t->max)
			fail("a map is full");
		at = t->entries + t->nr++ * entry_size(t);
		__builtin_memcpy(at, key, t->key_size);
		at = value_of(t, at);
	}
	__builtin_memcpy(at, value, t->value_size);
	return 0;
}

long bpf_map_delete_elem(void *map, const void *key)
{
	fail("something is deleted");
}

/* ---- The thread, its registers and its memory. ---- */

static struct task_state remembering, forgetful;
static struct pt_regs regs;
static struct pid_namespace namespace;
static struct pid pid = { .numbers = { { .nr = 1, .ns = &namespace } } };
static struct task_struct task = { .group_leader = &task, .thread_pid = &pid };

struct region {
	__u64 start, nr;
	__u64 *words;
};
static struct region *memory;
static __u64 nr_regions;

struct task_struct *bpf_get_current_task_btf(void)
{
	return &task;
}

long bpf_task_pt_regs(struct task_struct *task)
{
	return (long)&regs;
}

void *bpf_task_storage_get(void *map, struct task_struct *task, void *value, __u64 flags)
{
	fail("a thread's state is asked for");
}

/* The memory at an address, if all `size` bytes exist. */
static void *memory_at(__u64 start, __u64 size)
{
	for (__u64 i = 0; i < nr_regions; i++) {
		__u64 in = start - memory[i].start, all = 8 * memory[i].nr;

		if (start >= memory[i].start && in <= all && size <= all - in)
			return (char *)memory[i].words + in;
	}
	return NULL;
}

/* All or nothing, as in the kernel, which clears the destination on failure. */
long bpf_probe_read_user(void *to, __u32 size, const void *from)
{
	void *at = memory_at((__u64)from, size);

	if (at)
		__builtin_memcpy(to, at, size);
	else
		__builtin_memset(to, 0, size);
	return at ? 0 : -14;
}

long bpf_probe_read_kernel(void *to, __u32 size, const void *from)
{
	__builtin_memcpy(to, from, size);
	return 0;
}

long bpf_probe_read_kernel_str(void *to, __u32 size, const void *from)
{
	return bpf_probe_read_kernel(to, size, from);
}

long bpf_find_vma(struct task_struct *task, __u64 addr, void *callback, void *context, __u64 flags)
{
	fail("a mapping is asked for");
}

long bpf_tail_call(void *context, void *map, __u32 index)
{
	fail("another program is called");
}

long bpf_loop(__u32 count, void *step, void *context, __u64 flags)
{
	long (*call)(__u64, void *) = step;

	for (__u32 i = 0; i < count; i++)
		if (call(i, context))
			return i + 1;
	return count;
}

/* ---- Results. ---- */

#define MAX_STACKS (STACK_FIRST + STACK_BUCKETS * BUCKET_SLOTS)
#define MAX_FRAMES 1024

struct found {
	__u32 outcome;
	__u32 whole;
	__u32 nr;
	__u64 *frames;
};

static struct found *found[MAX_STACKS];

__u64 bpf_ringbuf_query(void *ring, __u64 flags)
{
	return 0;
}

long bpf_ringbuf_output(void *ring, void *record, __u64 size, __u64 flags)
{
	struct stack_event *event = record;
	struct found *to;
	__u64 *frames;

	if (event->kind != EVENT_STACK || event->stack_id >= MAX_STACKS)
		fail("not the record of a stack");
	if (size != offsetof(struct stack_event, frames) + 8 * event->nr)
		fail("a record of another size than its frames");
	if (!event->before)
		found[event->stack_id] = allocate(1, sizeof(*to));
	to = found[event->stack_id];
	if (!to || to->whole || to->nr != event->before || to->nr + event->nr > MAX_FRAMES)
		fail("not the next part of a stack");
	frames = allocate(to->nr + event->nr, 8);
	if (to->nr)
		__builtin_memcpy(frames, to->frames, 8 * to->nr);
	__builtin_memcpy(frames + to->nr, event->frames, 8 * event->nr);
	free(to->frames);
	to->frames = frames;
	to->nr += event->nr;
	to->outcome = event->outcome;
	to->whole = event->last;
	return 0;
}

/* ---- Input. ---- */

static __u64 word(void)
{
	__u64 word;

	if (fread(&word, 8, 1, stdin) != 1)
		fail("the input ends too early");
	return word;
}

static __u64 number(__u64 max)
{
	__u64 n = word();

	if (n > max)
		fail("too large a number");
	return n;
}

static void read_tables(void)
{
	__u64 n;

	nr_rules = number(1 << 16);
	free(rules);
	rules = allocate(nr_rules, sizeof(*rules));
	fread(rules, sizeof(*rules), nr_rules, stdin);
	n = number(UNWIND_ROWS);
	rows = rows ? rows : allocate(1, sizeof(*rows));
	for (__u64 i = 0; i < n; i++)
		rows->row[i] = word();
	table_of(&unwind_pages)->nr = 0;
	for (n = number(4096); n; n--) {
		struct unwind_page_key key = { .table = word() };
		struct unwind_page page = {};

		key.page = word();
		page.first = word();
		page.count = word();
		page.rules = word();
		bpf_map_update_elem(&unwind_pages, &key, &page, BPF_ANY);
		key.page = UNWIND_TABLE_END;
		bpf_map_update_elem(&unwind_pages, &key, &page, BPF_ANY);
	}
	unwind_generation++;
}

static void read_mappings(void)
{
	static struct unwind_space space;
	__u32 mm_id = word();

	space.nr = number(MAX_MAPPINGS);
	for (__u32 i = 0; i < space.nr; i++) {
		space.at[i].start = word();
		space.at[i].end = word();
		space.at[i].bias = word();
		space.at[i].table = word();
	}
	/* As in insert_mapping(): only a mapping that replaces another one changes the generation. */
	if (bpf_map_lookup_elem(&unwind_spaces, &mm_id))
		unwind_generation++;
	if (space.nr)
		bpf_map_update_elem(&unwind_spaces, &mm_id, &space, BPF_ANY);
	else
		tables[0].nr = 0; /* unwind_spaces */
}

static void read_memory(void)
{
	for (__u64 i = 0; i < nr_regions; i++)
		free(memory[i].words);
	free(memory);
	nr_regions = number(64);
	memory = allocate(nr_regions, sizeof(*memory));
	for (__u64 i = 0; i < nr_regions; i++) {
		memory[i].start = word();
		memory[i].nr = number(1 << 20);
		memory[i].words = allocate(memory[i].nr, 8);
		fread(memory[i].words, 8, memory[i].nr, stdin);
	}
}

static void change_word(void)
{
	__u64 *at = memory_at(word(), 8);

	if (!at)
		fail("a word to be changed is not there");
	*at = word();
}

static void set_registers(__u64 ip, __u64 sp, __u64 fp, __u64 bx, __u64 lr, int in_syscall)
{
#if defined(bpf_target_x86)
	regs.ip = ip;
	regs.sp = sp;
	regs.bp = fp;
	regs.bx = bx;
	regs.orig_ax = in_syscall ? 0 : -1;
#else
	regs.pc = ip;
	regs.sp = sp;
	regs.regs[29] = fp;
	regs.regs[30] = lr;
	regs.syscallno = in_syscall ? 0 : -1;
#endif
}

/* A frame's address in an address space. */
static __u64 frame_address(__u32 mm_id, __u64 frame)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	__u32 table = (frame & ~FRAME_IN_FILE) >> FRAME_FILE_SHIFT;

	/* Invalid addresses are sent without their highest bit. */
	if (!(frame & FRAME_IN_FILE))
		return frame >> 62 ? frame | FRAME_IN_FILE : frame;
	for (__u32 i = 0; space && i < space->nr; i++) {
		__u64 at = (frame & ((1ull << FRAME_FILE_SHIFT) - 1)) + space->at[i].bias;

		if (space->at[i].table == table && at >= space->at[i].start && at < space->at[i].end)
			return at;
	}
	fail("a frame in a file that is not mapped");
}

static void walk_once(void)
{
	struct task_state *st = &remembering;
	__u64 r[6], mode, depth;
	__u32 id;

	if (word()) {
		st = &forgetful;
		__builtin_memset(st, 0, sizeof(*st));
	}
	st->mm_id = word();
	mode = word();
	depth = number(MAX_FRAMES);
	/* The probe's mode and depth never change. */
	unwind_generation += mode != unwind_mode || depth != max_frames;
	unwind_mode = mode;
	max_frames = depth;
	for (int i = 0; i < 6; i++)
		r[i] = word();
	set_registers(r[0], r[1], r[2], r[3], r[4], r[5]);
	id = stack_id(st, 0);
	if (id >= MAX_STACKS || !found[id] || !found[id]->whole)
		fail("a stack that was never sent");
	printf("%u %u", id, found[id]->outcome);
	for (__u32 i = 0; i < found[id]->nr; i++)
		printf(" %llx", frame_address(st->mm_id, found[id]->frames[i]));
	printf("\n");
	fflush(stdout);
}

int main(void)
{
	__u64 what;

	while (fread(&what, 8, 1, stdin) == 1) {
		switch (what) {
		case 1: read_tables(); break;
		case 2: read_mappings(); break;
		case 3: read_memory(); break;
		case 4: change_word(); break;
		case 5: walk_once(); break;
		default: fail("what is that?");
		}
	}
	for (int i = 0; i < LOSS_NR; i++)
		if (losses[i])
			fail("a loss was counted");
	return 0;
}
