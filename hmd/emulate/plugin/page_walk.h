/* SPDX-License-Identifier: MIT */
/*
 * Walks of the guest's page tables: where the leaf entry of a user address lies, and its page size.
 *
 * The plugin interface has neither, so that the tables are read as the guest's kernel sees them,
 * through its direct map. A read takes about a microsecond of the host; what it found is kept per
 * 2 MiB of address space until the vCPU flushes its TLB, as a CPU keeps it in its
 * paging-structure caches.
 */
#ifndef HMD_PLUGIN_PAGE_WALK_H
#define HMD_PLUGIN_PAGE_WALK_H

#include <stdbool.h>
#include <stdint.h>

#define PAGE_WALK_REGIONS 1024

struct page_walk {
	uint64_t region[PAGE_WALK_REGIONS]; /* address >> 21, or UINT64_MAX */
	uint64_t table
		[PAGE_WALK_REGIONS]; /* the page table's address; PAGE_WALK_HUGE: the entry's */
};

void page_walk_forget(struct page_walk *walk);
void page_walk_forget_region(struct page_walk *walk, uint64_t vaddr);

/* A timing_walker of the vCPU's current address space; its context is not used. */
uint64_t page_walk(void *context, unsigned vcpu, uint64_t vaddr, bool *huge);

#endif
