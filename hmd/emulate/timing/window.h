/* SPDX-License-Identifier: MIT */
/*
 * Memory-level parallelism of one vCPU: the reorder window and the miss-status registers.
 *
 * Load misses sit in the window in program order until they complete; the instruction that is
 * `rob_instructions` younger cannot enter before. Only here does a load stall the clock, exactly at
 * that instruction. A miss starts at dispatch, or when the value that its address was computed
 * from arrives (chase.h), and when a line fill buffer is free. So independent misses overlap up to
 * `mshrs`, a chain does not, and several chains overlap with one another, as on an out-of-order
 * core.
 */
#ifndef HMD_TIMING_WINDOW_H
#define HMD_TIMING_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define WINDOW_MAX_MSHRS 64
#define WINDOW_MAX_INSTRUCTIONS 1024
#define WINDOW_SLOTS WINDOW_MAX_INSTRUCTIONS /* a power of two */

struct window_miss {
	uint64_t instruction, completion_ps;
	uint32_t node;
};

struct window {
	uint32_t mshrs, instructions;
	uint32_t head, count;
	uint64_t free_ps[WINDOW_MAX_MSHRS];    /* when each fill buffer is free again */
	struct window_miss miss[WINDOW_SLOTS]; /* ring, oldest at head */
};

void window_init(struct window *window, uint32_t mshrs, uint32_t instructions);

/* The fill buffer for a miss that could start at ready_ps; it starts at max(ready_ps, *buffer). */
uint64_t *window_fill_buffer(struct window *window, uint64_t ready_ps);

/* Instruction count at which the oldest miss has to be complete; UINT64_MAX when there is none. */
static inline uint64_t window_deadline(const struct window *window)
{
	if (!window->count)
		return UINT64_MAX;
	return window->miss[window->head].instruction + window->instructions;
}

static inline bool window_full(const struct window *window)
{
	return window->count == WINDOW_SLOTS;
}

static inline struct window_miss window_pop(struct window *window)
{
	struct window_miss oldest = window->miss[window->head];

	window->head = (window->head + 1) % WINDOW_SLOTS;
	window->count--;
	return oldest;
}

static inline void window_push(struct window *window, struct window_miss miss)
{
	window->miss[(window->head + window->count) % WINDOW_SLOTS] = miss;
	window->count++;
}

#pragma GCC visibility pop

#endif
