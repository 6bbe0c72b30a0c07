#include <stdlib.h>
#include <string.h>

#include "bandwidth.h"
#include "cache.h"
#include "chase.h"
#include "params.h"
#include "stream.h"
#include "timing.h"
#include "window.h"

#define likely(x) __builtin_expect(!!(x), 1)

/* First-level filter: 32 KiB of lines, direct-mapped. What hits here costs nothing. */
#define L1_LINES 512
#define L1_DIRTY 1ull
#define L1_EMPTY UINT64_MAX /* the tag of no line */

#define NO_NODE 0xff
#define PAGE_BYTES 4096

struct vcpu {
	/* Read at every access. */
	uint64_t offset_ps;     /* clock - instructions * instruction_ps: stalls and idle jumps */
	uint64_t jumped_ps;     /* the idle jumps of it */
	uint64_t attend_at;     /* instruction count at which vcpu_attend() has to run */
	uint64_t pending_until_ps; /* when the last load on its way from memory arrives */
	struct timing_vcpu_counters counters;

	uint64_t l1[L1_LINES];          /* line << 1 | dirty */
	uint64_t l1_ready_ps[L1_LINES]; /* when a line on its way arrives */
	bool halted;
	struct chase chase;
	struct window window;
	struct streams streams;
	struct bandwidth bandwidth;
} __attribute__((aligned(128)));

struct timing {
	struct timing_params params;
	struct cache cache;
	struct bandwidth_published published[TIMING_MAX_VCPUS];
	struct bandwidth_media media;
	struct vcpu vcpu[];
};

/* One line of one access, on its way through the model. */
struct line_access {
	uint64_t instructions, vaddr, paddr, value;
	bool store, kernel;
};

static inline bool part_on(const struct timing *timing, enum timing_part part)
{
	return timing->params.parts & part;
}

static inline uint64_t vcpu_now(const struct timing *timing, const struct vcpu *vcpu,
				uint64_t instructions)
{
	return instructions * timing->params.instruction_ps + vcpu->offset_ps;
}

/* Counters are read by other threads: whole words, never torn. */
static inline void publish(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

/* An exception in the middle of a block may take a count back a little: time never goes back. */
static inline uint64_t vcpu_forward(const struct vcpu *vcpu, uint64_t instructions)
{
	return instructions > vcpu->counters.instructions ? instructions
							  : vcpu->counters.instructions;
}

static inline void vcpu_publish_clock(struct vcpu *vcpu, uint64_t instructions, uint64_t now_ps)
{
	publish(&vcpu->counters.instructions, instructions);
	publish(&vcpu->counters.clock_ps, now_ps);
	publish(&vcpu->counters.busy_ps, now_ps - vcpu->jumped_ps);
}

static void vcpu_stall(struct vcpu *vcpu, unsigned node, uint64_t stall_ps)
{
	vcpu->offset_ps += stall_ps;
	publish(&vcpu->counters.node[node].stall_ps,
		vcpu->counters.node[node].stall_ps + stall_ps);
}

/* The oldest miss leaves the reorder window; at that instruction it has to be complete. */
static void vcpu_retire(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	struct window_miss miss = window_pop(&vcpu->window);
	uint64_t at_ps = vcpu_now(timing, vcpu, instructions);

	if (miss.completion_ps > at_ps)
		vcpu_stall(vcpu, miss.node, miss.completion_ps - at_ps);
}

/* Set when this vCPU has to be looked at next, even if all its accesses hit in L1. */
static void vcpu_schedule(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	const struct timing_params *params = &timing->params;

	vcpu->attend_at = window_deadline(&vcpu->window);
	if (vcpu->bandwidth.in_use) {
		uint64_t measure_at = instructions + 1 + BANDWIDTH_WINDOW_PS / params->instruction_ps;

		if (measure_at < vcpu->attend_at)
			vcpu->attend_at = measure_at;
	}
}

static void vcpu_measure(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	uint64_t now_ps = vcpu_now(timing, vcpu, instructions);

	if (part_on(timing, TIMING_BANDWIDTH) &&
	    now_ps >= vcpu->bandwidth.measured_ps + BANDWIDTH_WINDOW_PS)
		bandwidth_measure(&vcpu->bandwidth, &timing->params, timing->published,
				  (unsigned)(vcpu - timing->vcpu), now_ps);
}

/* Whatever is due at this instruction count: resume, retire, measure. */
static void vcpu_attend(struct timing *timing, struct vcpu *vcpu, uint64_t instructions)
{
	uint64_t deadline;

	if (vcpu->halted)
		timing_resume(timing, (unsigned)(vcpu - timing->vcpu), instructions);
	while ((deadline = window_deadline(&vcpu->window)) <= instructions)
		vcpu_retire(timing, vcpu, deadline);
	vcpu_measure(timing, vcpu, instructions);
	vcpu_schedule(timing, vcpu, instructions);
}

static unsigned node_of(const struct timing_params *params, uint64_t paddr)
{
	for (unsigned node = 0; node < params->nodes; node++)
		if (paddr >= params->node[node].phys_start && paddr < params->node[node].phys_end)
			return node;
	return NO_NODE;
}

static uint64_t idle_latency_ps(const struct timing_node_params *node, bool store)
{
	return store ? node->write_latency_ps : node->read_latency_ps;
}

/* Move a line to or from memory; returns by how much the node's queue is overfull, in time. */
static uint64_t transfer(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
			 unsigned node, enum bandwidth_direction direction, uint64_t paddr)
{
	struct timing_counters *counters = &vcpu->counters.node[node];
	uint32_t bytes = bandwidth_media_bytes(&timing->media, &timing->params, node, direction,
					       paddr);

	if (direction == BANDWIDTH_READ)
		publish(&counters->read_bytes, counters->read_bytes + bytes);
	else
		publish(&counters->write_bytes, counters->write_bytes + bytes);
	if (!part_on(timing, TIMING_BANDWIDTH))
		return 0;
	vcpu_measure(timing, vcpu, instructions);
	return bandwidth_send(&vcpu->bandwidth, node, direction,
			      vcpu_now(timing, vcpu, instructions), bytes);
}

static void write_back(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
		       uint64_t line)
{
	uint64_t paddr = line << CACHE_LINE_SHIFT;
	unsigned node = node_of(&timing->params, paddr);

	vcpu_stall(vcpu, node,
		   transfer(timing, vcpu, instructions, node, BANDWIDTH_WRITE, paddr));
}

static void count_miss(struct vcpu *vcpu, const struct line_access *access, unsigned node,
		       bool covered)
{
	struct timing_counters *counters = &vcpu->counters.node[node];
	uint64_t *counter = access->kernel  ? &counters->kernel_lines
			    : covered       ? &counters->prefetched_lines
			    : access->store ? &counters->store_misses
					    : &counters->load_misses;

	publish(counter, *counter + 1);
}

/* A load whose value is still on its way: what is computed from it has to wait. */
static void load_pending(struct vcpu *vcpu, const struct line_access *access, uint64_t ready_ps)
{
	if (access->value)
		chase_record(&vcpu->chase, access->value, ready_ps);
	if (ready_ps > vcpu->pending_until_ps)
		vcpu->pending_until_ps = ready_ps;
}

/* A load miss enters the reorder window; returns its latency from when its address was known. */
static uint64_t load_overlapped(struct timing *timing, struct vcpu *vcpu,
				const struct line_access *access, unsigned node,
				uint64_t latency_ps, uint64_t queue_ps)
{
	uint64_t ready_ps, now_ps, start_ps, *buffer;

	if (window_full(&vcpu->window))
		vcpu_retire(timing, vcpu, access->instructions);
	now_ps = vcpu_now(timing, vcpu, access->instructions);
	ready_ps = chase_ready(&vcpu->chase, access->vaddr);
	if (ready_ps < now_ps)
		ready_ps = now_ps;
	start_ps = now_ps + queue_ps > ready_ps ? now_ps + queue_ps : ready_ps;
	buffer = window_fill_buffer(&vcpu->window, ready_ps);
	if (*buffer > start_ps)
		start_ps = *buffer;
	*buffer = start_ps + latency_ps;
	window_push(&vcpu->window, (struct window_miss){access->instructions, *buffer, node});
	vcpu->l1_ready_ps[(access->paddr >> CACHE_LINE_SHIFT) % L1_LINES] = *buffer;
	load_pending(vcpu, access, *buffer);
	return *buffer - ready_ps;
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

/* A line comes from memory. */
static void access_memory(struct timing *timing, struct vcpu *vcpu,
			  const struct line_access *access, unsigned node, bool covered,
			  struct timing_outcome *outcome)
{
	uint64_t queue_ps, latency_ps;

	count_miss(vcpu, access, node, covered);
	queue_ps = transfer(timing, vcpu, access->instructions, node, BANDWIDTH_READ,
			    access->paddr);
	outcome->node = node;
	if (covered) {
		vcpu_stall(vcpu, node, queue_ps);
		outcome->level = TIMING_PREFETCHED;
		outcome->latency_ps = queue_ps;
		return;
	}
	latency_ps = idle_latency_ps(&timing->params.node[node], access->store);
	latency_ps = (uint64_t)(latency_ps * vcpu->bandwidth.latency_factor[node]);
	if (!part_on(timing, TIMING_MLP)) {
		latency_ps += queue_ps;
		vcpu_stall(vcpu, node, latency_ps);
	} else if (access->store) {
		latency_ps = store_overlapped(timing, vcpu, access, node, latency_ps, queue_ps);
	} else {
		latency_ps = load_overlapped(timing, vcpu, access, node, latency_ps, queue_ps);
	}
	outcome->level = TIMING_MEMORY;
	outcome->latency_ps = latency_ps < UINT32_MAX ? latency_ps : UINT32_MAX;
}

/* Pass on to what is loaded from a line on its way, or at an address on its way. */
static void load_hit(struct timing *timing, struct vcpu *vcpu, const struct line_access *access,
		     uint64_t line_ready_ps, struct timing_outcome *outcome)
{
	uint64_t now_ps = vcpu_now(timing, vcpu, access->instructions);
	uint64_t address_ready_ps = chase_ready(&vcpu->chase, access->vaddr);

	if (address_ready_ps < now_ps)
		address_ready_ps = now_ps;
	if (line_ready_ps > address_ready_ps)
		outcome->latency_ps += line_ready_ps - address_ready_ps;
	else
		line_ready_ps = address_ready_ps;
	if (line_ready_ps > now_ps)
		load_pending(vcpu, access, line_ready_ps);
}

static void access_llc_hit(struct timing *timing, struct vcpu *vcpu,
			   const struct line_access *access, bool covered,
			   struct timing_outcome *outcome)
{
	publish(&vcpu->counters.llc_hits, vcpu->counters.llc_hits + 1);
	outcome->level = TIMING_LLC;
	if (covered)
		return; /* the prefetcher has brought it to L1 */
	vcpu->offset_ps += timing->params.llc_hit_ps;
	outcome->latency_ps = timing->params.llc_hit_ps;
	if (!access->store)
		load_hit(timing, vcpu, access, 0, outcome);
}

/* Everything behind the L1 filter. */
static void access_beyond_l1(struct timing *timing, struct vcpu *vcpu,
			     const struct line_access *access, struct timing_outcome *outcome)
{
	uint64_t line = access->paddr >> CACHE_LINE_SHIFT, victim;
	uint64_t *l1 = &vcpu->l1[line % L1_LINES];
	enum cache_result result = CACHE_MISS;
	unsigned node = node_of(&timing->params, access->paddr);
	bool covered;

	if (node == NO_NODE)
		return; /* a device */
	cache_prefetch_set(&timing->cache, line);
	victim = *l1;
	*l1 = line << 1 | access->store;
	vcpu->l1_ready_ps[line % L1_LINES] = 0;
	covered = part_on(timing, TIMING_PREFETCH) &&
		  streams_cover(&vcpu->streams, access->vaddr >> CACHE_LINE_SHIFT);
	if (part_on(timing, TIMING_CACHE)) {
		result = cache_access(&timing->cache, line, access->store, &victim);
		if (result == CACHE_MISS_DIRTY_VICTIM)
			write_back(timing, vcpu, access->instructions, victim);
	} else if (victim != L1_EMPTY && (victim & L1_DIRTY)) {
		write_back(timing, vcpu, access->instructions, victim >> 1);
	}
	if (result == CACHE_HIT)
		access_llc_hit(timing, vcpu, access, covered, outcome);
	else
		access_memory(timing, vcpu, access, node, covered, outcome);
}

/* The first store to a line that loads brought to L1: the copy in the LLC becomes dirty too. */
static void l1_first_store(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
			   uint64_t line)
{
	uint64_t victim;

	vcpu->l1[line % L1_LINES] |= L1_DIRTY;
	if (part_on(timing, TIMING_CACHE) &&
	    cache_access(&timing->cache, line, true, &victim) == CACHE_MISS_DIRTY_VICTIM)
		write_back(timing, vcpu, instructions, victim);
}

static void access_line(struct timing *timing, struct vcpu *vcpu,
			const struct line_access *access, struct timing_outcome *outcome)
{
	uint64_t line = access->paddr >> CACHE_LINE_SHIFT, l1 = vcpu->l1[line % L1_LINES];
	uint64_t before_ps = vcpu->offset_ps - vcpu->jumped_ps;

	if (access->instructions >= vcpu->attend_at)
		vcpu_attend(timing, vcpu, access->instructions);
	*outcome = (struct timing_outcome){.level = TIMING_L1, .node = NO_NODE};
	if (l1 >> 1 != line)
		access_beyond_l1(timing, vcpu, access, outcome);
	else if (!access->store)
		load_hit(timing, vcpu, access, vcpu->l1_ready_ps[line % L1_LINES], outcome);
	else if (!(l1 & L1_DIRTY))
		l1_first_store(timing, vcpu, access->instructions, line);
	vcpu_schedule(timing, vcpu, access->instructions);
	outcome->stall_ps = vcpu->offset_ps - vcpu->jumped_ps - before_ps;
}

/*
 * The common case inline: a hit in L1, nothing due, nothing on its way that a load could need.
 * Scalars, so that the compiler makes a struct of them only for the slow path.
 */
static inline bool hits_l1(const struct vcpu *vcpu, uint64_t instructions, uint64_t now_ps,
			   uint64_t paddr, bool store)
{
	uint64_t line = paddr >> CACHE_LINE_SHIFT, l1 = vcpu->l1[line % L1_LINES];

	return likely((l1 | !store) == (line << 1 | 1)) && likely(instructions < vcpu->attend_at) &&
	       likely(store || now_ps >= vcpu->pending_until_ps);
}

/* The other lines of an access that straddles; what lies on the next page is not known. */
static void access_straddling(struct timing *timing, struct vcpu *vcpu, struct line_access access,
			      uint32_t size, struct timing_outcome *outcome)
{
	uint64_t end = access.paddr + size, page_end = (access.paddr | (PAGE_BYTES - 1)) + 1;
	uint64_t paddr = (access.paddr | (CACHE_LINE_BYTES - 1)) + 1;
	struct timing_outcome next;

	access.value = 0;
	for (; paddr < end && paddr < page_end; paddr += CACHE_LINE_BYTES) {
		access.vaddr += paddr - access.paddr;
		access.paddr = paddr;
		access_line(timing, vcpu, &access, &next);
		next.stall_ps += outcome->stall_ps;
		if (next.latency_ps >= outcome->latency_ps)
			*outcome = next;
		else
			outcome->stall_ps = next.stall_ps;
	}
}

static __attribute__((noinline)) void access_slow(struct timing *timing, struct vcpu *vcpu,
						  uint64_t instructions, uint64_t vaddr,
						  uint64_t paddr, uint32_t size, uint32_t flags,
						  uint64_t value, struct timing_outcome *outcome)
{
	struct line_access access = {
		.instructions = instructions,
		.vaddr = vaddr,
		.paddr = paddr,
		.value = size >= sizeof(value) ? value : 0,
		.store = flags & TIMING_STORE,
		.kernel = flags & TIMING_KERNEL_MODE,
	};

	access_line(timing, vcpu, &access, outcome);
	if ((paddr % CACHE_LINE_BYTES) + size > CACHE_LINE_BYTES)
		access_straddling(timing, vcpu, access, size, outcome);
	vcpu_publish_clock(vcpu, instructions, vcpu_now(timing, vcpu, instructions));
}

void timing_access(struct timing *timing, unsigned vcpu_index, uint64_t instructions,
		   uint64_t vaddr, uint64_t paddr, uint32_t size, uint32_t flags, uint64_t value,
		   struct timing_outcome *outcome)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	bool store = flags & TIMING_STORE;
	uint64_t *count = store ? &vcpu->counters.stores : &vcpu->counters.loads;
	uint64_t now_ps;

	instructions = vcpu_forward(vcpu, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	*outcome = (struct timing_outcome){.level = TIMING_L1, .node = NO_NODE};
	if ((flags & TIMING_KERNEL_MODE) && !part_on(timing, TIMING_KERNEL))
		return;
	publish(count, *count + 1);
	if (hits_l1(vcpu, instructions, now_ps, paddr, store) &&
	    likely((paddr % CACHE_LINE_BYTES) + size <= CACHE_LINE_BYTES))
		vcpu_publish_clock(vcpu, instructions, now_ps);
	else
		access_slow(timing, vcpu, instructions, vaddr, paddr, size, flags, value, outcome);
}

bool timing_hit(struct timing *timing, unsigned vcpu_index, uint64_t instructions, uint64_t paddr,
		uint32_t flags)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];
	bool store = flags & TIMING_STORE;
	uint64_t *count = store ? &vcpu->counters.stores : &vcpu->counters.loads;
	uint64_t now_ps;

	instructions = vcpu_forward(vcpu, instructions);
	now_ps = vcpu_now(timing, vcpu, instructions);
	if ((flags & TIMING_KERNEL_MODE) && !part_on(timing, TIMING_KERNEL))
		return false;
	if (!hits_l1(vcpu, instructions, now_ps, paddr, store))
		return false;
	publish(count, *count + 1);
	vcpu_publish_clock(vcpu, instructions, now_ps);
	return true;
}

void timing_idle(struct timing *timing, unsigned vcpu_index, uint64_t instructions)
{
	struct vcpu *vcpu = &timing->vcpu[vcpu_index];

	if (vcpu->halted)
		return;
	instructions = vcpu_forward(vcpu, instructions);
	vcpu_attend(timing, vcpu, instructions);
	while (vcpu->window.count) /* a halt waits for what is on its way */
		vcpu_retire(timing, vcpu, instructions);
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
	vcpu_schedule(timing, vcpu, instructions);
	vcpu_publish_clock(vcpu, instructions, now_ps);
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
		uint64_t vcpu_ps = __atomic_load_n(&timing->vcpu[i].counters.clock_ps,
						   __ATOMIC_RELAXED);

		if (vcpu_ps > clock_ps)
			clock_ps = vcpu_ps;
	}
	return clock_ps;
}

const struct timing_vcpu_counters *timing_counters_of(const struct timing *timing, unsigned vcpu)
{
	return &timing->vcpu[vcpu].counters;
}

static void vcpu_init(struct vcpu *vcpu, const struct timing_params *params)
{
	memset(vcpu->l1, 0xff, sizeof(vcpu->l1));
	vcpu->halted = true; /* until its first access */
	chase_init(&vcpu->chase, params->chase_span_bytes);
	window_init(&vcpu->window, params->mshrs, params->rob_instructions);
	streams_init(&vcpu->streams, params->prefetch_streams);
	bandwidth_init(&vcpu->bandwidth, params);
}

struct timing *timing_new(const struct timing_params *params, const char **why)
{
	size_t size = sizeof(struct timing) + params->vcpus * sizeof(struct vcpu);
	struct timing *timing;

	*why = params_wrong(params);
	if (*why)
		return NULL;
	*why = "out of memory";
	timing = aligned_alloc(_Alignof(struct timing), size);
	if (!timing)
		return NULL;
	memset(timing, 0, size);
	timing->params = *params;
	if (!cache_init(&timing->cache, params->llc_bytes, params->llc_ways)) {
		free(timing);
		return NULL;
	}
	for (uint32_t i = 0; i < params->vcpus; i++)
		vcpu_init(&timing->vcpu[i], params);
	*why = NULL;
	return timing;
}

void timing_free(struct timing *timing)
{
	if (!timing)
		return;
	cache_free(&timing->cache);
	free(timing);
}
