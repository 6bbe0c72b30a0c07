/* SPDX-License-Identifier: MIT */
/*
 * Translations of one vCPU's recent pages, virtual to guest-physical.
 *
 * QEMU's own look-up costs about 10 ns per access. Only the kernel changes a user page's
 * translation, and another vCPU that does so interrupts this one first (TLB shootdown). So user
 * translations stay valid until this vCPU executes kernel code, and are then flushed. Kernel
 * addresses rarely change (page copies use the direct map, which never does): they are flushed
 * every millisecond.
 */
#ifndef HMD_PLUGIN_TRANSLATION_H
#define HMD_PLUGIN_TRANSLATION_H

#include <stdint.h>
#include <string.h>

#define TRANSLATION_PAGE_SHIFT 12
#define TRANSLATION_PAGES 256
/* No page's number, and no physical address. */
#define TRANSLATION_EMPTY UINT64_MAX

struct translations {
	uint64_t page[TRANSLATION_PAGES];
	uint64_t offset[TRANSLATION_PAGES]; /* physical less virtual address */
};

static inline void translations_forget(struct translations *known)
{
	memset(known->page, 0xff, sizeof(known->page));
}

static inline void translations_add(struct translations *known, uint64_t vaddr, uint64_t paddr)
{
	uint64_t page = vaddr >> TRANSLATION_PAGE_SHIFT;

	known->page[page % TRANSLATION_PAGES] = page;
	known->offset[page % TRANSLATION_PAGES] = paddr - vaddr;
}

/* The physical address, or TRANSLATION_EMPTY. */
static inline uint64_t translations_find(const struct translations *known, uint64_t vaddr)
{
	uint64_t page = vaddr >> TRANSLATION_PAGE_SHIFT;

	if (known->page[page % TRANSLATION_PAGES] != page)
		return TRANSLATION_EMPTY;
	return vaddr + known->offset[page % TRANSLATION_PAGES];
}

#endif
