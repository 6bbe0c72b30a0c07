/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "misses.h"

/* By how much a CPU may run ahead of the others: the interval of the bandwidth's measurements. */
#define THREADS_STEP_PS BANDWIDTH_WINDOW_PS

/* Where a CPU is at its next miss; UINT64_MAX if it has none before the row. */
static uint64_t next_ps(const struct timing *timing, const struct vcpu *vcpu,
			const struct timing_misses *misses, const struct timing_progress *progress,
			uint64_t until_row)
{
	if (progress->next >= until_row)
		return UINT64_MAX;
	return vcpu_now(timing, vcpu, misses->instructions[progress->next]);
}

/*
 * Each CPU up to its row, the one that is behind first; one that wakes before those that run. Those
 * that reach theirs before the last move nothing until they meet.
 */
static void run_until(struct timing *timing, const struct timing_threads *threads,
		      struct timing_progress *progress, const uint64_t *until_row)
{
	for (;;) {
		uint64_t first_ps = UINT64_MAX, second_ps = UINT64_MAX;
		uint32_t first = 0;
		bool last;

		for (uint32_t cpu = 0; cpu < threads->cpus; cpu++) {
			const struct vcpu *vcpu = &timing->vcpu[cpu];
			uint64_t at_ps = next_ps(timing, vcpu, &threads->misses[cpu],
						 &progress[cpu], until_row[cpu]);

			if (at_ps < first_ps ||
			    (at_ps == first_ps && first_ps < UINT64_MAX && vcpu->halted)) {
				second_ps = first_ps;
				first_ps = at_ps;
				first = cpu;
			} else if (at_ps < second_ps) {
				second_ps = at_ps;
			}
		}
		if (first_ps == UINT64_MAX)
			return;
		last = second_ps == UINT64_MAX;
		if (second_ps < UINT64_MAX - THREADS_STEP_PS)
			second_ps += THREADS_STEP_PS;
		misses_replay(timing, &timing->vcpu[first], &threads->misses[first],
			      &progress[first], until_row[first], second_ps);
		if (!last && progress[first].next >= until_row[first])
			bandwidth_halt(&timing->vcpu[first].bandwidth, &timing->published[first]);
	}
}

/* All that run wait for the last. Those that are halted resume at the machine's clock anyway. */
static void meet(struct timing *timing, uint32_t cpus)
{
	uint64_t machine_ps = timing_clock_ps(timing);

	for (uint32_t cpu = 0; cpu < cpus; cpu++) {
		struct vcpu *vcpu = &timing->vcpu[cpu];
		uint64_t behind_ps = machine_ps - vcpu->counters.clock_ps;

		if (vcpu->halted)
			continue;
		if (!timing->published[cpu].running)
			bandwidth_resume(&vcpu->bandwidth, &timing->published[cpu], machine_ps);
		if (!behind_ps)
			continue;
		vcpu->offset_ps += behind_ps;
		vcpu->jumped_ps += behind_ps;
		vcpu_publish_clock(vcpu, vcpu->counters.instructions, machine_ps);
	}
}

/* Those that ran when the recording began. */
static void start(struct timing *timing, const struct timing_threads *threads)
{
	for (uint32_t cpu = 0; cpu < threads->cpus; cpu++) {
		const struct timing_misses *misses = &threads->misses[cpu];

		if (misses->count && misses->flags[0] != TIMING_WAKE)
			timing_resume(timing, cpu, 0);
	}
}

uint64_t timing_replay_threads(struct timing *timing, const struct timing_threads *threads)
{
	struct timing_progress *progress = calloc(threads->cpus, sizeof(*progress));
	uint64_t end[TIMING_MAX_VCPUS];

	if (!progress)
		return UINT64_MAX;
	start(timing, threads);
	for (uint64_t meeting = 0; meeting < threads->meetings; meeting++) {
		run_until(timing, threads, progress, &threads->meets_at[meeting * threads->cpus]);
		meet(timing, threads->cpus);
	}
	for (uint32_t cpu = 0; cpu < threads->cpus; cpu++)
		end[cpu] = threads->misses[cpu].count;
	run_until(timing, threads, progress, end);
	free(progress);
	return timing_clock_ps(timing);
}
