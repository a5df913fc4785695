/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The step from one frame to its caller by the tables (unwind_tables.bpf.h). walk.bpf.h has the whole walk.
 * unwind.bpf.h includes this header.
 */
#ifndef MEMPROF_STEP_H
#define MEMPROF_STEP_H

#include "base.bpf.h"
#include "code.bpf.h"
#include "ends.bpf.h"
#include "frames.bpf.h"
#include "mappings.bpf.h"
#include "registers.bpf.h"
#include "returns.bpf.h"
#include "unwind_tables.bpf.h"
#include "settings.bpf.h"
#include "thread.bpf.h"
#include "window.bpf.h"

static __always_inline long table_ends(struct task_state *st, __u32 outcome)
{
	if (outcome == OUTCOME_COMPLETE && (st->t.flags & FRAME_ASSISTED))
		outcome = OUTCOME_ASSISTED;
	st->t.outcome = outcome;
	return 1;
}

/* Whether a value can be a return address. Without known mappings, any user address can; user space then drops junk. */
static __always_inline int is_code(struct task_state *st, __u64 addr)
{
	__u32 mm_id = st->mm_id;
	struct unwind_space *space = bpf_map_lookup_elem(&unwind_spaces, &mm_id);

	if (space)
		return find_mapping(space, addr) < MAX_MAPPINGS;
	return addr >= 4096 && !(addr >> 56);
}

/*
 * Minimum distance of a frame pointer below the stack pointer at which it leads to another stack, which the code has
 * left. Go's code on 64-bit ARM leaves a goroutine's stack like that. A closer frame pointer may be a meaningless
 * value.
 */
#define OTHER_STACK_BYTES (1 << 20)

/*
 * Whether the stack ends at a frame pointer of 0, or at one that leads to a return address of 0. It does if a frame
 * pointer led to this frame, and so did a call. Elsewhere the value means nothing: code without frame pointers may have
 * any value in the register. That includes code in no known mapping: it may be a file's, mapped a moment ago.
 */
static __always_inline int ends_chain(struct task_state *st)
{
	return st->t.end && (st->t.flags & FRAME_ASSISTED) && st->t.fp + 16 == st->t.sp && was_called(st);
}

/* The step from a frame without a rule, by its frame pointer, if that leads to code or to the end of the stack. */
static __always_inline int assisted_step(struct task_state *st, __u64 *ret)
{
	__u64 fp;

	if (unwind_mode != UNWIND_AUTO || frame_pointer(st, &fp))
		return -1;
	if (fp && ((fp < st->t.sp && st->t.sp - fp < OTHER_STACK_BYTES) || stack_word(st, fp + 8, ret)))
		return -1;
	if (!*ret)
		return (!fp || fp >= st->t.sp) && ends_chain(st) ? 0 : -1;
	if (!is_code(st, *ret - 1))
		return -1;
	if (fp < st->t.sp && follows_call(*ret) != 1)
		return -1;
	st->t.sp = fp + 16;
	st->t.flags &= ~RULE_NEEDS;
	st->t.flags |= FRAME_ASSISTED;
#if defined(bpf_target_arm64)
	/*
	 * A frame pointer points anywhere into its frame, usually below the local variables. `sp` is right in frames
	 * without local variables.
	 */
	st->t.flags |= FRAME_SP_LOST;
#endif
	fp_saved_at(st, fp);
	return 0;
}

/* "add $8, %rsp; ret" */
#define EPILOGUE 0xc308c48348ull
#define EPILOGUE_MASK 0xffffffffffull

/*
 * The step from JIT code whose call returns to an epilogue: the trampolines of `python -X perf`, which have neither a
 * table nor a frame pointer. The next instructions show where the return address is.
 */
static __always_inline int epilogue_step(struct task_state *st, __u64 *ret)
{
#if defined(bpf_target_x86)
	__u64 code = 0;

	if (!(st->t.flags & FRAME_CALL) || st->t.table)
		return -1;
	if (bpf_probe_read_user(&code, sizeof(code), (void *)st->t.ip) || (code & EPILOGUE_MASK) != EPILOGUE)
		return -1;
	if (stack_word(st, st->t.sp + 8, ret) || !is_code(st, *ret - 1))
		return -1;
	code_has_epilogues = 1;
	st->t.sp += 16;
	return 0;
#else
	return -1;
#endif
}

/* The step from a frame without a rule. */
static __always_inline int ruleless_step(struct task_state *st, __u64 *ret)
{
	if (code_has_epilogues && !epilogue_step(st, ret))
		return 0;
	if (!assisted_step(st, ret))
		return 0;
	return code_has_epilogues ? -1 : epilogue_step(st, ret);
}

/*
 * Whether the frame, whose function has no rule, is the outermost one. Its code passes a result on to another function,
 * as in "free(malloc(n))". Other functions do so, too, but they have rules once the whole table is there.
 */
static __always_inline int is_outermost(struct task_state *st)
{
	return ends_thread(st) && is_table_whole(st);
}

/* The step from a signal frame to the interrupted frame, whose registers are saved at the rule's offsets. */
static __always_inline int signal_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u64 base = st->t.sp;

	st->t.flags &= ~(RULE_NEEDS | FRAME_SP_LOST);
#if defined(bpf_target_arm64)
	st->t.flags |= RULE_RA_IN_LINK_REGISTER;
	if (stack_word(st, base + (__s64)rule->ra_offset - 16, &st->t.lr))
		return -1;
#endif
	fp_saved_at(st, base + (__s64)rule->fp_offset);
	/* An alternate signal stack may lie anywhere, so this step may lead downwards. */
	return stack_word(st, base + (__s64)rule->ra_offset, ret) ||
	       stack_word(st, base + (__s64)rule->cfa_offset, &st->t.sp);
}

#if defined(bpf_target_x86)
/*
 * The stack pointer on another stack, which a Go function has left. It comes from the function's frame (CFA_GO_CALL),
 * or from the goroutine of a thread that is on its own stack (CFA_GO_STOPPED); the link register is then the address at
 * which the goroutine stopped. Returns 0 if it cannot be read, or if the thread no longer has a goroutine.
 */
static __noinline __u64 other_stack(struct task_state *st, struct unwind_rule *rule)
{
	__u16 low = rule->cfa_offset, high = (__u32)rule->cfa_offset >> 16;
	__u64 at, depth = 0;

	/* The words read here are not part of the stack: the cached walk does not compare them. */
	st->t.noted = NOTED_TOO_MANY;
	if (rule->cfa == CFA_GO_CALL) {
		at = read_word(st->t.sp + high);
		depth = read_word(st->t.sp + low);
		low = rule->fp_offset;
	} else {
		at = read_word(thread_pointer() + (__s16)low);
		at = read_word(at + high);
		at = read_word(at + (__u16)rule->fp_offset);
		low = (__u32)rule->fp_offset >> 16;
		st->t.lr = at ? read_word(at + low + 8) : 0;
	}
	at = at ? read_word(at + low) : 0;
	return at ? at - depth : 0;
}
#endif

/* The canonical frame address by a rule, or 0 if it cannot be computed. */
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
#if defined(bpf_target_x86)
	case CFA_GO_CALL:
	case CFA_GO_STOPPED:
		cfa = other_stack(st, rule);
		return cfa ? cfa + (rule->flags >> RULE_ADDEND_SHIFT) : 0;
#endif
	}
	return 0;
}

/*
 * Whether the frame pointer locates the frame: the stack pointer is unknown, and the rule has the offset at which the
 * frame stores the pair of registers to which the frame pointer points. This is true in code with frame pointers; other
 * code saves the link register alone.
 */
static __always_inline int is_found_by_fp(struct task_state *st, struct unwind_rule *rule)
{
	return (st->t.flags & FRAME_SP_LOST) && (st->t.flags & RULE_NEEDS_FP) && rule->cfa == CFA_SP &&
	       rule->fp == FP_AT_CFA && rule->ra_offset == rule->fp_offset + 8;
}

/* Whether the caller may be on another stack. 64-bit ARM has no such rules, and no BPF stack left for them. */
static __always_inline int is_to_other_stack(__u32 flags)
{
#if defined(bpf_target_x86)
	return flags & RULE_OTHER_STACK;
#else
	return 0;
#endif
}

/* The step from a frame to its caller by a rule. Returns an outcome if the walk ends here, else -1. */
static __always_inline int ruled_step(struct task_state *st, struct unwind_rule *rule, __u64 *ret)
{
	__u32 flags = rule->flags, known = st->t.flags & RULE_NEEDS;
	__u64 cfa, fp = 0;

	/* The rule needs a register that the rules of inner frames did not recover. */
	if (flags & RULE_NEEDS & ~known)
		return OUTCOME_UNSUPPORTED;
	if (((flags & RULE_NEEDS_FP) || is_found_by_fp(st, rule)) && frame_pointer(st, &fp))
		return OUTCOME_UNREADABLE;
	if (is_to_other_stack(flags) && (flags & RULE_NEEDS_FP) && !fp)
		return OUTCOME_COMPLETE;
	cfa = is_found_by_fp(st, rule) && fp >= st->t.sp ? fp - (__s64)rule->fp_offset : find_cfa(st, rule, fp);
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
	} else if (rule->cfa == CFA_GO_STOPPED && !rule->ra_offset) {
		*ret = cfa ? st->t.lr : 0;
	} else
#endif
	if (stack_word_here(st, cfa + (__s64)rule->ra_offset, ret))
		return OUTCOME_UNREADABLE;
	/*
	 * Callers are at higher addresses: anything else is an error or a loop. Real stacks contain few switches
	 * between stacks, and the limit of frames ends a loop.
	 */
	if ((cfa < st->t.sp && !is_to_other_stack(flags)) || (cfa == st->t.sp && !(flags & RULE_RA_IN_LINK_REGISTER)))
		return OUTCOME_UNREADABLE;
	if (is_to_other_stack(flags) && cfa > st->t.sp && !has_stack_offset(st, cfa))
		rebase_offsets(st, cfa);
	if (!(flags & (RULE_BX_KEPT | RULE_BX_SAVED)))
		known &= ~RULE_NEEDS_BX;
	st->t.flags = (st->t.flags & ~RULE_NEEDS) | known;
	if (rule->fp == FP_LOST)
		st->t.flags = (st->t.flags & ~RULE_NEEDS_FP) | FRAME_SETS_FP;
	if (rule->fp == FP_AT_CFA || rule->fp == FP_AT_FP)
		fp_saved_at(st, (rule->fp == FP_AT_CFA ? cfa : fp) + (__s64)rule->fp_offset);
	st->t.sp = cfa;
#if defined(bpf_target_arm64)
	st->t.flags &= ~FRAME_SP_LOST;
	*ret &= (1ull << 48) - 1; /* remove the authentication code */
#endif
	return -1;
}

static __always_inline int is_covered(struct unwind_rule *rule)
{
	return rule && rule->cfa != CFA_NOT_COVERED;
}

/* The step from a frame to its caller. Returns 1 if the walk ends here. */
static __always_inline long table_step(struct task_state *st)
{
	__u32 call = st->t.flags & FRAME_CALL ? 1 : 0, at = find_rule(st, st->t.ip - call);
	struct unwind_rule *rule = at == NO_RULE ? NULL : bpf_map_lookup_elem(&unwind_rules, &at), *there;
	__u64 ret = 0;
	int end, called;

	/*
	 * A return address may lead to code that has called nothing, at the end of a fiber: __start_context() in a
	 * context of makecontext() is an example. The code has not run yet, so it may not be in memory; then the table
	 * shows whether a function begins here, after code without a function.
	 */
	if (call && !is_covered(rule) && st->t.end && (called = follows_call(st->t.ip)) != 1) {
		at = search_rule(st, st->t.ip);
		there = at == NO_RULE ? NULL : bpf_map_lookup_elem(&unwind_rules, &at);
		if (!called || (is_covered(there) && there->cfa != CFA_SIGNAL)) {
			st->t.flags = (st->t.flags & ~FRAME_CALL) | FRAME_UNCALLED;
			rule = there;
		}
		if (is_covered(rule) && rule->cfa != CFA_SIGNAL)
			return table_ends(st, OUTCOME_COMPLETE);
	}
	if (!is_covered(rule)) {
		/* find_rule() has set the outcome. */
		if (ruleless_step(st, &ret))
			return call && is_outermost(st) ? table_ends(st, OUTCOME_COMPLETE) : 1;
		call = FRAME_CALL;
	} else if (rule->cfa == CFA_STOP) {
		return table_ends(st, OUTCOME_COMPLETE);
	} else if (rule->cfa == CFA_UNSUPPORTED) {
		return table_ends(st, OUTCOME_UNSUPPORTED);
	} else if (rule->cfa == CFA_SIGNAL) {
		if (call && st->t.nr > 1)
			st->t.flags |= FRAME_UNCALLED;
		call = 0;
		if (signal_step(st, rule, &ret))
			return table_ends(st, OUTCOME_UNREADABLE);
	} else {
		end = ruled_step(st, rule, &ret);
		if (end >= 0)
			return table_ends(st, end);
		call = FRAME_CALL;
	}
	/* After a signal frame, 0 may be a call through a null pointer. */
	if (ret == 0 && call)
		return table_ends(st, OUTCOME_COMPLETE);
	if (may_be_probed(ret) && call) {
#if defined(bpf_target_x86)
		__u64 to = probed_return(st->t.sp - sizeof(ret));
#else
		__u64 to = probed_return(st->t.sp);
#endif
		if (to) {
			ret = to;
			/* The cached walk compares words of the stack, and here each caller is the same page. */
			st->t.noted = NOTED_TOO_MANY;
		}
	}
	st->t.ip = ret;
	st->t.flags = (st->t.flags & ~FRAME_CALL) | call;
	return 0;
}

#endif
