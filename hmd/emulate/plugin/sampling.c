#include <string.h>

#include "machine.h"

/* A page's physical number is the address space: what cr3 holds but PCID and control bits. */
#define CR3_PAGE(cr3) ((uint32_t)(((cr3) & 0x000ffffffffff000ull) >> 12))

static uint32_t address_space(struct vcpu *vcpu)
{
	uint64_t cr3 = 0;

	g_byte_array_set_size(vcpu->cr3, 0);
	if (qemu_plugin_read_register(machine.cr3, vcpu->cr3) <= 0)
		return 0;
	memcpy(&cr3, vcpu->cr3->data, vcpu->cr3->len < 8 ? vcpu->cr3->len : 8);
	return CR3_PAGE(cr3);
}

static void sample(struct vcpu *vcpu, unsigned index, const struct pebs_sample *partial)
{
	const struct timing_vcpu_counters *counters = timing_counters_of(machine.timing, index);
	const uint32_t *each = &machine.header->each_interrupts;
	struct pebs_sample sample = *partial;
	uint64_t *written = sample.event == PEBS_STORE ? &vcpu->shared->store_samples
						       : &vcpu->shared->load_samples;

	sample.time_ns = counters->clock_ps / 1000;
	sample.instructions = counters->instructions;
	sample.address_space = address_space(vcpu);
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

void sampling_count(struct vcpu *vcpu, unsigned index, const struct timing_outcome *outcome,
		    bool store, uint64_t vaddr, uint64_t paddr, uint64_t ip)
{
	const struct shared_header *header = machine.header;
	uint64_t ldlat_ps = header->ldlat_ns * 1000ull;
	bool prefetched = outcome->level == TIMING_PREFETCHED;
	struct pebs_sample access = {
		.ip = ip,
		.address = vaddr,
		.physical = paddr,
		.weight_ns = outcome->latency_ps / 1000,
		.event = store ? PEBS_STORE : PEBS_LOAD,
		.prefetched = prefetched,
	};

	if (!__atomic_load_n(&header->enabled, __ATOMIC_RELAXED))
		return;
	/* Latency is a filter of loads; of stores, only for those that a prefetch has served. */
	if ((!store || prefetched) && outcome->latency_ps < ldlat_ps)
		return;
	if (store) {
		count(vcpu, index, &vcpu->stores, &header->store_period, &access);
		return;
	}
	count(vcpu, index, &vcpu->loads, &header->load_period, &access);
	count(vcpu, index, &vcpu->pair_loads, &header->pair_period, &access);
}
