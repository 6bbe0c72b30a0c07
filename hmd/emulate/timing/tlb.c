/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "timing.h"
#include "tlb.h"

#define TLB_NO_PAGE UINT64_MAX
/* Distinguishes numbers of huge pages: page numbers have 52 bits at most. */
#define TLB_HUGE (1ull << 63)

static uint64_t *lay_out(struct tlb_array *array, uint64_t *key, uint32_t entries, uint32_t ways)
{
	*array = (struct tlb_array){ .sets = entries / ways, .ways = ways, .key = key };
	return key + entries;
}

void tlb_init(struct tlb *tlb, const struct timing_params *params)
{
	uint64_t *key = tlb->keys;

	if (!params->tlb_entries)
		return;
	key = lay_out(&tlb->first, key, params->tlb_entries, params->tlb_ways);
	key = lay_out(&tlb->first_huge, key, params->tlb_huge_entries, params->tlb_huge_ways);
	lay_out(&tlb->second, key, params->stlb_entries, params->stlb_ways);
	tlb_flush(tlb);
}

static uint64_t page_key(uint64_t vaddr)
{
	return vaddr >> TLB_PAGE_SHIFT;
}

static uint64_t huge_key(uint64_t vaddr)
{
	return vaddr >> TLB_HUGE_SHIFT | TLB_HUGE;
}

static uint64_t *set_of(const struct tlb_array *array, uint64_t key)
{
	return array->key + (key & (array->sets - 1)) * array->ways;
}

/* The entry at `last` of a set, or a new one over it, becomes the first. */
static void move_to_front(uint64_t *set, uint32_t last, uint64_t key)
{
	memmove(set + 1, set, last * sizeof(*set));
	set[0] = key;
}

static bool find(const struct tlb_array *array, uint64_t key)
{
	uint64_t *set = set_of(array, key);

	for (uint32_t way = 0; way < array->ways; way++) {
		if (set[way] != key)
			continue;
		move_to_front(set, way, key);
		return true;
	}
	return false;
}

static void fill(const struct tlb_array *array, uint64_t key)
{
	move_to_front(set_of(array, key), array->ways - 1, key);
}

static void drop(const struct tlb_array *array, uint64_t key)
{
	uint64_t *set = set_of(array, key);

	for (uint32_t way = 0; way < array->ways; way++)
		if (set[way] == key)
			set[way] = TLB_NO_PAGE;
}

enum tlb_level tlb_find(struct tlb *tlb, uint64_t vaddr)
{
	if (find(&tlb->first, page_key(vaddr)))
		return TLB_FIRST;
	if (tlb->huge_pages && find(&tlb->first_huge, huge_key(vaddr)))
		return TLB_FIRST;
	if (find(&tlb->second, page_key(vaddr))) {
		fill(&tlb->first, page_key(vaddr));
		return TLB_SECOND;
	}
	if (tlb->huge_pages && find(&tlb->second, huge_key(vaddr))) {
		fill(&tlb->first_huge, huge_key(vaddr));
		return TLB_SECOND;
	}
	return TLB_NONE;
}

void tlb_fill(struct tlb *tlb, uint64_t vaddr, bool huge)
{
	uint64_t key = huge ? huge_key(vaddr) : page_key(vaddr);

	tlb->huge_pages |= huge;
	fill(huge ? &tlb->first_huge : &tlb->first, key);
	fill(&tlb->second, key);
}

void tlb_flush(struct tlb *tlb)
{
	tlb->huge_pages = false;
	memset(tlb->keys, 0xff, sizeof(tlb->keys));
}

void tlb_flush_page(struct tlb *tlb, uint64_t vaddr)
{
	drop(&tlb->first, page_key(vaddr));
	drop(&tlb->first_huge, huge_key(vaddr));
	drop(&tlb->second, page_key(vaddr));
	drop(&tlb->second, huge_key(vaddr));
}
