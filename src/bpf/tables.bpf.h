/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The walk by tables: most programs keep no frame pointers, but all carry .eh_frame, of which user
 * space makes these tables. Included by unwind.bpf.h, which says what a walk is.
 */
#ifndef MEMPROF_TABLES_H
#define MEMPROF_TABLES_H

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
 * The rule for an address, or NO_RULE; then the walk's outcome says why there is none. The mapping
 * found last is kept: the next frame is often in the same one.
 */
__noinline __u32 find_rule(struct task_state *st, __u64 pc)
{
	struct unwind_page_key key;
	struct unwind_space *space;
	struct unwind_page *page;
	struct unwind_rows *rows;
	struct stack_hash hash;
	__u32 at, mm_id, zero = 0;
	void *chunk;

	if (!st)
		return NO_RULE;
	if (pc < st->t.start || pc >= st->t.end) {
		st->t.outcome = OUTCOME_NO_MAPPING;
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
		/* Another file may have lain here before: the same addresses are another stack. */
		hash = st->t.hash;
		hash_word(&hash, st->t.table);
		st->t.hash = hash;
	}
	st->t.outcome = OUTCOME_NO_TABLE;
	if (!st->t.table)
		return NO_RULE;
	pc -= st->t.bias;
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
	return page->rules + (find_row(rows, page->first, page->count, pc & 0xffff) >> 16);
}

/*
 * Reads one word of the stack, through the window: one long read serves many frames. What is read
 * is noted, with its place, in the memo: as long as all of it stays the same, so does the stack.
 * Returns 0, or -1 where nothing can be read.
 */
__noinline int stack_word(struct task_state *st, __u64 addr, __u64 *word)
{
	__u64 at, off;

	if (!st || !word || (addr & 7))
		return -1;
	at = (addr - st->t.window_base) >> 3;
	if (addr < st->t.window_base || at >= st->t.window_words) {
		at = (addr - st->memo_sp) >> 3;
		at = addr > st->memo_sp && at < WINDOW_SLACK ? at : WINDOW_SLACK;
		if (read_window(st, addr, at, WINDOW_WORDS))
			return -1;
		at = (addr - st->t.window_base) >> 3;
	}
	*word = st->window[INDEX(at, WINDOW_WORDS)];
	off = (addr - st->memo_sp) >> 3;
	if (st->t.noted < MEMO_WORDS && off < 65536) {
		at = INDEX(st->t.noted, MEMO_WORDS);
		st->memo_at[at] = off;
		st->memo_word[at] = *word;
		st->t.noted++;
		if (off >= st->memo_end)
			st->memo_end = off + 1;
	} else {
		st->t.noted = MEMO_WORDS + 1; /* more than the memo holds */
	}
	return 0;
}

static __always_inline long table_ends(struct task_state *st, __u32 outcome)
{
	st->t.outcome = outcome == OUTCOME_COMPLETE && st->t.assisted ? OUTCOME_ASSISTED : outcome;
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
	__u64 fp = st->t.fp, next;

	if (unwind_mode != UNWIND_AUTO)
		return -1;
	/*
	 * 0 ends a chain that has been followed (then *ret is 0 too). In the first frame without a rule
	 * it says nothing: code without frame pointers may have any value there.
	 */
	if (fp == 0)
		return st->t.assisted ? 0 : -1;
	if (fp < st->t.sp || stack_word(st, fp, &next) || stack_word(st, fp + 8, ret))
		return -1;
	if (*ret && !is_code(st, *ret - 1))
		return -1;
	st->t.sp = fp + 16;
	st->t.fp = next;
	st->t.known = RULE_NEEDS_FP;
	st->t.assisted = 1;
	return 0;
}

/* A frame that a signal interrupted: its registers are in the signal frame, where the rule says. */
static __always_inline int signal_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u64 base = st->t.sp;

	st->t.known = RULE_NEEDS_FP;
#if defined(bpf_target_arm64)
	st->t.known |= RULE_RA_IN_LINK_REGISTER;
	if (stack_word(st, base + (__s64)rule->ra_offset - 16, &st->t.lr))
		return -1;
#endif
	/* An alternate stack may lie anywhere: this one step may lead down. */
	return stack_word(st, base + (__s64)rule->fp_offset, &st->t.fp) ||
	       stack_word(st, base + (__s64)rule->ra_offset, ret) ||
	       stack_word(st, base + (__s64)rule->cfa_offset, &st->t.sp);
}

/* The canonical frame address by a rule; 0 if it cannot be had. */
static __always_inline __u64 find_cfa(struct task_state *st, struct unwind_rule *rule)
{
	__u64 cfa = 0, offset = (__s64)rule->cfa_offset;

	switch (rule->cfa) {
	case CFA_SP:
		return st->t.sp + offset;
	case CFA_FP:
		return st->t.fp + offset;
	case CFA_BX:
		/* Nothing tells a remembered walk that rbx is another one. */
		st->t.noted = MEMO_WORDS + 1;
		return st->t.bx + offset;
	case CFA_PLT:
		return st->t.sp + (((st->t.ip - st->t.call - st->t.bias) & 15) >= offset ? 16 : 8);
	case CFA_DEREF_FP:
	case CFA_DEREF_SP:
		offset += rule->cfa == CFA_DEREF_FP ? st->t.fp : st->t.sp;
		return stack_word(st, offset, &cfa) ? 0 : cfa + (rule->flags >> RULE_ADDEND_SHIFT);
	}
	return 0;
}

/* From a frame to its caller by a rule. Returns an outcome if the walk ends here, else -1. */
static __always_inline int ruled_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u32 flags = rule->flags, known = st->t.known;
	__u64 cfa, fp_at;

	/* A frame before did not say where it left a register. */
	if (flags & RULE_NEEDS & ~known)
		return OUTCOME_UNSUPPORTED;
	cfa = find_cfa(st, rule);
	known &= ~RULE_RA_IN_LINK_REGISTER;
#if defined(bpf_target_arm64)
	if ((flags & RULE_RA_IN_LINK_REGISTER) && cfa >= st->t.sp)
		*ret = st->t.lr;
	else
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
	if (rule->fp == FP_LOST)
		known &= ~RULE_NEEDS_FP;
	if (rule->fp == FP_AT_CFA || rule->fp == FP_AT_FP) {
		known |= RULE_NEEDS_FP;
		fp_at = (rule->fp == FP_AT_CFA ? cfa : st->t.fp) + (__s64)rule->fp_offset;
		if (stack_word(st, fp_at, &st->t.fp))
			return OUTCOME_UNREADABLE;
	}
	st->t.sp = cfa;
	st->t.known = known;
#if defined(bpf_target_arm64)
	*ret &= (1ull << 48) - 1; /* without its signature */
#endif
	return -1;
}

struct table_step_ctx {
	struct task_state *st;
};

static long table_step(__u64 i, struct table_step_ctx *c)
{
	struct task_state *st = c->st;
	__u32 at = find_rule(st, st->t.ip - st->t.call), call = 1;
	struct unwind_rule *rule = at == NO_RULE ? NULL : bpf_map_lookup_elem(&unwind_rules, &at);
	struct stack_hash hash;
	__u64 ret = 0;
	int end;

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
	if (ret == 0)
		return table_ends(st, OUTCOME_COMPLETE);
	st->t.ip = ret;
	st->t.call = call;
	st->t.outcome = OUTCOME_DEPTH_LIMIT;
	st->walk.frames[INDEX(i + 1, MAX_FRAMES)] = ret - call;
	st->t.nr = i + 2;
	hash = st->t.hash;
	hash_word(&hash, ret - call);
	st->t.hash = hash;
	return 0;
}

struct memo_ctx {
	struct task_state *st;
	__u32 first; /* word of the stack that the window begins with, counted from the stack pointer */
	__u32 words; /* in the window */
	__u32 differs;
	__u32 pad;
};

/* Brings the word at `off`, and what the memo has above it, into the window. 0, or -1 if unreadable. */
static __noinline int memo_window(struct memo_ctx *m, __u32 off)
{
	struct task_state *st = m->st;
	__u32 slack = off < WINDOW_SLACK ? off : WINDOW_SLACK;
	__u64 words = st->memo_end - off + slack;

	if (words > WINDOW_WORDS)
		words = WINDOW_WORDS;
	if (read_window(st, st->memo_sp + 8 * (__u64)off, slack, words))
		return -1;
	m->first = (st->t.window_base - st->memo_sp) >> 3;
	m->words = st->t.window_words;
	return 0;
}

/* Some words at a time, and no call for a word: this is what a fault in a loop costs. */
#define MEMO_STEPS 8

static long memo_steps(__u64 i, struct memo_ctx *m)
{
	struct task_state *st = m->st;

#pragma unroll
	for (__u32 k = 0; k < MEMO_STEPS; k++) {
		__u64 at = INDEX(i * MEMO_STEPS + k, MEMO_WORDS);
		__u32 off = st->memo_at[at];

		if (i * MEMO_STEPS + k >= st->memo_words)
			return 1;
		if (off - m->first >= m->words && memo_window(m, off)) {
			m->differs = 1;
			return 1;
		}
		if (st->window[INDEX(off - m->first, WINDOW_WORDS)] != st->memo_word[at]) {
			m->differs = 1;
			return 1;
		}
	}
	return 0;
}

/*
 * Whether this walk would read what the remembered one read: the same registers, the same words.
 * Then it would find the same frames.
 */
static __always_inline int remembered(struct task_state *st, struct user_regs *regs)
{
	struct memo_ctx m = { .st = st };

	if (!st->memo_id || st->memo_ip != regs->ip || st->memo_sp != regs->sp ||
	    st->memo_bp != regs->bp || st->memo_generation != unwind_generation ||
	    st->memo_mm_id != st->mm_id)
		return 0;
	bpf_loop(MEMO_WORDS / MEMO_STEPS, memo_steps, &m, 0);
	return !m.differs;
}

/* Follows the tables from the registers on. */
static __always_inline void walk_tables(struct walk *w, struct user_regs *regs)
{
	struct task_state *st = w->st;
	struct table_step_ctx c = { .st = st };

	st->memo_id = 0;
	st->memo_ip = regs->ip;
	st->memo_sp = regs->sp;
	st->memo_bp = regs->bp;
	st->memo_mm_id = st->mm_id;
	st->memo_generation = unwind_generation;
	st->memo_end = 0;
	st->t.ip = regs->ip;
	st->t.sp = regs->sp;
	st->t.fp = regs->bp;
	st->t.bx = regs->bx;
	st->t.lr = regs->lr;
	st->t.known = RULE_NEEDS;
	st->t.call = regs->in_syscall ? 1 : 0;
	st->t.start = st->t.end = 0;
	st->t.assisted = 0;
	st->t.window_words = 0;
	st->t.noted = 0;
	st->t.nr = 1;
	st->walk.frames[0] = st->t.ip - st->t.call;
	hash_word(&w->hash, st->walk.frames[0]);
	st->t.hash = w->hash;
	bpf_loop(MAX_FRAMES - 1, table_step, &c, 0);
	st->memo_words = st->t.noted;
	w->hash = st->t.hash;
	w->nr = st->t.nr;
	w->outcome = st->t.outcome;
}

/* The id of the remembered stack if it is the current one's too, else 0. */
static __always_inline __u32 recall(struct walk *w, struct user_regs *regs)
{
	return remembered(w->st, regs) ? w->st->memo_id : 0;
}

#endif
