/* SPDX-License-Identifier: MIT */
#include <stddef.h>

#include "cache.h"
#include "params.h"
#include "stream.h"
#include "tlb.h"
#include "window.h"

#define TEXT(x) #x
#define VALUE(x) TEXT(x)

static const char *curve_wrong(const struct timing_node_params *node)
{
	double utilisation = 0, factor = 1;

	if (node->curve_points > TIMING_CURVE_POINTS)
		return "curve_points must be at most " VALUE(TIMING_CURVE_POINTS);
	for (uint32_t i = 0; i < node->curve_points; i++) {
		if (!(node->curve_utilisation[i] > utilisation))
			return "curve_utilisation must be above 0 and ascend";
		if (!(node->curve_factor[i] >= factor) || !(node->curve_factor[i] <= 1000))
			return "curve_factor must be 1 to 1000 and not descend";
		utilisation = node->curve_utilisation[i];
		factor = node->curve_factor[i];
	}
	return NULL;
}

static const char *node_wrong(const struct timing_node_params *node)
{
	uint32_t granularity = node->access_granularity;

	if (node->phys_start >= node->phys_end)
		return "phys_start must be below phys_end";
	if (node->phys_end > CACHE_PHYS_LIMIT)
		return "phys_end must be below 128 GiB";
	if (!node->read_latency_ps || !node->write_latency_ps)
		return "read_latency_ps and write_latency_ps must be above 0";
	if (!(node->read_bytes_per_ns >= 0.01) || !(node->read_bytes_per_ns <= 100000))
		return "read_bytes_per_ns must be 0.01 to 100000";
	if (!(node->write_bytes_per_ns >= 0.01) || !(node->write_bytes_per_ns <= 100000))
		return "write_bytes_per_ns must be 0.01 to 100000";
	if (granularity < 64 || granularity > 4096 || (granularity & (granularity - 1)))
		return "access_granularity must be a power of two from 64 to 4096";
	return curve_wrong(node);
}

static const char *nodes_overlap(const struct timing_params *params)
{
	for (uint32_t i = 0; i < params->nodes; i++)
		for (uint32_t j = 0; j < i; j++)
			if (params->node[i].phys_start < params->node[j].phys_end &&
			    params->node[j].phys_start < params->node[i].phys_end)
				return "phys_start and phys_end of two nodes overlap";
	return NULL;
}

static bool llc_bytes_wrong(uint32_t bytes, uint32_t ways)
{
	return bytes < CACHE_LINE_BYTES * ways || bytes % (CACHE_LINE_BYTES * ways);
}

static const char *llc_wrong(const struct timing_params *params)
{
	if (params->llcs < 1 || params->llcs > params->vcpus)
		return "llcs must be 1 to vcpus";
	if (params->llc_ways < 1 || params->llc_ways > CACHE_MAX_WAYS)
		return "llc_ways must be 1 to " VALUE(CACHE_MAX_WAYS);
	if (llc_bytes_wrong(params->llc_bytes, params->llc_ways))
		return "llc_bytes must be a multiple of 64 * llc_ways, and not 0";
	if (params->first_llc_bytes && llc_bytes_wrong(params->first_llc_bytes, params->llc_ways))
		return "first_llc_bytes must be a multiple of 64 * llc_ways, or 0";
	return NULL;
}

/* A whole number of sets, which is a power of two. */
static bool array_wrong(uint32_t entries, uint32_t ways, uint32_t most)
{
	uint32_t sets = ways ? entries / ways : 0;

	return ways > TLB_MAX_WAYS || entries > most || !sets || entries % ways ||
	       (sets & (sets - 1));
}

static const char *tlb_wrong(const struct timing_params *params)
{
	if (!params->tlb_entries)
		return NULL;
	if (array_wrong(params->tlb_entries, params->tlb_ways, TLB_MAX_FIRST))
		return "tlb_entries must be tlb_ways times a power of two, at most " VALUE(
			TLB_MAX_FIRST);
	if (array_wrong(params->tlb_huge_entries, params->tlb_huge_ways, TLB_MAX_FIRST))
		return "tlb_huge_entries must be tlb_huge_ways times a power of two, at "
		       "most " VALUE(TLB_MAX_FIRST);
	if (array_wrong(params->stlb_entries, params->stlb_ways, TLB_MAX_SECOND))
		return "stlb_entries must be stlb_ways times a power of two, at most " VALUE(
			TLB_MAX_SECOND);
	return NULL;
}

const char *params_wrong(const struct timing_params *params)
{
	const char *why;

	if (params->nodes < 1 || params->nodes > TIMING_MAX_NODES)
		return "nodes must be 1 to " VALUE(TIMING_MAX_NODES);
	if (params->vcpus < 1 || params->vcpus > TIMING_MAX_VCPUS)
		return "vcpus must be 1 to " VALUE(TIMING_MAX_VCPUS);
	if (params->parts & ~(uint32_t)TIMING_ALL)
		return "parts has a bit that is no enum timing_part";
	if (params->instruction_ps < 1 || params->instruction_ps > 1000000)
		return "instruction_ps must be 1 to 1000000";
	if (params->mshrs < 1 || params->mshrs > WINDOW_MAX_MSHRS)
		return "mshrs must be 1 to " VALUE(WINDOW_MAX_MSHRS);
	if (params->rob_instructions < 1 || params->rob_instructions > WINDOW_MAX_INSTRUCTIONS)
		return "rob_instructions must be 1 to " VALUE(WINDOW_MAX_INSTRUCTIONS);
	if (params->chase_span_bytes > 65536)
		return "chase_span_bytes must be at most 65536";
	if (params->prefetch_streams < 1 || params->prefetch_streams > STREAM_MAX)
		return "prefetch_streams must be 1 to " VALUE(STREAM_MAX);
	if (params->sample_buffer_records < 1)
		return "sample_buffer_records must be at least 1";
	why = llc_wrong(params);
	if (!why)
		why = tlb_wrong(params);
	for (uint32_t i = 0; i < params->nodes && !why; i++)
		why = node_wrong(&params->node[i]);
	return why ? why : nodes_overlap(params);
}
