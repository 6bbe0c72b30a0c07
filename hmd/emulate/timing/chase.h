/* SPDX-License-Identifier: MIT */
/*
 * Pointer-chase detection of one vCPU: which loaded value an address was computed from.
 *
 * A value in flight from memory is kept until newer ones replace it. An access at an address up to
 * `span` bytes after such a value depends on it (a field of the object pointed to). Values are
 * hashed by their block of `span` bytes, so that a look-up costs two probes; a slot has four
 * entries, because a lost value breaks its chain. Indices (a[b[i]]) are not detected: the address
 * is not near the value.
 */
#ifndef HMD_TIMING_CHASE_H
#define HMD_TIMING_CHASE_H

#include <stdint.h>

#define CHASE_SLOTS 64
#define CHASE_WAYS 4
/* No object lies below vm.mmap_min_addr (65536 by default): small numbers are no pointers. */
#define CHASE_MIN_POINTER 65536

/* Arrival time of a value in flight, and the number of the load miss that fetches it. */
struct arrival {
	uint64_t ready_ps, miss;
};

struct chase {
	uint32_t span, shift; /* span <= 1 << shift */
	struct chase_value {
		uint64_t value;
		struct arrival arrival;
	} value[CHASE_SLOTS][CHASE_WAYS]; /* newest first */
};

static inline void chase_init(struct chase *chase, uint32_t span)
{
	chase->span = span;
	while ((1ull << chase->shift) < span)
		chase->shift++;
}

static inline struct chase_value *chase_slot(struct chase *chase, uint64_t block)
{
	return chase->value[(block * 0x9e3779b97f4a7c15ull) >> 58];
}

/* Arrival time of the value that `vaddr` was computed from; 0 if it depends on none. */
static inline struct arrival chase_ready(struct chase *chase, uint64_t vaddr)
{
	uint64_t block = vaddr >> chase->shift;

	for (uint64_t before = 0; before < 2; before++) {
		const struct chase_value *slot = chase_slot(chase, block - before);

		for (int way = 0; way < CHASE_WAYS; way++)
			if (vaddr - slot[way].value < chase->span)
				return slot[way].arrival;
	}
	return (struct arrival){ 0 };
}

static inline void chase_record(struct chase *chase, uint64_t value, struct arrival arrival)
{
	struct chase_value *slot = chase_slot(chase, value >> chase->shift);

	if (value < CHASE_MIN_POINTER)
		return;
	if (slot[0].value != value)
		for (int way = CHASE_WAYS - 1; way; way--)
			slot[way] = slot[way - 1];
	slot[0] = (struct chase_value){ value, arrival };
}

#endif
