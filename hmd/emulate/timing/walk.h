/* SPDX-License-Identifier: MIT */
/*
 * Address translation: what an access of user mode waits for before its address is known.
 *
 * Upper levels of the page table are taken to be in the CPU's paging-structure caches. The leaf
 * entry comes through the last-level cache like any other line: where it is there, the walk takes
 * walk_ps; else it is read from the node that the page table lies on, and the access depends on it.
 */
#ifndef HMD_TIMING_WALK_H
#define HMD_TIMING_WALK_H

#include "vcpu.h"

#pragma GCC visibility push(hidden)

struct translation {
	uint32_t how;         /* TIMING_STLB_HIT, TIMING_WALK or 0 */
	struct arrival table; /* of a leaf entry on its way from memory, else 0 */
	uint32_t latency_ps;  /* of the leaf entry */
};

/* Translate the address of an access; `covered`: the prefetcher has done so before. */
struct translation walk_translate(struct timing *timing, struct vcpu *vcpu,
				  const struct line_access *access, bool covered);

#pragma GCC visibility pop

#endif
