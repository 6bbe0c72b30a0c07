/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "machine.h"

/* The direct map of a kernel with four levels and without KASLR, as boot.py boots it. */
#define DIRECT_MAP 0xffff888000000000ull
#define ENTRY_ADDRESS 0x000ffffffffff000ull
#define ENTRY_PRESENT 1ull
#define ENTRY_LARGE 0x80ull
/* In page_walk.table: the address is that of the middle directory's entry itself. */
#define PAGE_WALK_HUGE 1ull

#define REGION_SHIFT 21
#define ROOT_SHIFT 39
#define LEVEL_BITS 9

void page_walk_forget(struct page_walk *walk)
{
	memset(walk->region, 0xff, sizeof(walk->region));
}

void page_walk_forget_region(struct page_walk *walk, uint64_t vaddr)
{
	uint64_t region = vaddr >> REGION_SHIFT;

	if (walk->region[region % PAGE_WALK_REGIONS] == region)
		walk->region[region % PAGE_WALK_REGIONS] = UINT64_MAX;
}

static uint64_t entry_address(uint64_t table, uint64_t vaddr, unsigned shift)
{
	return table + (vaddr >> shift) % (1u << LEVEL_BITS) * sizeof(uint64_t);
}

static uint64_t read_entry(struct vcpu *vcpu, uint64_t paddr)
{
	uint64_t entry = 0;

	if (!qemu_plugin_read_memory_vaddr(DIRECT_MAP + paddr, vcpu->bytes, sizeof(entry)))
		return 0;
	memcpy(&entry, vcpu->bytes->data, sizeof(entry));
	return entry;
}

/* From the root down to the page table of a region, or to the entry that maps it whole. */
static uint64_t walk_region(struct vcpu *vcpu, uint64_t vaddr)
{
	uint64_t table = vcpu_root(vcpu);

	for (unsigned shift = ROOT_SHIFT; shift >= REGION_SHIFT; shift -= LEVEL_BITS) {
		uint64_t at = entry_address(table, vaddr, shift), entry = read_entry(vcpu, at);

		if (!(entry & ENTRY_PRESENT))
			return table;
		if (entry & ENTRY_LARGE)
			return at | PAGE_WALK_HUGE;
		table = entry & ENTRY_ADDRESS;
	}
	return table;
}

uint64_t page_walk(void *context, unsigned index, uint64_t vaddr, bool *huge)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	struct page_walk *walk = &vcpu->walk;
	uint64_t region = vaddr >> REGION_SHIFT, table;
	unsigned place = region % PAGE_WALK_REGIONS;

	(void)context;
	if (walk->region[place] != region) {
		walk->table[place] = walk_region(vcpu, vaddr);
		walk->region[place] = region;
	}
	table = walk->table[place];
	*huge = table & PAGE_WALK_HUGE;
	if (*huge)
		return table & ~PAGE_WALK_HUGE;
	return entry_address(table, vaddr, TRANSLATION_PAGE_SHIFT);
}
