/* SPDX-License-Identifier: MIT */
#include "walk.h"
#include "memory.h"

#define ENTRY_BYTES 8

/* Without a walker: one flat table per node, 4 KiB pages. */
static uint64_t table_of_node(const struct timing *timing, const struct line_access *access)
{
	const struct timing_node_params *node =
		&timing->params.node[node_of(&timing->params, access->paddr)];
	uint64_t entry = access->vaddr >> TLB_PAGE_SHIFT;

	return node->phys_start + entry * ENTRY_BYTES % (node->phys_end - node->phys_start);
}

/* The leaf entry comes from memory: a load of its own, which the access then depends on. */
static void read_table(struct timing *timing, struct vcpu *vcpu, const struct line_access *access,
		       uint64_t entry_paddr, struct translation *translation)
{
	struct line_access table = {
		.instructions = access->instructions,
		.vaddr = access->vaddr,
		.paddr = entry_paddr,
		.table = true,
	};
	struct timing_outcome outcome = { 0 };
	struct arrival address = { 0 };

	if (!access->store)
		address = chase_ready(&vcpu->chase, access->vaddr);
	translation->table =
		memory_read(timing, vcpu, &table, node_of(&timing->params, entry_paddr), false,
			    address, &outcome);
	translation->latency_ps = outcome.latency_ps;
}

static void look_up_entry(struct timing *timing, struct vcpu *vcpu,
			  const struct line_access *access, uint64_t entry_paddr,
			  struct translation *translation)
{
	enum cache_result result = CACHE_HIT;
	uint64_t victim;

	if (part_on(timing, TIMING_CACHE) && node_of(&timing->params, entry_paddr) != NO_NODE)
		result = cache_access(vcpu->cache, entry_paddr >> CACHE_LINE_SHIFT, false, &victim);
	if (result == CACHE_MISS_DIRTY_VICTIM)
		memory_write_back(timing, vcpu, access->instructions, victim);
	if (result == CACHE_HIT)
		translation->how = TIMING_WALK;
	else
		read_table(timing, vcpu, access, entry_paddr, translation);
}

struct translation walk_translate(struct timing *timing, struct vcpu *vcpu,
				  const struct line_access *access, bool covered)
{
	struct translation translation = { 0 };
	enum tlb_level level;
	bool huge = false;
	uint64_t entry_paddr;

	if (access->kernel || !part_on(timing, TIMING_TLB) || !timing->params.tlb_entries)
		return translation;
	level = tlb_find(&vcpu->tlb, access->vaddr);
	if (level == TLB_SECOND && !covered)
		translation.how = TIMING_STLB_HIT;
	if (level != TLB_NONE)
		return translation;
	entry_paddr = timing->walker
			      ? timing->walker(timing->walker_context, vcpu_number(timing, vcpu),
					       access->vaddr, &huge)
			      : table_of_node(timing, access);
	tlb_fill(&vcpu->tlb, access->vaddr, huge);
	if (covered)
		return translation;
	publish(&vcpu->counters.page_walks, vcpu->counters.page_walks + 1);
	look_up_entry(timing, vcpu, access, entry_paddr, &translation);
	return translation;
}

void timing_walk_with(struct timing *timing, timing_walker *walker, void *context)
{
	timing->walker = walker;
	timing->walker_context = context;
}

void timing_flush(struct timing *timing, unsigned vcpu_index)
{
	tlb_flush(&timing->vcpu[vcpu_index].tlb);
}

void timing_flush_page(struct timing *timing, unsigned vcpu_index, uint64_t vaddr)
{
	if (timing->params.tlb_entries)
		tlb_flush_page(&timing->vcpu[vcpu_index].tlb, vaddr);
}
