/* SPDX-License-Identifier: MIT */
#include "suspension.h"

/* What was still to come at `now_ps` comes later. */
static void postpone(uint64_t *at_ps, uint64_t now_ps, uint64_t ps)
{
	if (*at_ps > now_ps)
		*at_ps += ps;
}

static void postpone_misses(struct window *window, uint64_t now_ps, uint64_t ps)
{
	for (uint32_t i = 0; i < window->count; i++)
		postpone(&window->miss[(window->head + i) % WINDOW_SLOTS].completion_ps, now_ps,
			 ps);
	for (uint32_t i = 0; i < window->mshrs; i++)
		postpone(&window->free_ps[i], now_ps, ps);
}

static void postpone_values(struct vcpu *vcpu, uint64_t now_ps, uint64_t ps)
{
	for (unsigned i = 0; i < L1_LINES; i++)
		postpone(&vcpu->l1_ready[i].ready_ps, now_ps, ps);
	for (unsigned i = 0; i < CHASE_SLOTS; i++)
		for (unsigned way = 0; way < CHASE_WAYS; way++)
			postpone(&vcpu->chase.value[i][way].arrival.ready_ps, now_ps, ps);
}

void vcpu_suspend(struct timing *timing, struct vcpu *vcpu, uint64_t ps)
{
	uint64_t instructions = vcpu->counters.instructions;
	uint64_t now_ps = vcpu_now(timing, vcpu, instructions);

	if (vcpu->pending_until_ps > now_ps) {
		postpone_values(vcpu, now_ps, ps);
		vcpu->pending_until_ps += ps;
	}
	postpone_misses(&vcpu->window, now_ps, ps);
	vcpu->offset_ps += ps;
	vcpu_publish_clock(vcpu, instructions, now_ps + ps);
}

static void interrupted(struct timing *timing, unsigned vcpu_index, uint32_t cost_ps)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];

	if (!part_on(timing, TIMING_SHOOTDOWN))
		return;
	publish(&vcpu->counters.shootdown_ps, vcpu->counters.shootdown_ps + cost_ps);
	vcpu_suspend(timing, vcpu, cost_ps);
}

void timing_shootdown_sent(struct timing *timing, unsigned vcpu)
{
	interrupted(timing, vcpu, timing->params.shootdown_send_ps);
}

void timing_shootdown_received(struct timing *timing, unsigned vcpu)
{
	interrupted(timing, vcpu, timing->params.shootdown_receive_ps);
}

uint64_t timing_sample(struct timing *timing, unsigned vcpu_index, uint32_t records,
		       bool each_interrupts)
{
	const struct timing_params *params = &timing->params;
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	uint64_t buffered = vcpu->buffered_records + (uint64_t)records;
	uint64_t interrupts = each_interrupts ? records : buffered / params->sample_buffer_records;
	uint64_t cost_ps = records * (uint64_t)params->sample_record_ps +
			   interrupts * params->sample_interrupt_ps;

	if (!part_on(timing, TIMING_SAMPLING))
		return 0;
	vcpu->buffered_records = each_interrupts ? 0 : buffered % params->sample_buffer_records;
	publish(&vcpu->counters.sampling_ps, vcpu->counters.sampling_ps + cost_ps);
	vcpu_suspend(timing, vcpu, cost_ps);
	return cost_ps;
}
