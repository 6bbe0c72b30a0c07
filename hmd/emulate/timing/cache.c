#include <stdlib.h>
#include <string.h>

#include "cache.h"

#define CACHE_EMPTY UINT32_MAX
#define LANES 4

typedef uint32_t lanes __attribute__((vector_size(LANES * sizeof(uint32_t)), may_alias));
typedef lanes lanes_unaligned __attribute__((aligned(sizeof(uint32_t))));

static const lanes cache_lane = {0, 1, 2, 3};

bool cache_init(struct cache *cache, uint32_t bytes, uint32_t ways)
{
	size_t size;

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

/* The way that holds the line, plus one; 0 when none does. */
static uint32_t cache_find(const uint32_t *set, uint32_t stride, uint32_t line)
{
	lanes found = {0}, place = cache_lane + 1;

	for (uint32_t way = 0; way < stride; way += LANES, place += LANES)
		found |= (lanes)(*(const lanes *)(set + way) >> 1 == line) & place;
	return found[0] | found[1] | found[2] | found[3];
}

/* Ways 0 to last - 1 move one back, over the one at last; the entry becomes the first. */
static void cache_move_to_front(uint32_t *set, uint32_t last, uint32_t entry)
{
	for (uint32_t way = last / LANES * LANES; way; way -= LANES) {
		lanes shifted = *(const lanes_unaligned *)(set + way - 1);
		lanes moved = (lanes)(cache_lane + way <= last);

		*(lanes *)(set + way) = (shifted & moved) | (*(const lanes *)(set + way) & ~moved);
	}

	lanes first = *(const lanes *)set, moved = (lanes)(cache_lane <= last);
	lanes shifted = {entry, first[0], first[1], first[2]};

	*(lanes *)set = (shifted & moved) | (first & ~moved);
}

enum cache_result cache_access(struct cache *cache, uint64_t line, bool store, uint64_t *victim)
{
	uint32_t *set = cache_set_of(cache, (uint32_t)line);
	uint32_t place = cache_find(set, cache->stride, (uint32_t)line);
	/* Two vCPUs may have doubled the line: the places are or-ed and may lie beyond the set. */
	uint32_t last = place && place <= cache->ways ? place - 1 : cache->ways - 1;
	uint32_t old = set[last];
	bool dirty = old & 1;

	cache_move_to_front(set, last, (uint32_t)line << 1 | store | (place && dirty));
	if (place)
		return CACHE_HIT;
	if (!dirty || old == CACHE_EMPTY)
		return CACHE_MISS;
	*victim = old >> 1;
	return CACHE_MISS_DIRTY_VICTIM;
}
