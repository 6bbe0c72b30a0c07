/* SPDX-License-Identifier: MIT */
#include "bandwidth.h"

/* Beyond its last point a curve goes on this steeply, to this multiple of the last factor. */
#define CURVE_TAIL_SLOPE 8.0
#define CURVE_TAIL_LIMIT 2.0
/* An average below this share of the peak has faded. */
#define RATE_FADED 1e-4

static double node_peak(const struct timing_node_params *node, enum bandwidth_direction direction)
{
	return (direction == BANDWIDTH_READ ? node->read_bytes_per_ns : node->write_bytes_per_ns) /
	       1000;
}

static double read_rate(const double *rate)
{
	double value;

	__atomic_load(rate, &value, __ATOMIC_RELAXED);
	return value;
}

static void write_rate(double *rate, double value)
{
	__atomic_store(rate, &value, __ATOMIC_RELAXED);
}

void bandwidth_init(struct bandwidth *bandwidth, const struct timing_params *params)
{
	for (unsigned node = 0; node < params->nodes; node++) {
		bandwidth->latency_factor[node] = 1;
		for (int d = 0; d < BANDWIDTH_DIRECTIONS; d++)
			bandwidth->bucket[node][d].bytes_per_ps = node_peak(&params->node[node], d);
	}
}

/* One of 16 sets, by a hash that is not linear: two streams do not collide over whole pages. */
static unsigned media_set(uint64_t granule)
{
	granule *= 0x9e3779b97f4a7c15ull;
	granule ^= granule >> 32;
	return (granule * 0x9e3779b97f4a7c15ull) >> 60;
}

/* First in, first out. Two vCPUs may both miss a granule and both fetch it, as on the real bus. */
static bool media_holds(uint64_t *way, uint64_t granule)
{
	uint64_t kept[BANDWIDTH_MEDIA_WAYS];

	for (unsigned i = 0; i < BANDWIDTH_MEDIA_WAYS; i++) {
		kept[i] = __atomic_load_n(&way[i], __ATOMIC_RELAXED);
		if (kept[i] == granule)
			return true;
	}
	for (unsigned i = 1; i < BANDWIDTH_MEDIA_WAYS; i++)
		__atomic_store_n(&way[i], kept[i - 1], __ATOMIC_RELAXED);
	__atomic_store_n(&way[0], granule, __ATOMIC_RELAXED);
	return false;
}

uint32_t bandwidth_media_bytes(struct bandwidth_media *media, const struct timing_params *params,
			       unsigned node, enum bandwidth_direction direction, uint64_t paddr)
{
	uint32_t bytes = params->node[node].access_granularity;
	uint64_t granule;

	if (bytes <= 64)
		return 64;
	granule = paddr / bytes + 1;
	return media_holds(media->granule[node][direction][media_set(granule)], granule) ? 0
											 : bytes;
}

uint64_t bandwidth_send(struct bandwidth *bandwidth, unsigned node,
			enum bandwidth_direction direction, uint64_t now_ps, uint32_t bytes)
{
	struct bandwidth_bucket *bucket = &bandwidth->bucket[node][direction];
	double level = bucket->level_bytes;

	level -= (double)(now_ps - bucket->drained_ps) * bucket->bytes_per_ps;
	level = (level > 0 ? level : 0) + bytes;
	bucket->level_bytes = level;
	bucket->drained_ps = now_ps;
	bucket->window_bytes += bytes;
	bandwidth->in_use = true;
	if (level <= BANDWIDTH_QUEUE_BYTES)
		return 0;
	return (uint64_t)((level - BANDWIDTH_QUEUE_BYTES) / bucket->bytes_per_ps);
}

double bandwidth_curve(const struct timing_node_params *node, double utilisation)
{
	double from = 0, factor = 1; /* idle */

	for (uint32_t i = 0; i < node->curve_points; i++) {
		double to = node->curve_utilisation[i];

		if (utilisation < to)
			return factor + (node->curve_factor[i] - factor) * (utilisation - from) /
						(to - from);
		from = to;
		factor = node->curve_factor[i];
	}
	if (!node->curve_points)
		return 1;

	double tail = 1 + CURVE_TAIL_SLOPE * (utilisation - from);

	return factor * (tail < CURVE_TAIL_LIMIT ? tail : CURVE_TAIL_LIMIT);
}

static double measure_bucket(struct bandwidth_bucket *bucket, uint64_t window_ps, double peak)
{
	double rate = (double)bucket->window_bytes / (double)window_ps;
	double weight = (double)window_ps / (double)(window_ps + BANDWIDTH_AVERAGE_PS);

	bucket->window_bytes = 0;
	bucket->measured_bytes_per_ps += weight * (rate - bucket->measured_bytes_per_ps);
	if (bucket->measured_bytes_per_ps < RATE_FADED * peak)
		bucket->measured_bytes_per_ps = 0;
	return bucket->measured_bytes_per_ps;
}

static unsigned running_vcpus(const struct bandwidth_published *published, unsigned vcpus)
{
	unsigned running = 0;

	for (unsigned i = 0; i < vcpus; i++)
		running += __atomic_load_n(&published[i].running, __ATOMIC_RELAXED);
	return running ? running : 1;
}

void bandwidth_measure(struct bandwidth *bandwidth, const struct timing_params *params,
		       struct bandwidth_published *published, unsigned vcpu, uint64_t now_ps)
{
	uint64_t window_ps = now_ps - bandwidth->measured_ps;
	unsigned running = running_vcpus(published, params->vcpus);

	bandwidth->measured_ps = now_ps;
	bandwidth->in_use = false;
	for (unsigned node = 0; node < params->nodes; node++) {
		double utilisation = 0;

		for (int d = 0; d < BANDWIDTH_DIRECTIONS; d++) {
			struct bandwidth_bucket *bucket = &bandwidth->bucket[node][d];
			double peak = node_peak(&params->node[node], d);
			double own = measure_bucket(bucket, window_ps, peak), others = 0;

			write_rate(&published[vcpu].bytes_per_ps[node][d], own);
			for (unsigned i = 0; i < params->vcpus; i++)
				if (i != vcpu)
					others += read_rate(&published[i].bytes_per_ps[node][d]);
			bucket->bytes_per_ps = peak - others;
			if (bucket->bytes_per_ps < peak / running)
				bucket->bytes_per_ps = peak / running;
			bandwidth->in_use |= own > 0;
			utilisation += (own + others) / peak;
		}
		bandwidth->latency_factor[node] = bandwidth_curve(&params->node[node], utilisation);
	}
}

void bandwidth_halt(struct bandwidth *bandwidth, struct bandwidth_published *published)
{
	__atomic_store_n(&published->running, 0, __ATOMIC_RELAXED);
	bandwidth->in_use = false;
	for (unsigned node = 0; node < TIMING_MAX_NODES; node++) {
		for (int d = 0; d < BANDWIDTH_DIRECTIONS; d++) {
			bandwidth->bucket[node][d].measured_bytes_per_ps = 0;
			bandwidth->bucket[node][d].window_bytes = 0;
			write_rate(&published->bytes_per_ps[node][d], 0);
		}
	}
}

void bandwidth_resume(struct bandwidth *bandwidth, struct bandwidth_published *published,
		      uint64_t now_ps)
{
	__atomic_store_n(&published->running, 1, __ATOMIC_RELAXED);
	bandwidth->measured_ps = now_ps;
}
