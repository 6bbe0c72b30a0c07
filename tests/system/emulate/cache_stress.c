/* SPDX-License-Identifier: MIT */
/*
 * Threads that access one last-level cache of the timing model at once, and what must hold then.
 *
 *   cache_stress THREADS ACCESSES STORES    STORES in 100 accesses are stores
 *
 * Compiled together with timing/cache.c, usually with -fsanitize=thread. Each thread counts per
 * line what it did and what cache_access() returned. At the end, for each line of the universe:
 * as often as it was brought in, and not more often, it is there or has left. A line that leaves
 * clean is not reported, so the count is exact where all accesses are stores, and a bound otherwise.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache.h"

#define WAYS 16
#define SETS 8
#define LINES 512 /* of the universe: four times the cache */
#define MAX_THREADS 16

struct worker {
	pthread_t thread;
	struct cache *cache;
	uint64_t state, accesses, stores, hits, misses;
	uint64_t brought_in[LINES], stored[LINES], written_back[LINES];
	uint64_t strange;
};

static uint64_t next_random(uint64_t *state) /* xorshift64: Marsaglia 2003 */
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *work(void *argument)
{
	struct worker *self = argument;

	for (uint64_t i = 0; i < self->accesses; i++) {
		uint64_t random = next_random(&self->state), line = random % LINES, victim = 0;
		bool store = (random >> 32) % 100 < self->stores;
		enum cache_result result = cache_access(self->cache, line, store, &victim);

		self->stored[line] += store;
		self->hits += result == CACHE_HIT;
		self->misses += result != CACHE_HIT;
		self->brought_in[line] += result != CACHE_HIT;
		if (result != CACHE_MISS_DIRTY_VICTIM)
			continue;
		if (victim >= LINES)
			self->strange++;
		else
			self->written_back[victim]++;
	}
	return NULL;
}

static int wrong(const char *what, uint64_t line)
{
	printf("WRONG: line %llu %s\n", (unsigned long long)line, what);
	return 1;
}

/* How often each line is in the cache, and whether dirty; returns the number of mistakes. */
static int count_present(const struct cache *cache, unsigned *present, unsigned *dirty)
{
	int mistakes = 0;

	for (uint32_t set = 0; set < cache->sets; set++) {
		for (uint32_t way = 0; way < cache->ways; way++) {
			uint32_t entry = cache->entry[set * cache->stride + way], line = entry >> 1;

			if (entry == UINT32_MAX)
				continue; /* never filled */
			if (line >= LINES || line % cache->sets != set) {
				mistakes += wrong("was never inserted into its set", line);
				continue;
			}
			present[line]++;
			dirty[line] += entry & 1;
		}
	}
	return mistakes;
}

static int check_line(const struct worker *sum, uint64_t line, unsigned present, unsigned dirty)
{
	bool always_dirty = sum->stores == 100;
	uint64_t left = sum->brought_in[line] - present;

	if (present > 1)
		return wrong("is there twice", line);
	if (sum->brought_in[line] < present)
		return wrong("was made", line);
	if (always_dirty && sum->written_back[line] != left)
		return wrong("did not leave as often as it came", line);
	if (sum->written_back[line] > left || sum->written_back[line] + dirty > sum->stored[line])
		return wrong("was written back too often", line);
	if (sum->stored[line] && !sum->written_back[line] && !dirty)
		return wrong("has lost a store", line);
	return 0;
}

static void add_up(struct worker *sum, const struct worker *one)
{
	sum->accesses += one->accesses;
	sum->hits += one->hits;
	sum->misses += one->misses;
	sum->strange += one->strange;
	for (int line = 0; line < LINES; line++) {
		sum->brought_in[line] += one->brought_in[line];
		sum->stored[line] += one->stored[line];
		sum->written_back[line] += one->written_back[line];
	}
}

int main(int argc, char **argv)
{
	static struct worker worker[MAX_THREADS], sum;
	static unsigned present[LINES], dirty[LINES];
	struct cache cache;
	int mistakes = 0, threads = argc == 4 ? atoi(argv[1]) : 0;

	if (threads < 1 || threads > MAX_THREADS ||
	    !cache_init(&cache, SETS * WAYS * CACHE_LINE_BYTES, WAYS, threads > 1))
		return 2;
	sum.stores = strtoull(argv[3], NULL, 10);
	for (int i = 0; i < threads; i++) {
		worker[i].cache = &cache;
		worker[i].state = 88172645463325252ull + (uint64_t)i;
		worker[i].accesses = strtoull(argv[2], NULL, 10);
		worker[i].stores = sum.stores;
		if (pthread_create(&worker[i].thread, NULL, work, &worker[i]))
			return 2;
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(worker[i].thread, NULL);
		add_up(&sum, &worker[i]);
	}
	mistakes += count_present(&cache, present, dirty);
	for (int line = 0; line < LINES; line++)
		mistakes += check_line(&sum, (uint64_t)line, present[line], dirty[line]);
	mistakes += sum.strange ? wrong("out of nowhere was written back", LINES) : 0;
	mistakes += sum.hits + sum.misses != sum.accesses;
	printf("%llu hits, %llu misses, %d mistakes\n", (unsigned long long)sum.hits,
	       (unsigned long long)sum.misses, mistakes);
	cache_free(&cache);
	return mistakes > 0;
}
