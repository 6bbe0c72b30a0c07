/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "stream.h"

#define STREAM_CONFIDENT 2
#define STREAM_MAX_STRIDE 8
/* Lines of a stream that are in the L1 filter already do not reach the prefetcher. */
#define STREAM_MAX_SKIP 4
#define STREAM_REACH (STREAM_MAX_STRIDE * STREAM_MAX_SKIP)
/* Rounds of misses elsewhere that a confident stream survives before it is replaced. */
#define STREAM_CHANCES 255

typedef uint32_t stream_lanes __attribute__((vector_size(16), may_alias));

void streams_init(struct streams *streams, uint32_t count)
{
	memset(streams, 0, sizeof(*streams));
	streams->count = count;
	for (uint32_t i = 0; i < STREAM_MAX; i++)
		streams->last[i] = UINT32_MAX / 2; /* far from the first lines of a program */
}

/* The streams that are near the line, one bit each. */
static uint32_t streams_near(const struct streams *streams, uint32_t line)
{
	stream_lanes near = { 0 }, bit = { 1, 2, 4, 8 };

	for (uint32_t i = 0; i < streams->count; i += 4, bit <<= 4) {
		stream_lanes distance =
			line + STREAM_REACH - *(const stream_lanes *)&streams->last[i];

		near |= (stream_lanes)(distance <= 2 * STREAM_REACH) & bit;
	}
	return near[0] | near[1] | near[2] | near[3];
}

/* Whether a confident stream runs over this line next: it, or the few after it. */
static bool stream_follows(const struct streams *streams, uint32_t i, uint32_t line)
{
	int32_t distance = (int32_t)(line - streams->last[i]);

	if (streams->confidence[i] < STREAM_CONFIDENT)
		return false;
	for (int32_t steps = 0; steps <= STREAM_MAX_SKIP; steps++)
		if (distance == steps * streams->stride[i])
			return true;
	return false;
}

static void stream_advance(struct streams *streams, uint32_t i, uint32_t line)
{
	streams->recent = i;
	streams->chances[i] = STREAM_CHANCES;
	streams->last[i] = line;
}

/* One more access near a stream that is not confident yet. */
static void stream_train(struct streams *streams, uint32_t i, uint32_t line)
{
	int32_t distance = (int32_t)(line - streams->last[i]);
	bool small = distance >= -STREAM_MAX_STRIDE && distance <= STREAM_MAX_STRIDE;

	if (distance == 0)
		return;
	if (distance == streams->stride[i]) {
		streams->confidence[i]++;
	} else {
		streams->stride[i] = small ? distance : 0;
		streams->confidence[i] = small;
	}
	streams->last[i] = line;
}

static void stream_start(struct streams *streams, uint32_t line)
{
	uint32_t i = streams->hand;

	while (streams->chances[i]) {
		streams->chances[i]--;
		i = i + 1 < streams->count ? i + 1 : 0;
	}
	streams->hand = i + 1 < streams->count ? i + 1 : 0;
	streams->last[i] = line;
	streams->stride[i] = 0;
	streams->confidence[i] = 0;
}

bool streams_cover(struct streams *streams, uint64_t virtual_line)
{
	uint32_t line = (uint32_t)virtual_line, near, training = STREAM_MAX;

	if (stream_follows(streams, streams->recent, line)) {
		stream_advance(streams, streams->recent, line);
		return true;
	}
	for (near = streams_near(streams, line); near; near &= near - 1) {
		uint32_t i = __builtin_ctz(near);

		if (stream_follows(streams, i, line)) {
			stream_advance(streams, i, line);
			return true;
		}
		if (streams->confidence[i] < STREAM_CONFIDENT)
			training = i;
	}
	if (training < STREAM_MAX)
		stream_train(streams, training, line);
	else
		stream_start(streams, line);
	return false;
}
