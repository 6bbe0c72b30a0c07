/* SPDX-License-Identifier: MIT */
/*
 * The data TLBs of one vCPU: two first-level arrays, one of 4 KiB and one of 2 MiB pages, and a
 * second level that both share, each set-associative with true LRU.
 *
 * Only accesses that miss the L1 filter come here. The lines of the filter lie on 512 pages at
 * most, a third of a second level, so a hit there hardly ever needs a walk.
 * The page size of a miss is found by the walk. Translations of the kernel are not modelled: its
 * direct map is made of huge pages.
 */
#ifndef HMD_TIMING_TLB_H
#define HMD_TIMING_TLB_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define TLB_MAX_FIRST 256
#define TLB_MAX_SECOND 4096
#define TLB_MAX_WAYS 32

#define TLB_PAGE_SHIFT 12
#define TLB_HUGE_SHIFT 21

struct timing_params;

/* A set is an array of keys, most recent first. */
struct tlb_array {
	uint32_t sets, ways;
	uint64_t *key;
};

struct tlb {
	struct tlb_array first, first_huge, second;
	bool huge_pages; /* there are entries of huge pages */
	uint64_t keys[2 * TLB_MAX_FIRST + TLB_MAX_SECOND];
};

enum tlb_level { TLB_FIRST, TLB_SECOND, TLB_NONE };

void tlb_init(struct tlb *tlb, const struct timing_params *params);

/* The level that holds an address's translation; it is most recent from then on. */
enum tlb_level tlb_find(struct tlb *tlb, uint64_t vaddr);

/* Put a translation into both levels, after a walk. */
void tlb_fill(struct tlb *tlb, uint64_t vaddr, bool huge);

/* Remove all translations, or those of one address. */
void tlb_flush(struct tlb *tlb);
void tlb_flush_page(struct tlb *tlb, uint64_t vaddr);

#pragma GCC visibility pop

#endif
