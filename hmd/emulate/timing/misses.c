#include "memory.h"

/* Where the replay is in the stream's instructions, and what its cache hits have cost so far. */
struct progress {
	uint64_t from, to;  /* instructions of the last miss and of the next */
	uint32_t hits;      /* between the two */
	uint32_t near;      /* those of them in the steps after the first, as in struct timing_miss */
	uint32_t charged_ps;
};

static double near_hits(const struct progress *progress, unsigned step)
{
	return progress->near >> TIMING_NEAR_BITS * step & TIMING_NEAR_MOST;
}

/*
 * Hits up to an instruction. They are not recorded one by one: they are taken to lie evenly in
 * each step after a miss, and beyond the steps. When each is paid matters, since it hides a part
 * of the miss that is on its way.
 */
static double hits_until(const struct progress *progress, uint64_t instructions)
{
	uint64_t start = progress->from;
	double hits = 0, left = progress->hits;

	if (instructions >= progress->to)
		return progress->hits;
	for (unsigned step = 0; step < TIMING_NEAR_STEPS; step++) {
		double here = near_hits(progress, step);

		if (instructions < start + TIMING_NEAR_STEP)
			return hits + here * (double)(instructions - start) / TIMING_NEAR_STEP;
		hits += here;
		left -= here;
		start += TIMING_NEAR_STEP;
	}
	return hits + left * (double)(instructions - start) / (double)(progress->to - start);
}

static void charge_hits(struct timing *timing, struct vcpu *vcpu, struct progress *progress,
			uint64_t instructions)
{
	uint32_t due_ps;

	if (!progress->hits)
		return;
	due_ps = (uint32_t)(hits_until(progress, instructions) * timing->params.llc_hit_ps);
	if (due_ps <= progress->charged_ps)
		return;
	vcpu->offset_ps += due_ps - progress->charged_ps;
	progress->charged_ps = due_ps;
}

/* Up to the next miss: whatever was due meanwhile, at its time. */
static void advance(struct timing *timing, struct vcpu *vcpu, struct progress *progress)
{
	if (vcpu->halted)
		timing_resume(timing, vcpu_number(timing, vcpu), progress->from);
	while (vcpu->attend_at <= progress->to) {
		uint64_t at = vcpu->attend_at > progress->from ? vcpu->attend_at : progress->from;

		charge_hits(timing, vcpu, progress, at);
		vcpu_attend(timing, vcpu, at);
	}
	charge_hits(timing, vcpu, progress, progress->to);
}

uint64_t timing_replay_misses(struct timing *timing, uint64_t count, const uint64_t *instructions,
			      const uint32_t *paid_hits, const uint32_t *near,
			      const uint32_t *page,
			      const uint8_t *line, const uint8_t *flags, const uint16_t *depends,
			      const uint64_t *page_paddr, uint32_t *latency_ps,
			      uint64_t *clock_ps)
{
	uint64_t arrives_ps[TIMING_MAX_DEPENDENCE + 1] = {0};
	struct vcpu *vcpu = &timing->vcpu[0];
	struct progress progress;

	for (uint64_t i = 0; i < count; i++) {
		struct timing_outcome outcome = {0};
		struct line_access access = {
			.instructions = instructions[i],
			.paddr = page_paddr[page[i]] + line[i] * CACHE_LINE_BYTES,
			.store = flags[i] & TIMING_STORE,
			.kernel = flags[i] & TIMING_KERNEL_MODE,
		};
		unsigned node = node_of(&timing->params, access.paddr);
		struct arrival address = {0}, data;

		progress = (struct progress){
			.from = instructions[i ? i - 1 : 0],
			.to = instructions[i],
			.hits = paid_hits[i],
			.near = near[i],
		};
		advance(timing, vcpu, &progress);
		if (clock_ps)
			clock_ps[i] = vcpu_now(timing, vcpu, instructions[i]) - vcpu->jumped_ps;
		if (depends[i])
			address.ready_ps =
				arrives_ps[(vcpu->load_misses + 1 - depends[i]) %
					   (TIMING_MAX_DEPENDENCE + 1)];
		if (flags[i] & TIMING_HALT) {
			timing_idle(timing, 0, instructions[i]);
		} else if (node == NO_NODE) {
			/* a page that lies nowhere: not moved, not counted */
		} else if (flags[i] & TIMING_WRITE_BACK) {
			memory_write_back(timing, vcpu, instructions[i],
					  access.paddr >> CACHE_LINE_SHIFT);
		} else {
			data = memory_read(timing, vcpu, &access, node, flags[i] & TIMING_COVERED,
					   address, &outcome);
			if (data.ready_ps)
				arrives_ps[data.miss % (TIMING_MAX_DEPENDENCE + 1)] = data.ready_ps;
		}
		vcpu_schedule(timing, vcpu, instructions[i]);
		if (latency_ps)
			latency_ps[i] = outcome.latency_ps;
	}
	if (count)
		vcpu_publish_clock(vcpu, instructions[count - 1],
				   vcpu_now(timing, vcpu, instructions[count - 1]));
	return vcpu->counters.busy_ps;
}
