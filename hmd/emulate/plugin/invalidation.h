/* SPDX-License-Identifier: MIT */
/*
 * Instructions by which the guest's kernel invalidates translations: writes of CR3 and CR4, and
 * INVLPG. They flush the modelled TLBs of the vCPU that executes them, which is what makes a TLB
 * shootdown and a context switch cost walks afterwards. The emulated CPU has neither PCID nor
 * INVPCID.
 */
#ifndef HMD_PLUGIN_INVALIDATION_H
#define HMD_PLUGIN_INVALIDATION_H

#include <stddef.h>
#include <stdint.h>

enum invalidation { INVALIDATION_NONE, INVALIDATION_ALL, INVALIDATION_ROOT, INVALIDATION_PAGE };

/* Any register number but these 16 (of the x86-64 encoding) is no register. */
#define INVALIDATION_REGISTERS 16

/*
 * What an instruction of `size` bytes invalidates: all pages, also by loading the root of the page
 * tables, or one page. *reg: the register that holds the root or the page's address. An INVLPG of
 * another form counts as one of all pages.
 */
enum invalidation invalidation_of(const uint8_t *code, size_t size, unsigned *reg);

struct qemu_plugin_insn;

/* Instrument an instruction of the kernel, if it is one of these. */
void invalidation_instrument(struct qemu_plugin_insn *insn);

#endif
