/* SPDX-License-Identifier: MIT */
#include "machine.h"

static void sample(struct vcpu *vcpu, unsigned index, const struct pebs_sample *partial)
{
	const struct timing_vcpu_counters *counters = timing_counters_of(machine.timing, index);
	const uint32_t *each = &machine.header->each_interrupts;
	struct pebs_sample sample = *partial;
	uint64_t *written = sample.event == PEBS_STORE ? &vcpu->shared->store_samples
						       : &vcpu->shared->load_samples;

	sample.time_ns = counters->clock_ps / 1000;
	sample.instructions = counters->instructions;
	/* The number of the page that holds the root of its page tables. */
	sample.address_space = (uint32_t)(vcpu_root(vcpu) >> TRANSLATION_PAGE_SHIFT);
	sample.cpu = index;
	if (!pebs_write(&vcpu->ring, &sample))
		written = &vcpu->shared->lost_samples;
	__atomic_store_n(written, *written + 1, __ATOMIC_RELAXED);
	/* The CPU has written the record, whether or not the ring has room for it. */
	timing_sample(machine.timing, index, 1, __atomic_load_n(each, __ATOMIC_RELAXED));
}

/* Count the access in one counter; what overflows it becomes a record. */
static void count(struct vcpu *vcpu, unsigned index, uint64_t *counter, const uint64_t *period,
		  struct pebs_sample *access)
{
	access->period = __atomic_load_n(period, __ATOMIC_RELAXED);
	if (pebs_overflow(counter, access->period))
		sample(vcpu, index, access);
}

static bool sampling_enabled(void)
{
	return __atomic_load_n(&machine.header->enabled, __ATOMIC_RELAXED);
}

static struct pebs_sample sample_of(const struct timing_outcome *outcome,
				    struct sampled_access access)
{
	return (struct pebs_sample){
		.ip = access.ip,
		.address = access.vaddr,
		.physical = access.paddr,
		.latency_ns = outcome->latency_ps / 1000,
	};
}

/* Whether the counters see a load; of tagged ops, those that are chosen are records already. */
static bool selected(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		     const struct pebs_sample *load)
{
	const struct timing_vcpu_counters *counters = timing_counters_of(machine.timing, index);
	const struct shared_header *header = machine.header;
	uint64_t untagged;

	switch (__atomic_load_n(&header->selection, __ATOMIC_RELAXED)) {
	case PEBS_TAGGED:
		return pebs_tag_load(&vcpu->tag, counters->clock_ps, outcome->latency_ps,
				     __atomic_load_n(&header->tag_interval, __ATOMIC_RELAXED));
	case PEBS_OPS: {
		struct pebs_sample op = *load;

		op.period = __atomic_load_n(&header->load_period, __ATOMIC_RELAXED);
		if (pebs_tag_op(&vcpu->tag, counters->instructions, op.period, &untagged))
			sample(vcpu, index, &op);
		if (untagged)
			timing_sample(machine.timing, index, untagged, true);
		return false;
	}
	default:
		return true;
	}
}

void sampling_control(struct vcpu *vcpu)
{
	uint64_t period = __atomic_load_n(&machine.header->store_period, __ATOMIC_RELAXED);

	vcpu->kernel_mode = __atomic_load_n(&machine.header->kernel_mode, __ATOMIC_RELAXED);
	vcpu->store_limit = period && sampling_enabled() ? period : UINT64_MAX;
}

void sampling_load(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		   struct sampled_access access)
{
	const struct shared_header *header = machine.header;
	struct pebs_sample load = sample_of(outcome, access);

	if (!sampling_enabled())
		return;
	if (outcome->level == TIMING_PREFETCHED) {
		load.source = PEBS_FILL_BUFFER;
		count(vcpu, index, &vcpu->prefetched_loads, &header->prefetched_period, &load);
	} else if (outcome->latency_ps >= header->ldlat_ns * 1000ull &&
		   selected(vcpu, index, outcome, &load)) {
		count(vcpu, index, &vcpu->loads, &header->load_period, &load);
		count(vcpu, index, &vcpu->pair_loads, &header->pair_period, &load);
	}
}

void sampling_store(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		    struct sampled_access access)
{
	struct pebs_sample store = sample_of(outcome, access);

	store.event = PEBS_STORE;
	store.source = outcome->level == TIMING_L1 ? PEBS_L1_HIT : PEBS_L1_MISS;
	store.period = vcpu->store_limit;
	vcpu->stores = 0;
	sampling_control(vcpu);
	if (sampling_enabled())
		sample(vcpu, index, &store);
}
