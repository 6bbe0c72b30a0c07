/* SPDX-License-Identifier: MIT */
/*
 * The state of the model: one struct per vCPU, used only by its own thread, and shared state.
 *
 * These files work on it, each on those after it only: timing.c (accesses, up to the last-level
 * cache) and misses.c (streams of misses that were recorded); walk.c (address translation);
 * clock.c (halts, wake-ups, what is due) and suspension.c (what stops the program for a while);
 * memory.c (what comes from memory or goes there).
 */
#ifndef HMD_TIMING_VCPU_H
#define HMD_TIMING_VCPU_H

#include "bandwidth.h"
#include "cache.h"
#include "chase.h"
#include "stream.h"
#include "timing.h"
#include "tlb.h"
#include "window.h"

#pragma GCC visibility push(hidden)

/*
 * First-level filter: 32 KiB of lines, direct-mapped. What hits here costs nothing. Its index is
 * virtual and its tag physical, as on real cores: collisions do not depend on the placement of
 * pages, so that moving pages changes the cost of misses and nothing else.
 */
#define L1_LINES 512

#define NO_NODE 0xff

struct vcpu {
	/* Read at every access. */
	uint64_t offset_ps; /* clock - instructions * instruction_ps: stalls and idle jumps */
	uint64_t jumped_ps; /* the idle jumps of it */
	uint64_t attend_at; /* instruction count at which vcpu_attend() has to run */
	uint64_t pending_until_ps; /* when the last load on its way from memory arrives */
	struct timing_vcpu_counters counters;

	uint64_t l1[L1_LINES];             /* line << 1 | dirty */
	struct arrival l1_ready[L1_LINES]; /* when a line on its way arrives */
	uint64_t load_misses; /* that waited for memory, the kernel's too: the last one's number */
	uint32_t paid_hits;   /* of the last-level cache, since a miss was observed */
	uint32_t near_hits;   /* those of them soon after it: counts by step, timing.h */
	uint64_t observed_at; /* its instruction count */
	uint32_t buffered_records; /* sampling records since the last interrupt */
	bool halted;
	struct cache *cache; /* one of the machine's */
	struct chase chase;
	struct window window;
	struct streams streams;
	struct bandwidth bandwidth;
	struct tlb tlb;
} __attribute__((aligned(128)));

struct timing {
	struct timing_params params;
	struct cache cache[TIMING_MAX_VCPUS]; /* the first params.llcs of them */
	struct bandwidth_published published[TIMING_MAX_VCPUS];
	struct bandwidth_media media;
	timing_observer *observer;
	void *observer_context;
	timing_walker *walker;
	void *walker_context;
	struct vcpu vcpu[];
};

/* One line of one access, on its way through the model. */
struct line_access {
	uint64_t instructions, vaddr, paddr, value;
	bool store, kernel;
	bool table;           /* the leaf entry of a page table, read by a walk */
	uint32_t translation; /* of a load: TIMING_STLB_HIT, TIMING_WALK or 0 */
};

static inline bool part_on(const struct timing *timing, enum timing_part part)
{
	return timing->params.parts & part;
}

static inline unsigned vcpu_number(const struct timing *timing, const struct vcpu *vcpu)
{
	return (unsigned)(vcpu - timing->vcpu);
}

static inline uint64_t vcpu_now(const struct timing *timing, const struct vcpu *vcpu,
				uint64_t instructions)
{
	return instructions * timing->params.instruction_ps + vcpu->offset_ps;
}

/* Counters are read by other threads: whole words, never torn. */
static inline void publish(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void vcpu_publish_clock(struct vcpu *vcpu, uint64_t instructions, uint64_t now_ps)
{
	publish(&vcpu->counters.instructions, instructions);
	publish(&vcpu->counters.clock_ps, now_ps);
	publish(&vcpu->counters.busy_ps, now_ps - vcpu->jumped_ps);
}

/* An exception in the middle of a block may decrease the count a little: time never decreases. */
static inline uint64_t vcpu_forward(const struct vcpu *vcpu, uint64_t instructions)
{
	return instructions > vcpu->counters.instructions ? instructions
							  : vcpu->counters.instructions;
}

static inline unsigned l1_place(uint64_t vaddr)
{
	return vaddr / CACHE_LINE_BYTES % L1_LINES;
}

static inline unsigned node_of(const struct timing_params *params, uint64_t paddr)
{
	for (unsigned node = 0; node < params->nodes; node++)
		if (paddr >= params->node[node].phys_start && paddr < params->node[node].phys_end)
			return node;
	return NO_NODE;
}

/* Set the instruction count of the next vcpu_attend(), which also runs if all accesses hit. */
static inline void vcpu_schedule(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	const struct timing_params *params = &timing->params;

	vcpu->attend_at = window_deadline(&vcpu->window);
	if (vcpu->bandwidth.in_use) {
		uint64_t measure_at =
			instructions + 1 + BANDWIDTH_WINDOW_PS / params->instruction_ps;

		if (measure_at < vcpu->attend_at)
			vcpu->attend_at = measure_at;
	}
}

/* By how much later a load that waits starts; `translation` is that of its struct line_access. */
static inline uint32_t translation_delay_ps(const struct timing_params *params,
					    uint32_t translation)
{
	if (translation & TIMING_WALK)
		return params->walk_ps;
	return translation & TIMING_STLB_HIT ? params->stlb_hit_ps : 0;
}

/* Whatever is due at this instruction count: resume, retire, measure. */
void vcpu_attend(struct timing *timing, struct vcpu *vcpu, uint64_t instructions);

#pragma GCC visibility pop

#endif
