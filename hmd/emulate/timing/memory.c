/* SPDX-License-Identifier: MIT */
#include "memory.h"

static void vcpu_stall(struct vcpu *vcpu, unsigned node, uint64_t stall_ps)
{
	vcpu->offset_ps += stall_ps;
	publish(&vcpu->counters.node[node].stall_ps, vcpu->counters.node[node].stall_ps + stall_ps);
}

void memory_retire(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	struct window_miss miss = window_pop(&vcpu->window);
	uint64_t at_ps = vcpu_now(timing, vcpu, instructions);

	if (miss.completion_ps > at_ps)
		vcpu_stall(vcpu, miss.node, miss.completion_ps - at_ps);
}

void memory_measure(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	uint64_t now_ps = vcpu_now(timing, vcpu, instructions);

	if (part_on(timing, TIMING_BANDWIDTH) &&
	    now_ps >= vcpu->bandwidth.measured_ps + BANDWIDTH_WINDOW_PS)
		bandwidth_measure(&vcpu->bandwidth, &timing->params, timing->published,
				  vcpu_number(timing, vcpu), now_ps);
}

void memory_drain(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	while (vcpu->window.count)
		memory_retire(timing, vcpu, instructions);
}

static uint64_t idle_latency_ps(const struct timing_node_params *node, bool store)
{
	return store ? node->write_latency_ps : node->read_latency_ps;
}

/* Links between sockets add to what a node and its queue take. */
static uint64_t link_ps(const struct timing_node_params *node, unsigned vcpu)
{
	return node->far_vcpus >> vcpu & 1 ? node->far_ps : 0;
}

/* Move a line to or from memory; returns by how much the node's queue is overfull, in time. */
static uint64_t transfer(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
			 unsigned node, enum bandwidth_direction direction, uint64_t paddr)
{
	struct timing_counters *counters = &vcpu->counters.node[node];
	uint32_t bytes =
		bandwidth_media_bytes(&timing->media, &timing->params, node, direction, paddr);

	if (direction == BANDWIDTH_READ)
		publish(&counters->read_bytes, counters->read_bytes + bytes);
	else
		publish(&counters->write_bytes, counters->write_bytes + bytes);
	if (!part_on(timing, TIMING_BANDWIDTH))
		return 0;
	memory_measure(timing, vcpu, instructions);
	return bandwidth_send(&vcpu->bandwidth, node, direction,
			      vcpu_now(timing, vcpu, instructions), bytes);
}

void memory_observe(const struct timing *timing, struct vcpu *vcpu, struct timing_miss miss)
{
	if (!timing->observer)
		return;
	miss.paid_hits = vcpu->paid_hits;
	miss.near_hits = vcpu->near_hits;
	vcpu->paid_hits = vcpu->near_hits = 0;
	vcpu->observed_at = miss.instructions;
	timing->observer(timing->observer_context, vcpu_number(timing, vcpu), &miss);
}

void memory_write_back(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
		       uint64_t line)
{
	uint64_t paddr = line << CACHE_LINE_SHIFT;
	unsigned node = node_of(&timing->params, paddr);

	/* Only lines of nodes enter the caches: whatever else comes out of one, it is damaged. */
	if (node == NO_NODE)
		abort();
	memory_observe(timing, vcpu,
		       (struct timing_miss){ .instructions = instructions,
					     .paddr = paddr,
					     .flags = TIMING_STORE | TIMING_WRITE_BACK });
	vcpu_stall(vcpu, node, transfer(timing, vcpu, instructions, node, BANDWIDTH_WRITE, paddr));
}

static void count_miss(struct vcpu *vcpu, const struct line_access *access, unsigned node,
		       bool covered)
{
	struct timing_counters *counters = &vcpu->counters.node[node];
	uint64_t *counter = access->table    ? &counters->table_lines
			    : access->kernel ? &counters->kernel_lines
			    : covered        ? &counters->prefetched_lines
			    : access->store  ? &counters->store_misses
					     : &counters->load_misses;

	publish(counter, *counter + 1);
}

/* A load miss enters the reorder window; *latency_ps becomes that from when its address was known. */
static struct arrival load_overlapped(struct timing *timing, struct vcpu *vcpu,
				      const struct line_access *access, unsigned node,
				      struct arrival address, uint64_t queue_ps,
				      uint64_t *latency_ps)
{
	uint64_t ready_ps = address.ready_ps, now_ps, translated_ps, start_ps, *buffer;

	if (window_full(&vcpu->window))
		memory_retire(timing, vcpu, access->instructions);
	now_ps = vcpu_now(timing, vcpu, access->instructions);
	if (ready_ps < now_ps)
		ready_ps = now_ps;
	translated_ps = ready_ps + translation_delay_ps(&timing->params, access->translation);
	start_ps = now_ps + queue_ps > translated_ps ? now_ps + queue_ps : translated_ps;
	buffer = window_fill_buffer(&vcpu->window, translated_ps);
	if (*buffer > start_ps)
		start_ps = *buffer;
	*buffer = start_ps + *latency_ps;
	window_push(&vcpu->window, (struct window_miss){ access->instructions, *buffer, node });
	*latency_ps = *buffer - ready_ps;
	return (struct arrival){ *buffer, vcpu->load_misses };
}

/* A store miss holds a fill buffer, but nothing waits for it: the clock waits for a free one. */
static uint64_t store_overlapped(struct timing *timing, struct vcpu *vcpu,
				 const struct line_access *access, unsigned node,
				 uint64_t latency_ps, uint64_t queue_ps)
{
	uint64_t now_ps = vcpu_now(timing, vcpu, access->instructions);
	uint64_t start_ps = now_ps + queue_ps;
	uint64_t *buffer = window_fill_buffer(&vcpu->window, start_ps);

	if (*buffer > start_ps)
		start_ps = *buffer;
	*buffer = start_ps + latency_ps;
	vcpu_stall(vcpu, node, start_ps - now_ps);
	return *buffer - now_ps;
}

/* Distance in load misses to the one that loaded this load's address; 0: none. */
static uint32_t misses_since(const struct vcpu *vcpu, struct arrival address)
{
	uint64_t ago = vcpu->load_misses - address.miss;

	return address.ready_ps && ago <= TIMING_MAX_DEPENDENCE ? (uint32_t)ago : 0;
}

struct arrival memory_read(struct timing *timing, struct vcpu *vcpu,
			   const struct line_access *access, unsigned node, bool covered,
			   struct arrival address, struct timing_outcome *outcome)
{
	bool waits = !covered && !access->store;
	struct arrival data = { 0 };
	uint64_t queue_ps, latency_ps;

	vcpu->load_misses += waits;
	count_miss(vcpu, access, node, covered);
	memory_observe(timing, vcpu,
		       (struct timing_miss){
			       .instructions = access->instructions,
			       .vaddr = access->vaddr,
			       .paddr = access->paddr,
			       .depends = waits ? misses_since(vcpu, address) : 0,
			       .flags = (access->store ? TIMING_STORE : 0) |
					(access->kernel ? TIMING_KERNEL_MODE : 0) |
					(access->table ? TIMING_TABLE : 0) |
					(covered ? TIMING_COVERED : 0) |
					(waits ? access->translation : 0),
		       });
	queue_ps =
		transfer(timing, vcpu, access->instructions, node, BANDWIDTH_READ, access->paddr);
	outcome->node = node;
	if (covered) {
		vcpu_stall(vcpu, node, queue_ps);
		outcome->level = TIMING_PREFETCHED;
		outcome->latency_ps = queue_ps;
		return data;
	}
	latency_ps = idle_latency_ps(&timing->params.node[node], access->store);
	latency_ps = (uint64_t)(latency_ps * vcpu->bandwidth.latency_factor[node]);
	latency_ps += link_ps(&timing->params.node[node], vcpu_number(timing, vcpu));
	if (!part_on(timing, TIMING_MLP)) {
		latency_ps += queue_ps + translation_delay_ps(&timing->params, access->translation);
		vcpu_stall(vcpu, node, latency_ps);
	} else if (access->store) {
		latency_ps = store_overlapped(timing, vcpu, access, node, latency_ps, queue_ps);
	} else {
		data = load_overlapped(timing, vcpu, access, node, address, queue_ps, &latency_ps);
	}
	outcome->level = TIMING_MEMORY;
	outcome->latency_ps = latency_ps < UINT32_MAX ? latency_ps : UINT32_MAX;
	return data;
}
