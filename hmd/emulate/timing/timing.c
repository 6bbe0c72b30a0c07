/* SPDX-License-Identifier: MIT */
#include "timing.h"
#include "memory.h"
#include "vcpu.h"
#include "walk.h"

#define likely(x) __builtin_expect(!!(x), 1)

#define L1_DIRTY 1ull
#define L1_EMPTY UINT64_MAX /* the tag of no line */

#define PAGE_BYTES 4096

/* A load whose value is still on its way: what is computed from it has to wait. */
static void load_pending(struct vcpu *vcpu, const struct line_access *access, struct arrival value)
{
	if (access->value)
		chase_record(&vcpu->chase, access->value, value);
	if (value.ready_ps > vcpu->pending_until_ps)
		vcpu->pending_until_ps = value.ready_ps;
}

/* Propagate a dependence through a load from a line in flight, or at an address in flight. */
static void load_hit(struct timing *timing, struct vcpu *vcpu, const struct line_access *access,
		     struct arrival line, struct timing_outcome *outcome)
{
	uint64_t now_ps = vcpu_now(timing, vcpu, access->instructions);
	struct arrival address = chase_ready(&vcpu->chase, access->vaddr);

	if (address.ready_ps < now_ps)
		address.ready_ps = now_ps;
	if (line.ready_ps > address.ready_ps)
		outcome->latency_ps += line.ready_ps - address.ready_ps;
	else
		line = address;
	if (line.ready_ps > now_ps)
		load_pending(vcpu, access, line);
}

/* A line from memory; a load's value is on its way from then on. */
static void access_memory(struct timing *timing, struct vcpu *vcpu,
			  const struct line_access *access, unsigned node, bool covered,
			  const struct translation *translation, struct timing_outcome *outcome)
{
	bool waits = !covered && !access->store;
	struct arrival address = translation->table, data;

	if (waits && !address.ready_ps)
		address = chase_ready(&vcpu->chase, access->vaddr);
	data = memory_read(timing, vcpu, access, node, covered, address, outcome);
	outcome->latency_ps += translation->latency_ps;
	if (!data.ready_ps)
		return;
	vcpu->l1_ready[l1_place(access->vaddr)] = data;
	load_pending(vcpu, access, data);
}

/* Of a hit that costs time: how soon after the last miss it came. */
static void count_near(struct vcpu *vcpu, uint64_t after)
{
	uint32_t shift = TIMING_NEAR_BITS * (uint32_t)(after / TIMING_NEAR_STEP);

	if (after < TIMING_NEAR_STEP * TIMING_NEAR_STEPS &&
	    (vcpu->near_hits >> shift & TIMING_NEAR_MOST) < TIMING_NEAR_MOST)
		vcpu->near_hits += 1u << shift;
}

/* A hit in the last-level cache that costs time: of data, or of a leaf entry of a page table. */
static void pay_llc_hit(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	vcpu->paid_hits++;
	count_near(vcpu, instructions - vcpu->observed_at);
	vcpu->offset_ps += timing->params.llc_hit_ps;
}

static void access_llc_hit(struct timing *timing, struct vcpu *vcpu,
			   const struct line_access *access, bool covered,
			   const struct translation *translation, struct timing_outcome *outcome)
{
	publish(&vcpu->counters.llc_hits, vcpu->counters.llc_hits + 1);
	outcome->level = TIMING_LLC;
	if (covered)
		return; /* the prefetcher has brought it to L1 */
	pay_llc_hit(timing, vcpu, access->instructions);
	outcome->latency_ps = timing->params.llc_hit_ps;
	if (!access->store)
		load_hit(timing, vcpu, access, translation->table, outcome);
}

/*
 * A walk whose leaf entry is cached costs a load that misses its latency. Any other access hides
 * it as it hides a hit in the last-level cache, and pays what that costs.
 */
static void pay_hidden_walk(struct timing *timing, struct vcpu *vcpu,
			    const struct line_access *access, bool misses)
{
	if (access->translation == TIMING_WALK && (access->store || !misses))
		pay_llc_hit(timing, vcpu, access->instructions);
}

/* Everything behind the L1 filter. */
static void access_beyond_l1(struct timing *timing, struct vcpu *vcpu, struct line_access *access,
			     struct timing_outcome *outcome)
{
	struct translation translation;
	uint64_t line = access->paddr >> CACHE_LINE_SHIFT, victim;
	unsigned place = l1_place(access->vaddr);
	enum cache_result result = CACHE_MISS;
	unsigned node = node_of(&timing->params, access->paddr);
	bool covered;

	if (node == NO_NODE)
		return; /* a device */
	cache_prefetch_set(vcpu->cache, line);
	victim = vcpu->l1[place];
	vcpu->l1[place] = line << 1 | access->store;
	vcpu->l1_ready[place] = (struct arrival){ 0 };
	covered = part_on(timing, TIMING_PREFETCH) &&
		  streams_cover(&vcpu->streams, access->vaddr >> CACHE_LINE_SHIFT);
	translation = walk_translate(timing, vcpu, access, covered);
	access->translation = translation.how;
	if (part_on(timing, TIMING_CACHE)) {
		result = cache_access(vcpu->cache, line, access->store, &victim);
		if (result == CACHE_MISS_DIRTY_VICTIM)
			memory_write_back(timing, vcpu, access->instructions, victim);
	} else if (victim != L1_EMPTY && (victim & L1_DIRTY)) {
		memory_write_back(timing, vcpu, access->instructions, victim >> 1);
	}
	pay_hidden_walk(timing, vcpu, access, result != CACHE_HIT);
	if (result == CACHE_HIT)
		access_llc_hit(timing, vcpu, access, covered, &translation, outcome);
	else
		access_memory(timing, vcpu, access, node, covered, &translation, outcome);
}

/* The first store to a line that loads brought to L1: the copy in the LLC becomes dirty too. */
static void l1_first_store(struct timing *timing, struct vcpu *vcpu,
			   const struct line_access *access)
{
	uint64_t line = access->paddr >> CACHE_LINE_SHIFT, victim;

	vcpu->l1[l1_place(access->vaddr)] |= L1_DIRTY;
	if (part_on(timing, TIMING_CACHE) &&
	    cache_access(vcpu->cache, line, true, &victim) == CACHE_MISS_DIRTY_VICTIM)
		memory_write_back(timing, vcpu, access->instructions, victim);
}

static void access_line(struct timing *timing, struct vcpu *vcpu, struct line_access *access,
			struct timing_outcome *outcome)
{
	uint64_t line = access->paddr >> CACHE_LINE_SHIFT;
	unsigned place = l1_place(access->vaddr);
	uint64_t l1 = vcpu->l1[place];
	uint64_t before_ps = vcpu->offset_ps - vcpu->jumped_ps;

	if (access->instructions >= vcpu->attend_at)
		vcpu_attend(timing, vcpu, access->instructions);
	*outcome = (struct timing_outcome){ .level = TIMING_L1, .node = NO_NODE };
	if (l1 >> 1 != line)
		access_beyond_l1(timing, vcpu, access, outcome);
	else if (!access->store)
		load_hit(timing, vcpu, access, vcpu->l1_ready[place], outcome);
	else if (!(l1 & L1_DIRTY))
		l1_first_store(timing, vcpu, access);
	vcpu_schedule(timing, vcpu, access->instructions);
	outcome->stall_ps = vcpu->offset_ps - vcpu->jumped_ps - before_ps;
}

/*
 * The common case inline: a hit in L1, nothing due, nothing on its way that a load could need.
 * Scalars, so that the compiler makes a struct of them only for the slow path.
 */
static inline bool hits_l1(const struct vcpu *vcpu, uint64_t instructions, uint64_t now_ps,
			   uint64_t vaddr, uint64_t paddr, bool store)
{
	uint64_t line = paddr >> CACHE_LINE_SHIFT, l1 = vcpu->l1[l1_place(vaddr)];

	return likely((l1 | !store) == (line << 1 | 1)) && likely(instructions < vcpu->attend_at) &&
	       likely(store || now_ps >= vcpu->pending_until_ps);
}

/* The other lines of an access that straddles; what lies on the next page is not known. */
static void access_straddling(struct timing *timing, struct vcpu *vcpu, struct line_access access,
			      uint32_t size, struct timing_outcome *outcome)
{
	uint64_t end = access.paddr + size, page_end = (access.paddr | (PAGE_BYTES - 1)) + 1;
	uint64_t paddr = (access.paddr | (CACHE_LINE_BYTES - 1)) + 1;
	struct timing_outcome next;

	access.value = 0;
	for (; paddr < end && paddr < page_end; paddr += CACHE_LINE_BYTES) {
		access.vaddr += paddr - access.paddr;
		access.paddr = paddr;
		access_line(timing, vcpu, &access, &next);
		next.stall_ps += outcome->stall_ps;
		if (next.latency_ps >= outcome->latency_ps)
			*outcome = next;
		else
			outcome->stall_ps = next.stall_ps;
	}
}

static __attribute__((noinline)) void access_slow(struct timing *timing, struct vcpu *vcpu,
						  uint64_t instructions, uint64_t vaddr,
						  uint64_t paddr, uint32_t size, uint32_t flags,
						  uint64_t value, struct timing_outcome *outcome)
{
	struct line_access access = {
		.instructions = instructions,
		.vaddr = vaddr,
		.paddr = paddr,
		.value = size >= sizeof(value) ? value : 0,
		.store = flags & TIMING_STORE,
		.kernel = flags & TIMING_KERNEL_MODE,
	};

	access_line(timing, vcpu, &access, outcome);
	if ((paddr % CACHE_LINE_BYTES) + size > CACHE_LINE_BYTES)
		access_straddling(timing, vcpu, access, size, outcome);
	vcpu_publish_clock(vcpu, instructions, vcpu_now(timing, vcpu, instructions));
}

void timing_access(struct timing *timing, unsigned vcpu_index, uint64_t instructions,
		   uint64_t vaddr, uint64_t paddr, uint32_t size, uint32_t flags, uint64_t value,
		   struct timing_outcome *outcome)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	bool store = flags & TIMING_STORE;
	uint64_t *count = store ? &vcpu->counters.stores : &vcpu->counters.loads;
	uint64_t now_ps;

	instructions = vcpu_forward(vcpu, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	*outcome = (struct timing_outcome){ .level = TIMING_L1, .node = NO_NODE };
	if ((flags & TIMING_KERNEL_MODE) && !part_on(timing, TIMING_KERNEL))
		return;
	publish(count, *count + 1);
	if (hits_l1(vcpu, instructions, now_ps, vaddr, paddr, store) &&
	    likely((paddr % CACHE_LINE_BYTES) + size <= CACHE_LINE_BYTES))
		vcpu_publish_clock(vcpu, instructions, now_ps);
	else
		access_slow(timing, vcpu, instructions, vaddr, paddr, size, flags, value, outcome);
}

bool timing_hit(struct timing *timing, unsigned vcpu_index, uint64_t instructions, uint64_t vaddr,
		uint64_t paddr, uint32_t flags)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	bool store = flags & TIMING_STORE;
	uint64_t *count = store ? &vcpu->counters.stores : &vcpu->counters.loads;
	uint64_t now_ps;

	instructions = vcpu_forward(vcpu, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	if ((flags & TIMING_KERNEL_MODE) && !part_on(timing, TIMING_KERNEL))
		return false;
	if (!hits_l1(vcpu, instructions, now_ps, vaddr, paddr, store))
		return false;
	publish(count, *count + 1);
	vcpu_publish_clock(vcpu, instructions, now_ps);
	return true;
}
