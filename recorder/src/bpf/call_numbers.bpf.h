/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The system calls that move bytes, by their numbers and registers.
 */
#ifndef RECORDER_CALL_NUMBERS_H
#define RECORDER_CALL_NUMBERS_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "recorder.h"

#if defined(__TARGET_ARCH_x86)
#define CALL_READ 0
#define CALL_WRITE 1
#define CALL_READV 19
#define CALL_WRITEV 20
#define CALL_SENDTO 44
#define CALL_RECVFROM 45
#define CALL_SENDMSG 46
#define CALL_RECVMSG 47
#define CALL_RECVMMSG 299
#define CALL_SENDMMSG 307
#define CALL_NR(r) ((r)->orig_ax)
#define CALL_ARG1(r) ((r)->di)
#define CALL_ARG2(r) ((r)->si)
#define CALL_ARG3(r) ((r)->dx)
#define CALL_ARG4(r) ((r)->r10)
#elif defined(__TARGET_ARCH_arm64)
#define CALL_READ 63
#define CALL_WRITE 64
#define CALL_READV 65
#define CALL_WRITEV 66
#define CALL_SENDTO 206
#define CALL_RECVFROM 207
#define CALL_SENDMSG 211
#define CALL_RECVMSG 212
#define CALL_RECVMMSG 243
#define CALL_SENDMMSG 269
#define CALL_NR(r) ((__u64)(r)->syscallno)
#define CALL_ARG1(r) ((r)->orig_x0)
#define CALL_ARG2(r) ((r)->regs[1])
#define CALL_ARG3(r) ((r)->regs[2])
#define CALL_ARG4(r) ((r)->regs[3])
#else
#error "no numbers of system calls for this architecture"
#endif

enum {
	/* Flags of receiving with which bytes stay in the socket, do not come from the stream, or are not copied. */
	OTHER_FLAGS = 0x1 /* MSG_OOB */ | 0x2 /* MSG_PEEK */ | 0x20 /* MSG_TRUNC */ | 0x2000 /* MSG_ERRQUEUE */,
};

enum form {
	FORM_NONE,
	FORM_BUFFER,
	FORM_VECTORS,
	FORM_MESSAGE,
	FORM_MESSAGES,
};

/* A call that moved bytes. */
struct call {
	enum form form;
	__u8 sender;
	int descriptor;
	__u64 address;
	__u64 count;
	__u64 flags;
};

static __always_inline enum form form_of(__u64 nr)
{
	switch (nr) {
	case CALL_READ:
	case CALL_WRITE:
	case CALL_RECVFROM:
	case CALL_SENDTO:
		return FORM_BUFFER;
	case CALL_READV:
	case CALL_WRITEV:
		return FORM_VECTORS;
	case CALL_RECVMSG:
	case CALL_SENDMSG:
		return FORM_MESSAGE;
	case CALL_RECVMMSG:
	case CALL_SENDMMSG:
		return FORM_MESSAGES;
	default:
		return FORM_NONE;
	}
}

static __always_inline int is_sending(__u64 nr)
{
	return nr == CALL_WRITE || nr == CALL_WRITEV || nr == CALL_SENDTO || nr == CALL_SENDMSG || nr == CALL_SENDMMSG;
}

/* Flags of a receiving call; of recvmsg, the third argument. */
static __always_inline __u64 flags_of(__u64 nr, struct pt_regs *regs)
{
	if (nr == CALL_RECVMSG)
		return CALL_ARG3(regs);
	return nr == CALL_RECVFROM || nr == CALL_RECVMMSG ? CALL_ARG4(regs) : 0;
}

#endif
