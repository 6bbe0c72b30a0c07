/* SPDX-License-Identifier: MIT */
/*
 * Memory behind the last-level cache: the cost of a line that is read from a node or written to it.
 *
 * Combines the reorder window, the fill buffers and the bandwidth. It knows neither caches,
 * translation nor pointer chases: the caller passes the time at which an address is known.
 */
#ifndef HMD_TIMING_MEMORY_H
#define HMD_TIMING_MEMORY_H

#include "vcpu.h"

#pragma GCC visibility push(hidden)

/*
 * A line comes from memory. `covered`: the prefetcher has asked for it before. `address` is when
 * a load's address is known; returns when its value arrives (0 for what no one waits for).
 */
struct arrival memory_read(struct timing *timing, struct vcpu *vcpu,
			   const struct line_access *access, unsigned node, bool covered,
			   struct arrival address, struct timing_outcome *outcome);

/* The oldest miss leaves the reorder window; at that instruction it has to be complete. */
void memory_retire(struct timing *timing, struct vcpu *vcpu, uint64_t instructions);

/* Measure the bandwidth in use, if it is due. */
void memory_measure(struct timing *timing, struct vcpu *vcpu, uint64_t instructions);

/* Call the observer, if there is one. */
void memory_observe(const struct timing *timing, struct vcpu *vcpu, struct timing_miss miss);

/* A dirty line goes to memory. */
void memory_write_back(struct timing *timing, struct vcpu *vcpu, uint64_t instructions,
		       uint64_t line);

/* Everything on its way to this vCPU arrives, before it halts. */
void memory_drain(struct timing *timing, struct vcpu *vcpu, uint64_t instructions);

#pragma GCC visibility pop

#endif
