/* SPDX-License-Identifier: MIT */
/* The clocks of the vCPUs and of the machine: what is due, halts, wake-ups, and readings. */
#include "memory.h"
#include "timing.h"
#include "vcpu.h"

void vcpu_attend(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	uint64_t deadline;

	if (vcpu->halted)
		timing_resume(timing, vcpu_number(timing, vcpu), instructions);
	while ((deadline = window_deadline(&vcpu->window)) <= instructions)
		memory_retire(timing, vcpu, deadline);
	memory_measure(timing, vcpu, instructions);
	vcpu_schedule(timing, vcpu, instructions);
}

void timing_idle(struct timing *timing, unsigned vcpu_index, uint64_t instructions)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];

	if (vcpu->halted)
		return;
	instructions = vcpu_forward(vcpu, instructions);
	vcpu_attend(timing, vcpu, instructions);
	memory_drain(timing, vcpu, instructions);
	memory_observe(timing, vcpu,
		       (struct timing_miss){ .instructions = instructions,
					     .flags = TIMING_HALT,
					     .vaddr = vcpu_now(timing, vcpu, instructions) });
	bandwidth_halt(&vcpu->bandwidth, &timing->published[vcpu_index]);
	vcpu->halted = true;
	vcpu->attend_at = 0;
	vcpu_publish_clock(vcpu, instructions, vcpu_now(timing, vcpu, instructions));
}

void timing_resume(struct timing *timing, unsigned vcpu_index, uint64_t instructions)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	uint64_t machine_ps = timing_clock_ps(timing);
	uint64_t now_ps;

	if (!vcpu->halted)
		return;
	vcpu->halted = false;
	instructions = vcpu_forward(vcpu, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	if (now_ps < machine_ps) {
		vcpu->offset_ps += machine_ps - now_ps;
		vcpu->jumped_ps += machine_ps - now_ps;
		now_ps = machine_ps;
	}
	bandwidth_resume(&vcpu->bandwidth, &timing->published[vcpu_index], now_ps);
	memory_observe(timing, vcpu,
		       (struct timing_miss){ .instructions = instructions,
					     .flags = TIMING_WAKE,
					     .vaddr = now_ps });
	vcpu_schedule(timing, vcpu, instructions);
	vcpu_publish_clock(vcpu, instructions, now_ps);
}

bool timing_runs(const struct timing *timing, unsigned vcpu)
{
	return __atomic_load_n(&timing->published[vcpu].running, __ATOMIC_RELAXED);
}

uint64_t timing_vcpu_clock_ps(struct timing *timing, unsigned vcpu_index, uint64_t instructions)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];

	if (!vcpu->halted) {
		instructions = vcpu_forward(vcpu, instructions);
		vcpu_attend(timing, vcpu, instructions);
		vcpu_publish_clock(vcpu, instructions, vcpu_now(timing, vcpu, instructions));
	}
	return vcpu->counters.clock_ps;
}

uint64_t timing_clock_ps(const struct timing *timing)
{
	uint64_t clock_ps = 0;

	for (unsigned i = 0; i < timing->params.vcpus; i++) {
		uint64_t vcpu_ps =
			__atomic_load_n(&timing->vcpu[i].counters.clock_ps, __ATOMIC_RELAXED);

		if (vcpu_ps > clock_ps)
			clock_ps = vcpu_ps;
	}
	return clock_ps;
}
