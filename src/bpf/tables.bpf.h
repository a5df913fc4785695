/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The walk by tables: most programs keep no frame pointers, but all carry .eh_frame, of which user
 * space makes these tables. Included by unwind.bpf.h, which says what a walk is.
 */
#ifndef MEMPROF_TABLES_H
#define MEMPROF_TABLES_H

/* Flags of a frame beside RULE_NEEDS, which says what is known of its registers. */
#define FRAME_CALL 0x0100u /* the instruction pointer is a return address: the call lies before it */
#define FRAME_ASSISTED 0x0200u /* a frame pointer has helped on the way here */
#define FRAME_FP_SAVED 0x0400u /* `fp` is where the register is saved */
#define FRAME_USES_FP 0x0800u /* the way on from here needs the frame pointer register */
#define FRAME_USES_OTHER 0x1000u /* it needs another one (rbx, the link register) */
#define FRAME_SETS_FP 0x2000u /* what the frame's caller has in the frame pointer register is another matter */
/* What the way on from a frame depends on, beside `ip`, `sp` and the stack. */
#define FRAME_STATE (RULE_NEEDS | FRAME_CALL | FRAME_ASSISTED)
/* What a frame's step says of it. */
#define FRAME_STEP (FRAME_USES_FP | FRAME_USES_OTHER | FRAME_SETS_FP)

/* More words than a remembered walk can hold. */
#define NOTED_TOO_MANY 0x4000

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct unwind_space);
} unwind_spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct unwind_page_key);
	__type(value, struct unwind_page);
} unwind_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct unwind_rule);
} unwind_rules SEC(".maps");

/* Row arrays are made as they are needed: a megabyte each. */
struct unwind_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct unwind_rows));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 64);
	__type(key, __u32);
	__array(values, struct unwind_chunk);
} unwind_chunks SEC(".maps");

/* Changes whenever a table or a mapping does: remembered walks are void. */
__u32 unwind_generation = 1;

/* Index of the last mapping that begins at or before `pc`, or MAX_MAPPINGS. (Global: checked once.) */
__noinline __u32 last_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = 0, n;

	if (!space)
		return MAX_MAPPINGS;
	n = space->nr;
	if (n > MAX_MAPPINGS)
		n = MAX_MAPPINGS;
	for (int i = 0; i < 10; i++) {
		__u32 half = n >> 1;

		if (!half)
			break;
		if (space->at[INDEX(at + half, MAX_MAPPINGS)].start <= pc)
			at += half;
		n -= half;
	}
	at = INDEX(at, MAX_MAPPINGS);
	return n && space->at[at].start <= pc ? at : MAX_MAPPINGS;
}

/* Index of the mapping that `pc` lies in, or MAX_MAPPINGS. */
static __always_inline __u32 find_mapping(struct unwind_space *space, __u64 pc)
{
	__u32 at = last_mapping(space, pc);

	if (!space || at >= MAX_MAPPINGS || pc >= space->at[INDEX(at, MAX_MAPPINGS)].end)
		return MAX_MAPPINGS;
	return at;
}

struct drop_ctx {
	struct unwind_space *space;
	__u64 start;
	__u64 end;
};

static long drop_step(__u64 i, struct drop_ctx *c)
{
	__u32 at = last_mapping(c->space, c->end - 1);
	struct unwind_mapping *m;

	if (at >= MAX_MAPPINGS)
		return 1;
	m = &c->space->at[INDEX(at, MAX_MAPPINGS)];
	if (m->end <= c->start)
		return 1;
	m->table = 0;
	c->end = m->start;
	__sync_fetch_and_add(&unwind_generation, 1);
	return c->end <= c->start;
}

/*
 * Code is mapped: it must not be walked by the table of what lay there before. The old mappings stay,
 * without a table, until user space publishes anew.
 */
static __always_inline void drop_code(__u32 mm_id, __u64 start, __u64 end)
{
	struct drop_ctx c = { .start = start, .end = end };

	if (unwind_mode < UNWIND_TABLES)
		return;
	c.space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	if (c.space)
		bpf_loop(MAX_MAPPINGS, drop_step, &c, 0);
}

/* The last row of [first, first + n) that does not lie above `low`; the first one never does. */
__noinline __u32 find_row(struct unwind_rows *rows, __u32 first, __u32 n, __u32 low)
{
	__u32 at = first;

	if (!rows)
		return 0;
	for (int i = 0; i < 18; i++) {
		__u32 half = n >> 1;

		if (!half)
			break;
		if ((rows->row[INDEX(at + half, UNWIND_ROWS)] & 0xffff) <= low)
			at += half;
		n -= half;
	}
	return rows->row[INDEX(at, UNWIND_ROWS)];
}

/* Whether a range is known to be code: it lies in one mapping of those published. */
static __always_inline int is_known_code(__u32 mm_id, __u64 start, __u64 end)
{
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
	__u32 at = find_mapping(space, start);

	return space && at < MAX_MAPPINGS && end <= space->at[INDEX(at, MAX_MAPPINGS)].end;
}

#define NO_RULE 0xffffffff

/*
 * The rules found lately, by place. A place (16 bits of table, 32 of address) is mixed by a
 * multiplication that can be undone: the upper bits choose the entry, the others are kept in it, so that
 * an entry answers for one place only. One word each: no thread sees half of another's. What is in it
 * stays true, as a table never changes and its number is not given again.
 */
#define RULE_CACHE_BITS 14
#define RULE_TAG_BITS 34
#define RULE_NOT_CACHED (~0ull)
__u64 rule_cache[1 << RULE_CACHE_BITS];

static __always_inline __u64 rule_mix(__u32 table, __u64 pc)
{
	if (pc >> 32 || table >> 16)
		return RULE_NOT_CACHED;
	return ((((__u64)table << 32) | pc) * 0x9e3779b97f4a7c15ull) & ((1ull << (RULE_CACHE_BITS + RULE_TAG_BITS)) - 1);
}

/* The rest of a mixed place, with a bit that no empty entry has; none for what is not cached. */
static __always_inline __u64 rule_tag(__u64 mixed)
{
	return (mixed & ((1ull << RULE_TAG_BITS) - 1)) | 1ull << RULE_TAG_BITS | (mixed >> 63) << 47;
}

/*
 * The rule for an address, or NO_RULE; then the walk's outcome says why there is none. The mapping
 * found last is kept: the next frame is often in the same one.
 */
__noinline __u32 find_rule(struct task_state *st, __u64 pc)
{
	struct unwind_page_key key;
	struct unwind_space *space;
	struct unwind_page *page;
	struct unwind_rows *rows;
	__u32 at, mm_id, zero = 0;
	__u64 mixed, cached;
	void *chunk;

	if (!st)
		return NO_RULE;
	if (pc < st->t.start || pc >= st->t.end) {
		st->t.outcome = OUTCOME_NO_MAPPING;
		st->t.start = st->t.end = 0;
		st->t.table = 0;
		mm_id = st->mm_id;
		space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);
		if (!space)
			return NO_RULE;
		at = find_mapping(space, pc);
		if (at >= MAX_MAPPINGS)
			return NO_RULE;
		at = INDEX(at, MAX_MAPPINGS);
		st->t.start = space->at[at].start;
		st->t.end = space->at[at].end;
		st->t.bias = space->at[at].bias;
		st->t.table = space->at[at].table;
	}
	st->t.outcome = OUTCOME_NO_TABLE;
	if (!st->t.table)
		return NO_RULE;
	pc -= st->t.bias;
	mixed = rule_mix(st->t.table, pc);
	cached = rule_cache[INDEX(mixed >> RULE_TAG_BITS, 1 << RULE_CACHE_BITS)];
	if (cached >> 16 == rule_tag(mixed))
		return cached & 0xffff;
	key.table = st->t.table;
	key.page = pc >> 16;
	page = bpf_map_lookup_elem(&unwind_pages, &key);
	if (!page)
		return NO_RULE;
	chunk = bpf_map_lookup_elem(&unwind_chunks, &page->chunk);
	if (!chunk)
		return NO_RULE;
	rows = bpf_map_lookup_elem(chunk, &zero);
	if (!rows)
		return NO_RULE;
	at = page->rules + (find_row(rows, page->first, page->count, pc & 0xffff) >> 16);
	if (mixed != RULE_NOT_CACHED && at <= 0xffff)
		rule_cache[INDEX(mixed >> RULE_TAG_BITS, 1 << RULE_CACHE_BITS)] = rule_tag(mixed) << 16 | at;
	return at;
}

/* The place of a stack address: 16 GiB to either side of `base` have one. */
static __always_inline __u32 place_of(struct task_state *st, __u64 addr)
{
	return (addr - st->base) >> 3;
}

static __always_inline __u64 address_of(struct task_state *st, __u32 place)
{
	return st->base + 8 * (__s64)(__s32)place;
}

static __always_inline int is_place(struct task_state *st, __u64 addr)
{
	return address_of(st, place_of(st, addr)) == addr;
}

/*
 * Brings the word at `addr` and many above it into the window, no more of them than the remembered
 * walk has read.
 */
static __always_inline int move_window(struct task_state *st, __u64 addr)
{
	__u32 words = WINDOW_WORDS;
	__u64 last;

	if (st->memo_nr) {
		last = address_of(st, st->words[0].at);
		if (last >= addr && (last - addr) >> 3 < WINDOW_WORDS - 1 - WINDOW_SLACK)
			words = ((last - addr) >> 3) + 1 + WINDOW_SLACK;
	}
	return read_window(st, addr, WINDOW_SLACK, words);
}

/*
 * Reads one word of the stack, through the window: one long read serves many frames. What is read
 * is noted, with its place: as long as all of it stays the same, so does the stack. Returns 0, or -1
 * where nothing can be read.
 */
__noinline int stack_word(struct task_state *st, __u64 addr, __u64 *word)
{
	__u32 nr;
	__u64 at;

	if (!st || !word || (addr & 7))
		return -1;
	at = (addr - st->t.window_base) >> 3;
	if (addr < st->t.window_base || at >= st->t.window_words) {
		if (move_window(st, addr))
			return -1;
		at = (addr - st->t.window_base) >> 3;
	}
	*word = st->window[INDEX(at, WINDOW_WORDS)];
	nr = MEMO_WORDS - 1 - st->t.noted;
	if (nr < MEMO_WORDS && is_place(st, addr)) {
		struct noted_word *w = &st->words[nr];

		w->at = place_of(st, addr);
		w->low = *word;
		w->high = *word >> 32;
		st->t.noted++;
		/* What was there is lost to the remembered walk. */
		if (st->t.same > nr)
			st->t.same = nr;
	} else {
		st->t.noted = NOTED_TOO_MANY;
	}
	return 0;
}

/* The frame pointer register of the frame, which its caller does not need to have. */
static __always_inline int frame_pointer(struct task_state *st, __u64 *fp)
{
	st->t.flags |= FRAME_USES_FP;
	*fp = st->t.fp;
	return st->t.flags & FRAME_FP_SAVED ? stack_word(st, *fp, fp) : 0;
}

/* The caller's frame pointer register is saved at `addr`: read if a frame asks for it. */
static __always_inline void fp_saved_at(struct task_state *st, __u64 addr)
{
	st->t.fp = addr;
	st->t.flags |= FRAME_FP_SAVED | FRAME_SETS_FP | RULE_NEEDS_FP;
}

static __always_inline long table_ends(struct task_state *st, __u32 outcome)
{
	if (outcome == OUTCOME_COMPLETE && (st->t.flags & FRAME_ASSISTED))
		outcome = OUTCOME_ASSISTED;
	st->t.outcome = outcome;
	return 1;
}

/* Whether a return address can be one. Where no mapping is known yet, user space sorts it out. */
static __always_inline int is_code(struct task_state *st, __u64 addr)
{
	__u32 mm_id = st->mm_id;
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);

	if (space)
		return find_mapping(space, addr) < MAX_MAPPINGS;
	return addr >= 4096 && !(addr >> 56);
}

/* A frame without a rule: its frame pointer, if what it leads to is code. */
static __always_inline int assisted_step(struct task_state *st, __u64 *ret)
{
	__u64 fp;

	if (unwind_mode != UNWIND_AUTO || frame_pointer(st, &fp))
		return -1;
	/*
	 * 0 ends a chain that has been followed (then *ret is 0 too). In the first frame without a rule
	 * it says nothing: code without frame pointers may have any value there.
	 */
	if (fp == 0)
		return st->t.flags & FRAME_ASSISTED ? 0 : -1;
	if (fp < st->t.sp || stack_word(st, fp + 8, ret))
		return -1;
	if (*ret && !is_code(st, *ret - 1))
		return -1;
	st->t.sp = fp + 16;
	st->t.flags &= ~RULE_NEEDS;
	st->t.flags |= FRAME_ASSISTED;
	fp_saved_at(st, fp);
	return 0;
}

/* A frame that a signal interrupted: its registers are in the signal frame, where the rule says. */
static __always_inline int signal_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u64 base = st->t.sp;

	st->t.flags &= ~RULE_NEEDS;
#if defined(bpf_target_arm64)
	st->t.flags |= RULE_RA_IN_LINK_REGISTER;
	if (stack_word(st, base + (__s64)rule->ra_offset - 16, &st->t.lr))
		return -1;
#endif
	fp_saved_at(st, base + (__s64)rule->fp_offset);
	/* An alternate stack may lie anywhere: this one step may lead down. */
	return stack_word(st, base + (__s64)rule->ra_offset, ret) ||
	       stack_word(st, base + (__s64)rule->cfa_offset, &st->t.sp);
}

/* The canonical frame address by a rule; 0 if it cannot be had. */
static __always_inline __u64 find_cfa(struct task_state *st, struct unwind_rule *rule, __u64 fp)
{
	__u64 cfa = 0, offset = (__s64)rule->cfa_offset;
	__u32 call = st->t.flags & FRAME_CALL ? 1 : 0;

	switch (rule->cfa) {
	case CFA_SP:
		return st->t.sp + offset;
	case CFA_FP:
		return fp + offset;
	case CFA_BX:
		st->t.flags |= FRAME_USES_OTHER;
		return st->t.bx + offset;
	case CFA_PLT:
		return st->t.sp + (((st->t.ip - call - st->t.bias) & 15) >= offset ? 16 : 8);
	case CFA_DEREF_FP:
	case CFA_DEREF_SP:
		offset += rule->cfa == CFA_DEREF_FP ? fp : st->t.sp;
		return stack_word(st, offset, &cfa) ? 0 : cfa + (rule->flags >> RULE_ADDEND_SHIFT);
	}
	return 0;
}

/* From a frame to its caller by a rule. Returns an outcome if the walk ends here, else -1. */
static __always_inline int ruled_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u32 flags = rule->flags, known = st->t.flags & RULE_NEEDS;
	__u64 cfa, fp = 0;

	/* A frame before did not say where it left a register. */
	if (flags & RULE_NEEDS & ~known)
		return OUTCOME_UNSUPPORTED;
	if ((flags & RULE_NEEDS_FP) && frame_pointer(st, &fp))
		return OUTCOME_UNREADABLE;
	cfa = find_cfa(st, rule, fp);
	known &= ~RULE_RA_IN_LINK_REGISTER;
#if defined(bpf_target_arm64)
	if ((flags & RULE_RA_IN_LINK_REGISTER) && cfa >= st->t.sp) {
		*ret = st->t.lr;
		st->t.flags |= FRAME_USES_OTHER;
	} else
#else
	if (flags & RULE_BX_SAVED) {
		if (stack_word(st, cfa + (__s64)rule->ra_offset, &st->t.bx) ||
		    stack_word(st, cfa - 8, ret))
			return OUTCOME_UNREADABLE;
		known |= RULE_NEEDS_BX;
	} else
#endif
	if (stack_word(st, cfa + (__s64)rule->ra_offset, ret))
		return OUTCOME_UNREADABLE;
	/* Callers lie above: anything else is a wrong turn, or a loop. */
	if (cfa < st->t.sp || (cfa == st->t.sp && !(flags & RULE_RA_IN_LINK_REGISTER)))
		return OUTCOME_UNREADABLE;
	if (!(flags & (RULE_BX_KEPT | RULE_BX_SAVED)))
		known &= ~RULE_NEEDS_BX;
	st->t.flags = (st->t.flags & ~RULE_NEEDS) | known;
	if (rule->fp == FP_LOST)
		st->t.flags = (st->t.flags & ~RULE_NEEDS_FP) | FRAME_SETS_FP;
	if (rule->fp == FP_AT_CFA || rule->fp == FP_AT_FP)
		fp_saved_at(st, (rule->fp == FP_AT_CFA ? cfa : fp) + (__s64)rule->fp_offset);
	st->t.sp = cfa;
#if defined(bpf_target_arm64)
	*ret &= (1ull << 48) - 1; /* without its signature */
#endif
	return -1;
}

/* From a frame to its caller. Returns 1 if the walk ends here. */
static __always_inline long table_step(struct task_state *st)
{
	__u32 call = st->t.flags & FRAME_CALL ? 1 : 0, at = find_rule(st, st->t.ip - call);
	struct unwind_rule *rule = at == NO_RULE ? NULL : bpf_map_lookup_elem(&unwind_rules, &at);
	__u64 ret = 0;
	int end;

	call = FRAME_CALL;
	if (!rule || rule->cfa == CFA_NOT_COVERED) {
		if (assisted_step(st, &ret))
			return 1; /* find_rule() has said why */
	} else if (rule->cfa == CFA_STOP) {
		return table_ends(st, OUTCOME_COMPLETE);
	} else if (rule->cfa == CFA_UNSUPPORTED) {
		return table_ends(st, OUTCOME_UNSUPPORTED);
	} else if (rule->cfa == CFA_SIGNAL) {
		call = 0;
		if (signal_step(st, rule, &ret))
			return table_ends(st, OUTCOME_UNREADABLE);
	} else {
		end = ruled_step(st, rule, &ret);
		if (end >= 0)
			return table_ends(st, end);
	}
	/* (What a signal interrupted may have called a null pointer.) */
	if (ret == 0 && call)
		return table_ends(st, OUTCOME_COMPLETE);
	st->t.ip = ret;
	st->t.flags = (st->t.flags & ~FRAME_CALL) | call;
	return 0;
}

/* ---- The walk remembered: where it and this walk meet, the rest is known. ---- */

struct same_ctx {
	struct task_state *st;
	__u32 first; /* place of what the window begins with */
	__u32 words; /* in the window */
	__u32 left; /* words to compare */
	__u32 pad;
};

/* Brings the word at a place, and many above it, into the window. 0, or -1 if unreadable. */
static __noinline int same_window(struct same_ctx *c, __u32 place)
{
	struct task_state *st = c->st;

	if (move_window(st, address_of(st, place)))
		return -1;
	c->first = place_of(st, st->t.window_base);
	c->words = st->t.window_words;
	return 0;
}

/* Some words at a time, and no call for a word: this is what a fault in a loop costs. */
#define SAME_STEPS 8

static long same_steps(__u64 i, struct same_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < SAME_STEPS; k++) {
		__u32 left = c->left - 1;
		struct noted_word *w;
		__u64 word;

		if (left >= MEMO_WORDS)
			return 1;
		w = &st->words[left];
		if (w->at - c->first >= c->words && same_window(c, w->at))
			return 1;
		word = st->window[INDEX(w->at - c->first, WINDOW_WORDS)];
		if ((__u32)word != w->low || word >> 32 != w->high)
			return 1;
		c->left = left;
	}
	return 0;
}

/* Whether the remembered walk's outer words, `n` of them, are what the stack holds now. */
static __always_inline int same_words(struct task_state *st, __u32 n)
{
	struct same_ctx c = { .st = st, .left = n };

	c.first = place_of(st, st->t.window_base);
	c.words = st->t.window_words;
	bpf_loop(MEMO_WORDS / SAME_STEPS + 1, same_steps, &c, 0);
	/* Where one differs, the frames that have read it are not met any more. */
	st->t.same = c.left ? c.left - 1 : st->t.same;
	return !c.left;
}

/* How many frames at most are passed over in one step. */
#define PASS_STEPS 16

/* Passes over the remembered frames that the walk cannot meet any more; how many are left. */
__noinline __u32 frames_left(struct task_state *st)
{
	__u32 left;
	__s32 sp;

	if (!st)
		return 0;
	left = st->t.left;
	sp = place_of(st, st->t.sp);
	for (int k = 0; k < PASS_STEPS; k++) {
		struct frame *f = &st->frames[INDEX(left - 1, MAX_FRAMES)];

		if (!left || ((__s32)f->sp >= sp && f->words <= st->t.same))
			break;
		left--;
	}
	st->t.left = left;
	return left;
}

/* Whether the frame pointer register is what it was, or saved where it was. */
static __always_inline int same_fp(struct task_state *st, struct frame *f)
{
	__u32 saved = st->t.flags & FRAME_FP_SAVED;

	if ((f->flags & FRAME_FP_SAVED) != saved)
		return 0;
	return saved ? is_place(st, st->t.fp) && f->fp == place_of(st, st->t.fp) : st->t.fp == st->memo_fp;
}

/*
 * Whether the remembered walk came through this frame, frame `i`, in the same state, and all it read
 * from here on is unchanged: then it goes on as that one did.
 */
static __always_inline int meets(struct task_state *st, __u64 i)
{
	__u32 left = frames_left(st), flags = st->t.flags;
	struct frame *f;

	if (!left || !is_place(st, st->t.sp))
		return 0;
	f = &st->frames[INDEX(left - 1, MAX_FRAMES)];
	if (f->sp != place_of(st, st->t.sp) || f->ip != st->t.ip - (flags & FRAME_CALL ? 1 : 0))
		return 0;
	if (((f->flags ^ flags) & FRAME_STATE) || (f->flags & FRAME_USES_OTHER))
		return 0;
	if ((f->flags & FRAME_USES_FP) && !same_fp(st, f))
		return 0;
	/* Where a walk is cut off depends on where it began. */
	if (st->memo_outcome == OUTCOME_DEPTH_LIMIT && (i || left != st->memo_nr))
		return 0;
	if (!same_words(st, f->words))
		return 0;
	st->t.met = left;
	st->t.outcome = st->memo_outcome;
	return 1;
}

struct walk_ctx {
	struct task_state *st;
};

/* One frame: noted, and its caller found. */
static long walk_frame(__u64 i, struct walk_ctx *c)
{
	struct task_state *st = c->st;
	__u32 at = INDEX(MAX_FRAMES - 1 - i, MAX_FRAMES);
	struct frame *f = &st->frames[at];
	long end;

	if (i && meets(st, i))
		return 1;
	/* What was there is lost to the remembered walk; the two could not meet there any more. */
	if (st->t.left > at)
		st->t.left = at;
	f->ip = st->t.ip - (st->t.flags & FRAME_CALL ? 1 : 0);
	f->sp = place_of(st, st->t.sp);
	f->fp = place_of(st, st->t.fp);
	f->words = st->t.noted;
	f->flags = st->t.flags;
	if (!is_place(st, st->t.sp) || ((f->flags & FRAME_FP_SAVED) && !is_place(st, st->t.fp)))
		st->t.noted = NOTED_TOO_MANY;
	st->t.nr = i + 1;
	st->t.flags &= FRAME_STATE | FRAME_FP_SAVED;
	end = i == MAX_FRAMES - 1 ? table_ends(st, OUTCOME_DEPTH_LIMIT) : table_step(st);
	f->check = st->t.table;
	f->flags |= st->t.flags & FRAME_STEP;
	return end;
}

struct keep_ctx {
	struct task_state *st;
	struct stack_hash hash;
	__u32 from; /* where the next frame is */
	__u32 to; /* and where it goes */
	__u32 words; /* that were read in all, the remembered ones among them */
	__u32 uses; /* what the frames from the outermost one on need of the frame's registers */
};

#define KEEP_STEPS 4

/* The walk's frames, from the outermost one on, to the remembered ones. */
static long keep_frames(__u64 i, struct keep_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < KEEP_STEPS; k++) {
		__u32 from = c->from;
		struct frame f, *to;

		if (from >= MAX_FRAMES)
			return 1;
		f = st->frames[from];
		/* Another file may have lain there before: the same addresses are another stack. */
		hash_word(&c->hash, f.ip ^ (f.check * 0x9e3779b97f4a7c15ull));
		if (f.flags & FRAME_SETS_FP)
			c->uses &= ~FRAME_USES_FP;
		c->uses |= f.flags & (FRAME_USES_FP | FRAME_USES_OTHER);
		f.key = c->hash.key;
		f.check = c->hash.check;
		f.words = c->words - f.words;
		f.flags = (f.flags & (FRAME_STATE | FRAME_FP_SAVED)) | c->uses;
		to = &st->frames[INDEX(c->to, MAX_FRAMES)];
		*to = f;
		c->from = from + 1;
		c->to++;
	}
	return 0;
}

struct keep_words_ctx {
	struct task_state *st;
	__u32 from;
	__u32 to;
};

static long keep_words(__u64 i, struct keep_words_ctx *c)
{
	struct task_state *st = c->st;

#pragma unroll
	for (__u32 k = 0; k < SAME_STEPS; k++) {
		__u32 from = c->from;

		if (from >= MEMO_WORDS)
			return 1;
		st->words[INDEX(c->to, MEMO_WORDS)] = st->words[from];
		c->from = from + 1;
		c->to++;
	}
	return 0;
}

/*
 * Takes the walk that just ended for the remembered one: what the two share stays where it is, the rest
 * moves up to it. Returns the stack's hash.
 */
static __always_inline struct stack_hash keep_walk(struct task_state *st, struct stack_hash hash)
{
	__u32 met = st->t.met, nr = st->t.nr, noted = st->t.noted, words = 0;
	struct keep_ctx c = { .st = st, .from = MAX_FRAMES - nr, .to = met };
	struct keep_words_ctx w = { .st = st, .from = MEMO_WORDS - noted };
	struct frame *f;

	c.hash = hash;
	if (met) {
		f = &st->frames[INDEX(met - 1, MAX_FRAMES)];
		c.hash.key = f->key;
		c.hash.check = f->check;
		c.uses = f->flags & (FRAME_USES_FP | FRAME_USES_OTHER);
		words = f->words;
	} else {
		hash_word(&c.hash, st->t.outcome);
	}
	c.words = words + noted;
	if (nr)
		bpf_loop(MAX_FRAMES / KEEP_STEPS + 1, keep_frames, &c, 0);
	w.to = words;
	if (noted && noted <= MEMO_WORDS)
		bpf_loop(MEMO_WORDS / SAME_STEPS + 1, keep_words, &w, 0);
	st->memo_nr = met + nr;
	st->memo_words = c.words;
	st->memo_outcome = st->t.outcome;
	st->memo_id = 0;
	return c.hash;
}

/* Whether what is remembered of a walk lets a later one rely on it. */
static __always_inline int is_sound(struct task_state *st)
{
	/* What cannot be read now may be readable then: its page was swapped out, say. */
	return st->memo_words <= MEMO_WORDS && st->memo_outcome != OUTCOME_UNREADABLE;
}

/* Follows the tables from the registers on. Returns the id of the stack if it is the remembered one. */
static __always_inline __u32 walk_tables(struct walk *w, struct user_regs *regs)
{
	struct task_state *st = w->st;
	struct walk_ctx c = { .st = st };

	if (st->memo_generation != unwind_generation || st->memo_mm_id != st->mm_id || !is_sound(st))
		st->memo_nr = 0;
	if (!st->memo_nr)
		st->base = regs->sp & ~7ull;
	st->memo_mm_id = st->mm_id;
	st->memo_generation = unwind_generation;
	st->t.ip = regs->ip;
	st->t.sp = regs->sp;
	st->t.fp = regs->bp;
	st->t.bx = regs->bx;
	st->t.lr = regs->lr;
	st->t.flags = RULE_NEEDS | (regs->in_syscall ? FRAME_CALL : 0);
	st->t.start = st->t.end = 0;
	st->t.table = 0;
	st->t.window_words = 0;
	st->t.noted = 0;
	st->t.nr = 0;
	st->t.left = st->memo_nr;
	st->t.same = st->memo_words;
	st->t.met = 0;
	/* A loop that touches a buffer is at the same place again: no loop over frames for that. */
	if (!meets(st, 0))
		bpf_loop(MAX_FRAMES, walk_frame, &c, 0);
	w->outcome = st->t.outcome;
	if (!st->t.nr && st->t.met == st->memo_nr && st->memo_id)
		return st->memo_id;
	w->hash = keep_walk(st, w->hash);
	st->memo_fp = regs->bp;
	w->nr = st->memo_nr;
	w->innermost = st->memo_nr - 1;
	return 0;
}

#endif
