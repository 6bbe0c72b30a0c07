#include "stream.h"

#define STREAM_CONFIDENT 2
#define STREAM_MAX_STRIDE 8
/* Lines of a stream that are in the L1 filter already do not reach the prefetcher. */
#define STREAM_MAX_SKIP 4
#define STREAM_REACH (STREAM_MAX_STRIDE * STREAM_MAX_SKIP)
/* A confident stream outlives this many misses elsewhere before its place is taken. */
#define STREAM_BONUS 4096

void streams_init(struct streams *streams, uint32_t count)
{
	streams->count = count;
	for (uint32_t i = 0; i < count; i++)
		streams->last[i] = UINT64_MAX / 2; /* far from any line */
}

static bool stream_near(const struct streams *streams, uint32_t i, uint64_t line)
{
	return line - streams->last[i] + STREAM_REACH <= 2 * STREAM_REACH;
}

/* Whether a confident stream runs over this line next: it, or the few after it. */
static bool stream_follows(const struct streams *streams, uint32_t i, uint64_t line)
{
	int64_t distance = (int64_t)(line - streams->last[i]);

	if (streams->confidence[i] < STREAM_CONFIDENT)
		return false;
	for (int64_t steps = 0; steps <= STREAM_MAX_SKIP; steps++)
		if (distance == steps * streams->stride[i])
			return true;
	return false;
}

static void stream_advance(struct streams *streams, uint32_t i, uint64_t line)
{
	streams->recent = i;
	streams->used[i] = streams->clock + STREAM_BONUS;
	streams->last[i] = line;
}

/* One more access near a stream that is not confident yet. */
static void stream_train(struct streams *streams, uint32_t i, uint64_t line)
{
	int64_t distance = (int64_t)(line - streams->last[i]);

	streams->used[i] = streams->clock;
	if (distance == 0)
		return;
	if (distance == streams->stride[i]) {
		streams->confidence[i]++;
	} else {
		bool small = distance >= -STREAM_MAX_STRIDE && distance <= STREAM_MAX_STRIDE;

		streams->stride[i] = small ? distance : 0;
		streams->confidence[i] = small;
	}
	streams->last[i] = line;
}

static void stream_start(struct streams *streams, uint32_t i, uint64_t line)
{
	streams->last[i] = line;
	streams->stride[i] = 0;
	streams->confidence[i] = 0;
	streams->used[i] = streams->clock;
}

bool streams_cover(struct streams *streams, uint64_t line)
{
	uint32_t oldest = 0, training = STREAM_MAX;

	streams->clock++;
	if (stream_near(streams, streams->recent, line) &&
	    stream_follows(streams, streams->recent, line)) {
		stream_advance(streams, streams->recent, line);
		return true;
	}
	for (uint32_t i = 0; i < streams->count; i++) {
		if (stream_near(streams, i, line)) {
			if (stream_follows(streams, i, line)) {
				stream_advance(streams, i, line);
				return true;
			}
			if (streams->confidence[i] < STREAM_CONFIDENT)
				training = i;
		}
		if (streams->used[i] < streams->used[oldest])
			oldest = i;
	}
	if (training < STREAM_MAX)
		stream_train(streams, training, line);
	else
		stream_start(streams, oldest, line);
	return false;
}
