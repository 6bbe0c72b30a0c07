#include <stdlib.h>
#include <string.h>

#include "cache.h"

#define CACHE_EMPTY UINT32_MAX

bool cache_init(struct cache *cache, uint32_t bytes, uint32_t ways)
{
	cache->ways = ways;
	cache->sets = bytes / CACHE_LINE_BYTES / ways;
	cache->stride = (ways + 3) & ~3u;
	cache->reciprocal = UINT64_MAX / cache->sets + 1;

	size_t size = (size_t)cache->sets * cache->stride * sizeof(*cache->entry);
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
static uint32_t cache_set_of(const struct cache *cache, uint32_t line)
{
	uint64_t fraction = cache->reciprocal * line;

	return (uint32_t)(((unsigned __int128)fraction * cache->sets) >> 64);
}

enum cache_result cache_access(struct cache *cache, uint64_t line, bool store, uint64_t *victim)
{
	uint32_t *set = cache->entry + (size_t)cache_set_of(cache, (uint32_t)line) * cache->stride;
	uint32_t wanted = (uint32_t)line << 1;
	uint32_t carried = wanted | store;

	/* One pass searches and shifts: each entry moves one place back until the line is found. */
	for (uint32_t way = 0; way < cache->ways; way++) {
		uint32_t entry = __atomic_load_n(&set[way], __ATOMIC_RELAXED);

		__atomic_store_n(&set[way], carried, __ATOMIC_RELAXED);
		if ((entry & ~1u) == wanted) {
			if (entry & 1)
				__atomic_store_n(&set[0], wanted | 1, __ATOMIC_RELAXED);
			return CACHE_HIT;
		}
		carried = entry;
	}
	if (carried == CACHE_EMPTY || !(carried & 1))
		return CACHE_MISS;
	*victim = carried >> 1;
	return CACHE_MISS_DIRTY_VICTIM;
}
