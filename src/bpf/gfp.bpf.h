/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Flags of the kernel's page allocator.
 */
#ifndef MEMPROF_GFP_H
#define MEMPROF_GFP_H

/* These bits (___GFP_*) have not changed since 6.1 at least. */
#define GFP_MOVABLE 0x08u /* user pages; page tables and other kernel memory lack it */
#define GFP_ZERO 0x100u /* a fresh anonymous page, neither copied nor read from swap */
#define GFP_IO 0x40u
#define GFP_FS 0x80u
#define GFP_DIRECT_RECLAIM 0x400u /* may wait for memory */
#define GFP_NOMEMALLOC 0x80000u /* with an order: a huge page or folio of user memory, see is_large() */

#endif
