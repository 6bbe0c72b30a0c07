/* SPDX-License-Identifier: MIT */
#include <sched.h>
#include <time.h>

#include "machine.h"

/* Longest time between two snapshots of a running vCPU's counters. */
#define PUBLISH_NS 1000000

/*
 * A vCPU that waits for others yields the host's CPU so often, and then sleeps between its looks:
 * where the host has fewer CPUs than the machine, those it waits for need one.
 */
#define YIELDS 16
#define SLEEP_NS 20000

void vcpu_publish(struct vcpu *vcpu, unsigned index, uint64_t host_ns)
{
	const struct timing_vcpu_counters *counters = timing_counters_of(machine.timing, index);

	shared_publish(vcpu->shared, counters, host_ns, vcpu->pacing.paced_ns,
		       vcpu->pacing.behind_ns);
	shared_advance_clock(machine.header, counters->clock_ps);
	vcpu->published_ns = host_ns;
}

static void go_on(struct vcpu *vcpu, unsigned index, uint64_t instructions)
{
	uint64_t clock_ps;

	timing_resume(machine.timing, index, instructions);
	pacing_set(&vcpu->pacing, machine.header->dilation);
	sampling_control(vcpu);
	clock_ps = timing_counters_of(machine.timing, index)->clock_ps;
	pacing_start(&vcpu->pacing, clock_ps);
	awake_enter(&machine.awake, machine.header, index, clock_ps);
}

void vcpu_start(struct vcpu *vcpu, unsigned index, uint64_t remaining)
{
	vcpu->skipped += vcpu->score->executed - remaining - vcpu->stopped_at;
	vcpu->running = true;
	go_on(vcpu, index, instructions_of(vcpu) - remaining);
}

static void vcpu_stop(struct vcpu *vcpu, unsigned index)
{
	vcpu_halt(vcpu, index);
	vcpu->stopped_at = vcpu->score->executed;
	vcpu->running = false;
}

void vcpu_halt(struct vcpu *vcpu, unsigned index)
{
	timer_end(index, 0);
	if (!vcpu->running)
		return;
	timing_idle(machine.timing, index, instructions_of(vcpu));
	awake_leave(&machine.awake, machine.header, index,
		    timing_counters_of(machine.timing, index)->clock_ps);
	vcpu_publish(vcpu, index, pacing_host_ns());
}

void vcpu_resume(struct vcpu *vcpu, unsigned index)
{
	if (!vcpu->running)
		return;
	if (model_wanted())
		go_on(vcpu, index, instructions_of(vcpu));
	else
		vcpu_stop(vcpu, index);
}

/* Whether another vCPU that runs is more than a step behind. */
static bool others_behind(unsigned index, uint64_t clock_ps)
{
	for (unsigned other = 0; other < machine.vcpus; other++) {
		const struct timing_vcpu_counters *counters =
			timing_counters_of(machine.timing, other);

		if (other != index && timing_runs(machine.timing, other) &&
		    __atomic_load_n(&counters->clock_ps, __ATOMIC_RELAXED) + machine.step_ps <
			    clock_ps)
			return true;
	}
	return false;
}

/*
 * Keep the vCPUs' clocks together, so that they share caches and bandwidth, and wait for each
 * other, as on the modelled machine and not as the host schedules them. Those of other caches too:
 * a vCPU that wakes goes on at the machine's clock, and would skip by how much another is ahead.
 * What is still ahead after the longest wait goes on waiting at its next access: the others may
 * need this one to go on, for an exclusive section of QEMU.
 */
static void keep_in_step(struct vcpu *vcpu, unsigned index, uint64_t clock_ps)
{
	const struct timespec pause = { .tv_nsec = SLEEP_NS };
	uint64_t until_ns = pacing_host_ns() + PACING_MAX_WAIT_NS;

	for (unsigned looks = 0; others_behind(index, clock_ps); looks++) {
		if (pacing_host_ns() > until_ns) {
			vcpu->pacing.next_ps = clock_ps;
			return;
		}
		if (looks < YIELDS)
			sched_yield();
		else
			nanosleep(&pause, NULL);
	}
}

void vcpu_look(struct vcpu *vcpu, unsigned index, uint64_t clock_ps)
{
	__atomic_store_n(&vcpu->shared->clock_ps, clock_ps, __ATOMIC_RELAXED);
	shared_advance_clock(machine.header, clock_ps);
	pacing_look(&vcpu->pacing, clock_ps);
	if (machine.step_ps)
		keep_in_step(vcpu, index, clock_ps);
	shootdown_settle(index);
	sampling_control(vcpu);
	if (vcpu->pacing.now_ns - vcpu->published_ns >= PUBLISH_NS) {
		vcpu_publish(vcpu, index, vcpu->pacing.now_ns);
		translations_forget(&vcpu->kernel_pages);
	}
	if (!model_wanted())
		vcpu_stop(vcpu, index);
}

void vcpu_tick(struct vcpu *vcpu, unsigned index, uint64_t block)
{
	uint64_t clock_ps;

	vcpu->skipped -= vcpu->score->executed;
	vcpu->stopped_at -= vcpu->score->executed;
	vcpu->score->executed = 0;
	if (vcpu->in_timer)
		timer_look(index, block);
	else if (!vcpu->running && model_wanted())
		vcpu_start(vcpu, index, block);
	if (!vcpu->running)
		return;
	clock_ps = timing_vcpu_clock_ps(machine.timing, index, instructions_of(vcpu) - block);
	if (pacing_due(&vcpu->pacing, clock_ps))
		vcpu_look(vcpu, index, clock_ps);
}
