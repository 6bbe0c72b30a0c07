/* SPDX-License-Identifier: MIT */
#include "timing.h"

uint64_t timing_replay(struct timing *timing, uint64_t count, const uint8_t *vcpu,
		       const uint64_t *instructions, const uint64_t *vaddr, const uint64_t *paddr,
		       const uint8_t *size, const uint8_t *flags, const uint64_t *value,
		       uint8_t *level, uint8_t *node, uint32_t *latency_ps, uint64_t *stall_ps)
{
	for (uint64_t i = 0; i < count; i++) {
		struct timing_outcome outcome = { .level = TIMING_L1, .node = 0xff };

		if (flags[i] & TIMING_HALT)
			timing_idle(timing, vcpu[i], instructions[i]);
		else
			timing_access(timing, vcpu[i], instructions[i], vaddr[i], paddr[i], size[i],
				      flags[i], value[i], &outcome);
		if (level)
			level[i] = outcome.level;
		if (node)
			node[i] = outcome.node;
		if (latency_ps)
			latency_ps[i] = outcome.latency_ps;
		if (stall_ps)
			stall_ps[i] = outcome.stall_ps;
	}
	return timing_clock_ps(timing);
}
