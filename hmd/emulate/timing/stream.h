/* SPDX-License-Identifier: MIT */
/*
 * The stride prefetcher of one vCPU, trained by the misses of its L1 filter.
 *
 * A stream is a last line, a stride of up to 8 lines either way and a confidence. Two equal
 * strides make it confident; from then on its lines are there when they are asked for, so a
 * stream pays bandwidth and no latency. Lines are virtual, so that a stream runs on into the
 * next page: Intel's streamer stops at 4 KiB, but its next-page prefetcher (Ivy Bridge on) and
 * its quick retraining hide that (Intel 64 and IA-32 Architectures Optimization Reference
 * Manual, "Data Prefetching"; there 32 streams, one forward or backward per page).
 */
#ifndef HMD_TIMING_STREAM_H
#define HMD_TIMING_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define STREAM_MAX 32

struct streams {
	_Alignas(16) uint32_t last[STREAM_MAX]; /* virtual line, its low half */
	int8_t stride[STREAM_MAX];              /* lines */
	uint8_t confidence[STREAM_MAX];
	uint8_t chances[STREAM_MAX]; /* rounds of the hand that it will survive */
	uint32_t count;
	uint32_t recent; /* the stream that was used last: tried first */
	uint32_t hand;   /* where the next stream will start */
};

void streams_init(struct streams *streams, uint32_t count);

/* Whether the prefetcher has brought this line; trains it. */
bool streams_cover(struct streams *streams, uint64_t line);

#pragma GCC visibility pop

#endif
