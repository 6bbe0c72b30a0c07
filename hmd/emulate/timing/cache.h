/* SPDX-License-Identifier: MIT */
/*
 * A last-level cache: shared by the vCPUs that use it, set-associative by physical line, true LRU,
 * write-allocate, write-back.
 *
 * A set is an array of lines, most recent first. Search and shift are vectors without branches,
 * since neither the way nor hit or miss can be predicted.
 *
 * A set's first entry is also its lock: a vCPU takes it by exchanging it for CACHE_LOCKED, which is
 * no line's entry, and releases the set by storing the entry that is first from then on. Only the
 * holder reads or writes the other entries, and exchange (acquire) and store (release) order its
 * accesses before those of the next holder. So the accesses to a set are serial, and each of them
 * adds at most one line, the one that the set lacked, and drops at most one, which it reports: no
 * line is lost, doubled or made. No vCPU holds two sets, so that none waits for another in a circle.
 * The lock takes no memory and no second cache line of the host. A cache that one vCPU uses alone
 * needs none.
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
/* Lines are kept in 31 bits, the last 64 for other marks: addresses end below 128 GiB. */
#define CACHE_PHYS_LIMIT ((1ull << (31 + CACHE_LINE_SHIFT)) - 4096)

struct cache {
	uint32_t *entry; /* sets * stride; line << 1 | dirty, CACHE_EMPTY or CACHE_LOCKED */
	uint32_t sets, ways;
	uint32_t stride;     /* entries from one set to the next, a multiple of a vector */
	uint64_t reciprocal; /* 2^64 / sets, rounded up: modulo without a division */
	bool shared;         /* several vCPUs use it */
};

enum cache_result { CACHE_HIT, CACHE_MISS, CACHE_MISS_DIRTY_VICTIM };

bool cache_init(struct cache *cache, uint32_t bytes, uint32_t ways, bool shared);
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
