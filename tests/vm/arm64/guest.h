/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the files of the first process of a 64-bit ARM guest share, see main.c. */
#ifndef GUEST_H
#define GUEST_H

#define NOINLINE __attribute__((noinline, noclone))

/* Prints `result: …` with the reason, then the status 1, and powers the guest off. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

/* Checks of the programs of memprof and of the recorder. They return what was found, as a part of a sentence. */
const char *check_memprof(void);
const char *check_recorder(void);

#endif
