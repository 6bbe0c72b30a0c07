/* SPDX-License-Identifier: MIT */
/* A model: made from its parameters, given an observer, read, and freed. */
#include <stdlib.h>
#include <string.h>

#include "params.h"
#include "timing.h"
#include "vcpu.h"

const struct timing_vcpu_counters *timing_counters_of(const struct timing *timing, unsigned vcpu)
{
	return &timing->vcpu[vcpu].counters;
}

static void vcpu_init(struct vcpu *vcpu, const struct timing_params *params, struct cache *cache)
{
	vcpu->cache = cache;
	memset(vcpu->l1, 0xff, sizeof(vcpu->l1));
	vcpu->halted = true; /* until its first access */
	chase_init(&vcpu->chase, params->chase_span_bytes);
	window_init(&vcpu->window, params->mshrs, params->rob_instructions);
	streams_init(&vcpu->streams, params->prefetch_streams);
	bandwidth_init(&vcpu->bandwidth, params);
	tlb_init(&vcpu->tlb, params);
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
	for (uint32_t i = 0; i < params->llcs; i++) {
		bool shared = i + params->llcs < params->vcpus;
		bool differs = i == 0 && params->first_llc_bytes;
		uint32_t bytes = differs ? params->first_llc_bytes : params->llc_bytes;

		if (!cache_init(&timing->cache[i], bytes, params->llc_ways, shared)) {
			timing_free(timing);
			return NULL;
		}
	}
	for (uint32_t i = 0; i < params->vcpus; i++)
		vcpu_init(&timing->vcpu[i], params, &timing->cache[i % params->llcs]);
	*why = NULL;
	return timing;
}

void timing_observe(struct timing *timing, timing_observer *observer, void *context)
{
	timing->observer = observer;
	timing->observer_context = context;
}

void timing_free(struct timing *timing)
{
	if (!timing)
		return;
	for (uint32_t i = 0; i < timing->params.llcs; i++)
		cache_free(&timing->cache[i]);
	free(timing);
}
