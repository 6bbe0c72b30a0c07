/* SPDX-License-Identifier: MIT */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

#define CACHE_EMPTY UINT32_MAX
#define CACHE_LOCKED (UINT32_MAX - 1)
/* Reads of a taken lock before its holder, which needs some 20 ns, must have lost its CPU. */
#define CACHE_SPINS 1000
#define LANES 4

typedef uint32_t lanes __attribute__((vector_size(LANES * sizeof(uint32_t)), may_alias));
typedef lanes lanes_unaligned __attribute__((aligned(sizeof(uint32_t))));

static const lanes cache_lane = { 0, 1, 2, 3 };

bool cache_init(struct cache *cache, uint32_t bytes, uint32_t ways, bool shared)
{
	size_t size;

	cache->shared = shared;
	cache->ways = ways;
	cache->sets = bytes / CACHE_LINE_BYTES / ways;
	cache->stride = (ways + LANES - 1) / LANES * LANES;
	cache->reciprocal = UINT64_MAX / cache->sets + 1;
	size = (size_t)cache->sets * cache->stride * sizeof(*cache->entry);
	cache->entry = aligned_alloc(64, (size + 63) & ~(size_t)63);
	if (!cache->entry)
		return false;
	memset(cache->entry, 0xff, size);
	return true;
}

void cache_free(struct cache *cache)
{
	free(cache->entry);
}

/* line % sets by two multiplications (Lemire, Kaser, Kurz 2019); exact for 32-bit operands. */
static uint32_t *cache_set_of(const struct cache *cache, uint32_t line)
{
	uint64_t fraction = cache->reciprocal * line;
	size_t set = (size_t)(((unsigned __int128)fraction * cache->sets) >> 64);

	return cache->entry + set * cache->stride;
}

void cache_prefetch_set(const struct cache *cache, uint64_t line)
{
	__builtin_prefetch(cache_set_of(cache, (uint32_t)line), 1);
}

/* Take a set; returns its first entry. */
static uint32_t cache_lock(uint32_t *set)
{
	uint32_t first;

	while ((first = __atomic_exchange_n(set, CACHE_LOCKED, __ATOMIC_ACQUIRE)) == CACHE_LOCKED)
		for (int i = 0; __atomic_load_n(set, __ATOMIC_RELAXED) == CACHE_LOCKED; i++)
			if (i > CACHE_SPINS)
				sched_yield();
	return first;
}

/*
 * The first vector of a set, which is taken if it is shared: word by word then, because the others
 * may try the first word meanwhile.
 */
static inline lanes cache_open(const struct cache *cache, uint32_t *set)
{
	if (!cache->shared)
		return *(const lanes *)set;
	return (lanes){ cache_lock(set), set[1], set[2], set[3] };
}

/* Replace the first vector, which releases the set. */
static inline void cache_close(const struct cache *cache, uint32_t *set, lanes first)
{
	if (!cache->shared) {
		*(lanes *)set = first;
		return;
	}
	for (int way = 1; way < LANES; way++)
		set[way] = first[way];
	__atomic_store_n(set, first[0], __ATOMIC_RELEASE);
}

/* The way that holds the line, plus one; 0 when none does. */
static inline uint32_t cache_find(const uint32_t *set, uint32_t stride, lanes first, uint32_t line)
{
	lanes place = cache_lane + 1, found = (lanes)(first >> 1 == line) & place;

	for (uint32_t way = LANES; way < stride; way += LANES) {
		place += LANES;
		found |= (lanes)(*(const lanes *)(set + way) >> 1 == line) & place;
	}
	return found[0] | found[1] | found[2] | found[3];
}

/*
 * Ways 0 to last - 1 of a set move one back, over the one at last, and an entry becomes the first.
 * Takes and returns the first vector, which is not stored.
 */
static inline lanes cache_move_to_front(uint32_t *set, lanes first, uint32_t last, uint32_t entry)
{
	lanes moved = (lanes)(cache_lane <= last);
	lanes shifted = { entry, first[0], first[1], first[2] };

	for (uint32_t way = last / LANES * LANES; way; way -= LANES) {
		lanes there = *(const lanes *)(set + way), over = (lanes)(cache_lane + way <= last);
		lanes before = { first[3], there[0], there[1], there[2] };

		if (way > LANES)
			before = *(const lanes_unaligned *)(set + way - 1);
		*(lanes *)(set + way) = (before & over) | (there & ~over);
	}
	return (shifted & moved) | (first & ~moved);
}

enum cache_result cache_access(struct cache *cache, uint64_t line, bool store, uint64_t *victim)
{
	uint32_t *set = cache_set_of(cache, (uint32_t)line);
	lanes first = cache_open(cache, set);
	uint32_t place = cache_find(set, cache->stride, first, (uint32_t)line);
	uint32_t last = place ? place - 1 : cache->ways - 1;
	uint32_t old = last ? set[last] : first[0];
	bool dirty = old & 1;

	first = cache_move_to_front(set, first, last,
				    (uint32_t)line << 1 | store | (place && dirty));
	cache_close(cache, set, first);
	if (place)
		return CACHE_HIT;
	if (!dirty || old == CACHE_EMPTY)
		return CACHE_MISS;
	*victim = old >> 1;
	return CACHE_MISS_DIRTY_VICTIM;
}
