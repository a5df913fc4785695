// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Memprof's own probe, by which a program sets a mark.

#ifndef MARK_H
#define MARK_H

/* As <sys/sdt.h> writes it: DTRACE_PROBE1(memprof, mark, name). */
static inline void set_mark(const char *name)
{
	asm volatile("990: nop\n"
		     ".pushsection .note.stapsdt,\"\",\"note\"\n"
		     ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
		     "991: .asciz \"stapsdt\"\n992: .balign 4\n"
		     "993: .8byte 990b, 0, 0\n"
		     ".asciz \"memprof\"\n.asciz \"mark\"\n.asciz \"8@%[name]\"\n"
		     "994: .balign 4\n.popsection\n" ::[name] "r"(name)
		     : "memory");
}

#endif
