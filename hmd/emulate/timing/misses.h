/* SPDX-License-Identifier: MIT */
/* Replay of one CPU's recorded misses; threads.c replays those of several. */
#ifndef HMD_TIMING_MISSES_H
#define HMD_TIMING_MISSES_H

#include "memory.h"

#pragma GCC visibility push(hidden)

/* As timing_replay_misses(), on any vCPU and no further than to a row. */
void misses_replay(struct timing *timing, struct vcpu *vcpu, const struct timing_misses *misses,
		   struct timing_progress *progress, uint64_t until_row, uint64_t until_ps);

#pragma GCC visibility pop

#endif
