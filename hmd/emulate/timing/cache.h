/*
 * A last-level cache: shared by the vCPUs that use it, set-associative by physical line, true LRU,
 * write-allocate, write-back.
 *
 * A set is an array of lines, most recent first. Search and shift are vectors without branches,
 * since neither the way nor hit or miss can be predicted. vCPUs use it without locks: two that
 * change one set in the same nanoseconds may lose or duplicate one of its lines: negligible among
 * millions (each 32-bit entry is written atomically), while a lock costs 20 cycles per access.
 */
#ifndef HMD_TIMING_CACHE_H
#define HMD_TIMING_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define CACHE_LINE_SHIFT 6
#define CACHE_LINE_BYTES (1u << CACHE_LINE_SHIFT)
#define CACHE_MAX_WAYS 64
/* Lines are kept in 31 bits, the last of them for CACHE_EMPTY: addresses end below 128 GiB. */
#define CACHE_PHYS_LIMIT ((1ull << (31 + CACHE_LINE_SHIFT)) - 4096)

struct cache {
	uint32_t *entry;        /* sets * stride; line << 1 | dirty, or CACHE_EMPTY */
	uint32_t sets, ways;
	uint32_t stride;        /* entries from one set to the next, a multiple of a vector */
	uint64_t reciprocal;    /* 2^64 / sets, rounded up: modulo without a division */
};

enum cache_result { CACHE_HIT, CACHE_MISS, CACHE_MISS_DIRTY_VICTIM };

bool cache_init(struct cache *cache, uint32_t bytes, uint32_t ways);
void cache_free(struct cache *cache);

/* Prefetch a line's set into the host's cache while the prefetcher model is trained. */
void cache_prefetch_set(const struct cache *cache, uint64_t line);

/*
 * Look up a line and make it the most recent; on a miss it replaces the least recent, which
 * comes back in *victim when it has to be written to memory.
 */
enum cache_result cache_access(struct cache *cache, uint64_t line, bool store, uint64_t *victim);

#pragma GCC visibility pop

#endif
