/* SPDX-License-Identifier: MIT */
/*
 * Bandwidth of the nodes: the cost of traffic, and latency under load.
 *
 * vCPUs run at unequal speed on the host, so there is no shared clock for queueing. Each vCPU
 * measures and publishes its own rate per node and direction on its own modelled clock. From the
 * others' rates follow its share (a leaky bucket with a queue of 64 lines, beyond which it waits)
 * and the node's utilisation (which raises idle latency by the node's curve).
 */
#ifndef HMD_TIMING_BANDWIDTH_H
#define HMD_TIMING_BANDWIDTH_H

#include "timing.h"

#pragma GCC visibility push(hidden)

/* Interval of a vCPU's measurements, and the time over which it averages; modelled time. */
#define BANDWIDTH_WINDOW_PS 1000000ull
#define BANDWIDTH_AVERAGE_PS 4000000ull
/*
 * Requests that a memory controller queues before requesters wait. Intel's holds 22 reads and 32
 * writes per channel (Xeon E5-2600 Uncore Performance Monitoring, RPQ_OCCUPANCY and WPQ_OCCUPANCY).
 */
#define BANDWIDTH_QUEUE_BYTES (64 * 64)
/*
 * Optane's XPBuffer: 16 KiB, 64 granules of 256 bytes (Yang et al., FAST '20). Its associativity is
 * not published. With one place per granule two streams would displace each other's over whole
 * pages, or never, depending on the distance of their frames.
 */
#define BANDWIDTH_MEDIA_SETS 16
#define BANDWIDTH_MEDIA_WAYS 4

enum bandwidth_direction { BANDWIDTH_READ, BANDWIDTH_WRITE, BANDWIDTH_DIRECTIONS };

/* Rates that one vCPU publishes. */
struct bandwidth_published {
	_Alignas(64) double bytes_per_ps[TIMING_MAX_NODES][BANDWIDTH_DIRECTIONS];
	uint32_t running;
};

struct bandwidth_bucket {
	double level_bytes;
	uint64_t drained_ps;          /* the level is as of this time */
	double bytes_per_ps;          /* allotment */
	double measured_bytes_per_ps; /* exponential average */
	uint64_t window_bytes;
};

/* The buffers of the nodes' media, which all vCPUs share: granule + 1, 0 for none; newest first. */
struct bandwidth_media {
	uint64_t granule[TIMING_MAX_NODES][BANDWIDTH_DIRECTIONS][BANDWIDTH_MEDIA_SETS]
			[BANDWIDTH_MEDIA_WAYS];
};

struct bandwidth {
	uint64_t measured_ps; /* when the last window ended */
	bool in_use;          /* traffic in this window, or a decaying rate */
	double latency_factor[TIMING_MAX_NODES];
	struct bandwidth_bucket bucket[TIMING_MAX_NODES][BANDWIDTH_DIRECTIONS];
};

void bandwidth_init(struct bandwidth *bandwidth, const struct timing_params *params);

/* Bytes that the media moves for one line: the granule, unless it lies in the media's buffer. */
uint32_t bandwidth_media_bytes(struct bandwidth_media *media, const struct timing_params *params,
			       unsigned node, enum bandwidth_direction direction, uint64_t paddr);

/* Send bytes at now_ps; returns by how much the queue is overfull, in time. */
uint64_t bandwidth_send(struct bandwidth *bandwidth, unsigned node,
			enum bandwidth_direction direction, uint64_t now_ps, uint32_t bytes);

/* End the window: measure, publish, read the others' rates. */
void bandwidth_measure(struct bandwidth *bandwidth, const struct timing_params *params,
		       struct bandwidth_published *published, unsigned vcpu, uint64_t now_ps);

/* A vCPU that halts moves nothing; one that resumes starts a new window. */
void bandwidth_halt(struct bandwidth *bandwidth, struct bandwidth_published *published);
void bandwidth_resume(struct bandwidth *bandwidth, struct bandwidth_published *published,
		      uint64_t now_ps);

/* Loaded over idle latency at a utilisation. */
double bandwidth_curve(const struct timing_node_params *node, double utilisation);

#pragma GCC visibility pop

#endif
