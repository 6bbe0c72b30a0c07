/* SPDX-License-Identifier: MIT */
#include "misses.h"

#define PAGE_LINES 64

/* Where the replay is in the stream's instructions, and what its cache hits have cost so far. */
struct stretch {
	uint64_t from, to; /* instructions of the last miss and of the next */
	uint32_t hits;     /* between the two */
	uint32_t near; /* those of them in the steps after the first, as in struct timing_miss */
	uint64_t charged_ps; /* a long stretch takes more than the 4 ms of 32 bits */
};

static double near_hits(const struct stretch *stretch, unsigned step)
{
	return stretch->near >> TIMING_NEAR_BITS * step & TIMING_NEAR_MOST;
}

/*
 * Hits up to an instruction. They are not recorded one by one, but assumed to be evenly distributed
 * over each step after a miss, and beyond the steps. Their times matter, because they hide a part
 * of the miss in flight.
 */
static double hits_until(const struct stretch *stretch, uint64_t instructions)
{
	uint64_t start = stretch->from;
	double hits = 0, left = stretch->hits;

	if (instructions >= stretch->to)
		return stretch->hits;
	for (unsigned step = 0; step < TIMING_NEAR_STEPS; step++) {
		double here = near_hits(stretch, step);

		if (instructions < start + TIMING_NEAR_STEP)
			return hits + here * (double)(instructions - start) / TIMING_NEAR_STEP;
		hits += here;
		left -= here;
		start += TIMING_NEAR_STEP;
	}
	return hits + left * (double)(instructions - start) / (double)(stretch->to - start);
}

static void charge_hits(struct timing *timing, struct vcpu *vcpu, struct stretch *stretch,
			uint64_t instructions)
{
	double hits = stretch->hits ? hits_until(stretch, instructions) : 0;
	uint64_t due_ps;

	if (hits <= 0)
		return;
	due_ps = (uint64_t)(hits * timing->params.llc_hit_ps);
	if (due_ps <= stretch->charged_ps)
		return;
	vcpu->offset_ps += due_ps - stretch->charged_ps;
	stretch->charged_ps = due_ps;
}

/* Up to the next miss: whatever was due meanwhile, at its time. */
static void advance(struct timing *timing, struct vcpu *vcpu, struct stretch *stretch)
{
	if (vcpu->halted)
		timing_resume(timing, vcpu_number(timing, vcpu), stretch->from);
	while (vcpu->attend_at <= stretch->to) {
		uint64_t at = vcpu->attend_at > stretch->from ? vcpu->attend_at : stretch->from;

		charge_hits(timing, vcpu, stretch, at);
		vcpu_attend(timing, vcpu, at);
	}
	charge_hits(timing, vcpu, stretch, stretch->to);
}

/* Without page walks, what depended on a leaf entry depends on what the entry's address did. */
static void skip_table(struct vcpu *vcpu, struct timing_progress *progress, struct arrival address)
{
	uint64_t number = ++vcpu->load_misses;

	progress->arrives_ps[number % (TIMING_MAX_DEPENDENCE + 1)] = address.ready_ps;
}

/* One row; the caller has seen that its page is mapped. */
static void replay_miss(struct timing *timing, struct vcpu *vcpu,
			const struct timing_misses *misses, struct timing_progress *progress,
			uint64_t i)
{
	uint64_t instructions = misses->instructions[i];
	uint8_t flags = misses->flags[i];
	struct timing_outcome outcome = { 0 };
	struct line_access access = {
		.instructions = instructions,
		.paddr = misses->page_paddr[misses->page[i]] + misses->line[i] * CACHE_LINE_BYTES,
		.store = flags & TIMING_STORE,
		.kernel = flags & TIMING_KERNEL_MODE,
		.table = flags & TIMING_TABLE,
		.translation =
			part_on(timing, TIMING_TLB) ? flags & (TIMING_STLB_HIT | TIMING_WALK) : 0,
	};
	unsigned node = node_of(&timing->params, access.paddr);
	struct arrival address = { 0 }, data;
	struct stretch stretch = {
		.from = misses->instructions[i ? i - 1 : 0],
		.to = instructions,
		.hits = misses->paid_hits[i],
		.near = misses->near_hits[i],
	};

	advance(timing, vcpu, &stretch);
	if (misses->clock_ps)
		misses->clock_ps[i] =
			vcpu_now(timing, vcpu, instructions) - (misses->idle ? 0 : vcpu->jumped_ps);
	if (misses->depends[i])
		address.ready_ps =
			progress->arrives_ps[(vcpu->load_misses + 1 - misses->depends[i]) %
					     (TIMING_MAX_DEPENDENCE + 1)];
	if (flags & TIMING_HALT) {
		if (flags == TIMING_HALT)
			timing_idle(timing, vcpu_number(timing, vcpu), instructions);
	} else if (node == NO_NODE) {
		/* a page that lies nowhere: not moved, not counted */
	} else if (flags & TIMING_WRITE_BACK) {
		memory_write_back(timing, vcpu, instructions, access.paddr >> CACHE_LINE_SHIFT);
	} else if (access.table && !part_on(timing, TIMING_TLB)) {
		skip_table(vcpu, progress, address);
	} else {
		data = memory_read(timing, vcpu, &access, node, flags & TIMING_COVERED, address,
				   &outcome);
		if (data.ready_ps)
			progress->arrives_ps[data.miss % (TIMING_MAX_DEPENDENCE + 1)] =
				data.ready_ps;
	}
	vcpu_schedule(timing, vcpu, instructions);
	if (misses->latency_ps)
		misses->latency_ps[i] = outcome.latency_ps + progress->table_ps;
	progress->table_ps = access.table ? outcome.latency_ps : 0;
}

void misses_replay(struct timing *timing, struct vcpu *vcpu, const struct timing_misses *misses,
		   struct timing_progress *progress, uint64_t until_row, uint64_t until_ps)
{
	for (; progress->next < until_row; progress->next++) {
		uint64_t i = progress->next;

		if (vcpu_now(timing, vcpu, misses->instructions[i]) >= until_ps)
			break;
		/* A write-back needs no mapping: it goes by frame. */
		if (misses->page_paddr[misses->page[i]] == TIMING_UNMAPPED &&
		    !(misses->flags[i] & (TIMING_WRITE_BACK | TIMING_HALT)))
			break;
		replay_miss(timing, vcpu, misses, progress, i);
	}
	if (progress->next) {
		uint64_t last = misses->instructions[progress->next - 1];

		vcpu_publish_clock(vcpu, last, vcpu_now(timing, vcpu, last));
	}
}

uint64_t timing_replay_misses(struct timing *timing, const struct timing_misses *misses,
			      struct timing_progress *progress, uint64_t until_ps)
{
	misses_replay(timing, &timing->vcpu[0], misses, progress, misses->count, until_ps);
	return timing->vcpu[0].counters.busy_ps;
}

void timing_sleep(struct timing *timing, unsigned vcpu_index, uint64_t until_ps)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	uint64_t instructions = vcpu->counters.instructions, now_ps;

	timing_idle(timing, vcpu_index, instructions);
	timing_resume(timing, vcpu_index, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	if (now_ps < until_ps) {
		vcpu->offset_ps += until_ps - now_ps;
		vcpu->jumped_ps += until_ps - now_ps;
		vcpu_publish_clock(vcpu, instructions, until_ps);
	}
}

/* Streams, which the prefetcher has asked for but for the first lines. */
#define COPY_UNCOVERED_LINES 2

static void copy_page(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
		      uint64_t from_paddr, uint64_t to_paddr)
{
	for (unsigned line = 0; line < PAGE_LINES; line++) {
		struct line_access access = {
			.instructions = instructions,
			.paddr = from_paddr + line * CACHE_LINE_BYTES,
			.kernel = true,
		};
		bool covered = line >= COPY_UNCOVERED_LINES;
		struct timing_outcome outcome;

		memory_read(timing, vcpu, &access, node_of(&timing->params, access.paddr), covered,
			    (struct arrival){ 0 }, &outcome);
		access.paddr = to_paddr + line * CACHE_LINE_BYTES;
		access.store = true;
		memory_read(timing, vcpu, &access, node_of(&timing->params, access.paddr), covered,
			    (struct arrival){ 0 }, &outcome);
		memory_write_back(timing, vcpu, instructions, access.paddr >> CACHE_LINE_SHIFT);
	}
}

uint64_t timing_copy_pages(struct timing *timing, unsigned vcpu_index, uint64_t count,
			   const uint64_t *from_paddr, const uint64_t *to_paddr,
			   uint64_t instructions)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	uint64_t at = vcpu->counters.instructions;

	timing_resume(timing, vcpu_index, at);
	for (uint64_t i = 0; i < count; i++) {
		at += instructions;
		vcpu_attend(timing, vcpu, at);
		copy_page(timing, vcpu, at, from_paddr[i], to_paddr[i]);
		vcpu_publish_clock(vcpu, at, vcpu_now(timing, vcpu, at));
	}
	return vcpu->counters.clock_ps;
}
