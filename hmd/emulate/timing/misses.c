#include "memory.h"

/* Where the replay is in the stream's instructions, and what its cache hits have cost so far. */
struct progress {
	uint64_t from, to;    /* instructions of the last miss and of the next */
	uint64_t near_end;    /* up to here hits count as near the last miss */
	double near, far;     /* hits an instruction before and after that */
	double charged;       /* hits paid for */
};

static struct progress progress_between(uint64_t from, uint64_t to, uint32_t hits, uint32_t near)
{
	uint64_t near_end = to - from > TIMING_NEAR_INSTRUCTIONS ? from + TIMING_NEAR_INSTRUCTIONS
								 : to;
	struct progress progress = {.from = from, .to = to, .near_end = near_end};

	if (near_end == to)
		near = hits;
	if (near_end > from)
		progress.near = near / (double)(near_end - from);
	if (to > near_end)
		progress.far = (hits - near) / (double)(to - near_end);
	return progress;
}

/*
 * Hits are not recorded one by one: they are taken to lie evenly, near a miss and far from it.
 * When each is paid matters, since it hides a part of the miss that is on its way.
 */
static void charge_hits(struct timing *timing, struct vcpu *vcpu, struct progress *progress,
			uint64_t instructions)
{
	double near = instructions < progress->near_end ? instructions : progress->near_end;
	double due = (near - progress->from) * progress->near;

	if (instructions > progress->near_end)
		due += (instructions - progress->near_end) * progress->far;
	if (due <= progress->charged)
		return;
	vcpu->offset_ps += (uint64_t)((due - progress->charged) * timing->params.llc_hit_ps + 0.5);
	progress->charged = due;
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
			      const uint32_t *paid_hits, const uint16_t *near_hits,
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

		progress = progress_between(instructions[i ? i - 1 : 0], instructions[i],
					    paid_hits[i], near_hits[i]);
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
