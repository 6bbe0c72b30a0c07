/* SPDX-License-Identifier: MIT */
/*
 * hotset: random 8-byte updates, most of them to a hot set that moves half-way (GUPS with a hot
 * set, as in HeMem, SOSP'21, section 5.1), by a program that checks its own memory.
 *
 *   hotset --footprint BYTES --hot BYTES [--block BYTES] [--share PERCENT] [--seconds S]
 *          [--interval MS] [--seed N] [--wait]
 *
 * The hot set is a random selection of blocks, so that first touch places neither all nor none of
 * it in fast memory; after half of --seconds it is another selection, disjoint if the footprint
 * allows. `share` percent of the updates go to the hot set, the rest to all memory.
 * Memory begins at a multiple of 2 MiB, as do blocks of that size.
 *
 * Each 64-bit word holds a 40-bit tag, a function of its index, and a 24-bit count of its updates.
 * Tags are checked after each update and, for every word, at the end, where the counts must add up
 * to the number of updates. A page that a move loses, swaps with another or restores from an old
 * copy shows as a wrong word.
 *
 * Output: one JSON line per interval {"t_s","phase","updates","modelled_ps"}, per phase and at the
 * end {"updates","wrong_words","integrity_ok"}. t_s is CLOCK_MONOTONIC; modelled_ps is the modelled
 * clock of its vCPU in the emulated machine, 0 elsewhere. With --wait it prints {"ready": true}
 * once its memory is filled, and starts at a line on standard input. The exit status is 1 if a word
 * is wrong.
 */
#define _GNU_SOURCE /* sched_getcpu */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "modelled_clock.h"

#define BATCH 256 /* updates between two checks: their words still lie in the first-level cache */
#define ALIGNMENT (2 << 20)
#define COUNT_BITS 24
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

struct settings {
	uint64_t footprint, hot, block, seed;
	unsigned share_percent, interval_ms;
	double seconds;
	bool wait;
};

struct random_state { uint64_t s; };

static inline uint64_t next_random(struct random_state *r) /* xorshift64*, Vigna 2016 */
{
	r->s ^= r->s >> 12;
	r->s ^= r->s << 25;
	r->s ^= r->s >> 27;
	return r->s * UINT64_C(2685821657736338717);
}

static inline uint64_t tag_of(uint64_t index) /* splitmix64's finaliser, count bits cleared */
{
	uint64_t z = index + UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (z ^ (z >> 31)) & ~COUNT_MASK;
}

/* Index below `bound` (below 2^32) from 32 random bits, without a division. */
static inline uint64_t below(uint64_t bits, uint64_t bound)
{
	return ((bits & UINT32_MAX) * bound) >> 32;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct hot_set {
	uint32_t *order;  /* all blocks, shuffled; the hot ones are order[first .. first + blocks) */
	uint64_t blocks, all_blocks, first;
};

static void shuffle(struct hot_set *set, struct random_state *r)
{
	for (uint64_t i = 0; i < set->all_blocks; i++)
		set->order[i] = (uint32_t)i;
	for (uint64_t i = set->all_blocks - 1; i > 0; i--) {
		uint64_t j = below(next_random(r) >> 32, i + 1);
		uint32_t swapped = set->order[i];

		set->order[i] = set->order[j];
		set->order[j] = swapped;
	}
}

static uint64_t check_all(const uint64_t *words, uint64_t count, uint64_t updates)
{
	uint64_t wrong = 0, sum = 0;

	for (uint64_t i = 0; i < count; i++) {
		wrong += (words[i] & ~COUNT_MASK) != tag_of(i);
		sum += words[i] & COUNT_MASK;
	}
	return wrong + (sum != updates);
}

/* One batch; returns how many of its words were wrong after it. */
static uint64_t update_batch(uint64_t *words, uint64_t count, const struct hot_set *set,
			     uint64_t block_words, uint64_t share_bits, struct random_state *r)
{
	uint64_t index[BATCH], wrong = 0;

	for (int i = 0; i < BATCH; i++) {
		uint64_t bits = next_random(r), where = next_random(r);

		if ((bits & UINT32_MAX) < share_bits) {
			uint64_t block = set->order[set->first + below(bits >> 32, set->blocks)];

			index[i] = block * block_words + below(where >> 32, block_words);
		} else {
			index[i] = below(where >> 32, count);
		}
	}
	for (int i = 0; i < BATCH; i++)
		words[index[i]]++;
	for (int i = 0; i < BATCH; i++)
		wrong += (words[index[i]] & ~COUNT_MASK) != tag_of(index[i]);
	return wrong;
}

static uint64_t parse_bytes(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	switch (*end) {
	case 'G': value <<= 10; /* fall through */
	case 'M': value <<= 10; /* fall through */
	case 'K': value <<= 10; end++; break;
	default: break;
	}
	if (*end != '\0' || value == 0) {
		fprintf(stderr, "hotset: not a size: %s\n", text);
		exit(2);
	}
	return value;
}

static struct settings parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "footprint", required_argument, NULL, 'f' }, { "hot", required_argument, NULL, 'h' },
		{ "block", required_argument, NULL, 'b' }, { "share", required_argument, NULL, 's' },
		{ "seconds", required_argument, NULL, 't' }, { "interval", required_argument, NULL, 'i' },
		{ "seed", required_argument, NULL, 'r' }, { "wait", no_argument, NULL, 'w' },
		{ NULL, 0, NULL, 0 },
	};
	struct settings s = { .footprint = 128 << 20, .hot = 48 << 20, .block = 2 << 20, .seed = 1,
			      .share_percent = 90, .interval_ms = 500, .seconds = 20 };
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'f': s.footprint = parse_bytes(optarg); break;
		case 'h': s.hot = parse_bytes(optarg); break;
		case 'b': s.block = parse_bytes(optarg); break;
		case 's': s.share_percent = (unsigned)atoi(optarg); break;
		case 't': s.seconds = atof(optarg); break;
		case 'i': s.interval_ms = (unsigned)atoi(optarg); break;
		case 'r': s.seed = strtoull(optarg, NULL, 0); break;
		case 'w': s.wait = true; break;
		default: exit(2);
		}
	}
	if (s.block < 4096 || s.hot < s.block || s.footprint < s.hot || s.share_percent > 100) {
		fprintf(stderr, "hotset: needs 4096 <= block <= hot <= footprint and share <= 100\n");
		exit(2);
	}
	return s;
}

/* Anonymous memory of 4 KiB pages from a multiple of 2 MiB on; NULL where there is none. */
static void *memory_of(uint64_t bytes)
{
	char *start = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		return NULL;
	start += -(uintptr_t)start % ALIGNMENT;
	madvise(start, bytes, MADV_NOHUGEPAGE);
	return start;
}

static void report(double start, int phase, uint64_t updates)
{
	printf("{\"t_s\": %.6f, \"phase\": %d, \"updates\": %" PRIu64 ", \"modelled_ps\": %" PRIu64 "}\n",
	       now_s() - start, phase, updates, modelled_clock_ps());
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const struct settings s = parse(argc, argv);
	const uint64_t block_words = s.block / sizeof(uint64_t);
	const uint64_t all_blocks = s.footprint / s.block;
	const uint64_t count = all_blocks * block_words;
	struct hot_set set = { .all_blocks = all_blocks, .blocks = s.hot / s.block };
	struct random_state r = { .s = s.seed * UINT64_C(0x9e3779b97f4a7c15) | 1 };
	const uint64_t share_bits = (uint64_t)s.share_percent * UINT32_MAX / 100;
	uint64_t updates = 0, wrong = 0;

	modelled_clock_open();
	set.order = malloc(all_blocks * sizeof(*set.order));
	uint64_t *words = memory_of(s.footprint);
	if (set.order == NULL || words == NULL) {
		fprintf(stderr, "hotset: no memory for %" PRIu64 " bytes\n", s.footprint);
		return 2;
	}
	shuffle(&set, &r);
	for (uint64_t i = 0; i < count; i++)
		words[i] = tag_of(i);

	if (s.wait) {
		printf("{\"ready\": true}\n");
		fflush(stdout);
		if (getchar() == EOF)
			return 2;
	}
	const double start = now_s();
	double next = 0;

	for (int phase = 1; phase <= 2; phase++) {
		if (phase == 2)
			set.first = 2 * set.blocks <= all_blocks ? set.blocks : all_blocks - set.blocks;
		printf("{\"phase_starts\": %d}\n", phase);
		for (;;) {
			const double t = now_s() - start;

			if (t >= next) {
				report(start, phase, updates);
				next = t + 1e-3 * s.interval_ms;
			}
			if (t >= s.seconds * phase / 2)
				break;
			for (int i = 0; i < 8; i++) {
				wrong += update_batch(words, count, &set, block_words, share_bits, &r);
				updates += BATCH;
			}
		}
		report(start, phase, updates);
	}
	wrong += check_all(words, count, updates);
	printf("{\"updates\": %" PRIu64 ", \"wrong_words\": %" PRIu64 ", \"integrity_ok\": %s}\n",
	       updates, wrong, wrong == 0 ? "true" : "false");
	return wrong == 0 ? 0 : 1;
}
