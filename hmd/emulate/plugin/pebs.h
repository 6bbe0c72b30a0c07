/* SPDX-License-Identifier: MIT */
/*
 * Emulated PEBS: one vCPU's load and store counters, and its ring of perf records.
 *
 * Records and ring are those of perf_event_open(2): PERF_RECORD_SAMPLE with IP, TID, TIME, ADDR,
 * CPU, PERIOD, READ, WEIGHT, DATA_SRC and PHYS_ADDR, so that the reader of real PMU rings reads
 * these too. Differences, because the PMU lacks the kernel's information:
 *   pid       the address space (cr3 >> 12); tid is 0
 *   time      the vCPU's modelled clock, nanoseconds
 *   read      instructions that the vCPU has executed, kernel's included
 *   weight    latency in modelled nanoseconds; a real PMU has cycles
 */
#ifndef HMD_PLUGIN_PEBS_H
#define HMD_PLUGIN_PEBS_H

#include <stdbool.h>
#include <stdint.h>

/* The fields of struct perf_event_mmap_page that a ring's reader uses, at the kernel's offsets. */
struct perf_ring_page {
	uint32_t version, compat_version;
	uint8_t unused[1016];
	uint64_t data_head;   /* written by the producer; never wraps */
	uint64_t data_tail;   /* written by the reader */
	uint64_t data_offset; /* from this page */
	uint64_t data_size;
};

enum pebs_event { PEBS_LOAD, PEBS_STORE };

/* What the PMU says of where the data was: of stores, only whether the first level had it. */
enum pebs_source { PEBS_MEMORY, PEBS_FILL_BUFFER, PEBS_L1_HIT, PEBS_L1_MISS };

struct pebs_sample {
	uint64_t ip, time_ns, address, period, instructions, latency_ns, physical;
	uint32_t address_space, cpu;
	enum pebs_event event;
	enum pebs_source source; /* fill buffer: a prefetch that the load had to wait for */
};

/* A writer. It indexes memory by its own copies, never by words that the guest can overwrite. */
struct pebs_ring {
	struct perf_ring_page *page;
	uint64_t head, data_bytes;
	uint64_t lost; /* since the last record that fitted */
};

/* Make a page an empty ring of data_bytes (a power of two) that follow it, and its writer. */
void pebs_ring_init(struct pebs_ring *ring, struct perf_ring_page *page, uint64_t data_bytes);

/* Write a sample, after a PERF_RECORD_LOST if earlier ones did not fit; false without room. */
bool pebs_write(struct pebs_ring *ring, const struct pebs_sample *sample);

/* Count an event; true when it is the period-th. A shorter period takes effect at once. */
static inline bool pebs_overflow(uint64_t *count, uint64_t period)
{
	if (!period || ++*count < period)
		return false;
	*count = 0;
	return true;
}

#endif
