/* SPDX-License-Identifier: MIT */
/*
 * ARM's Statistical Profiling Extension, for hmd.sample.spe: its events with their AUX area, and
 * a decoder of its packets (Arm Architecture Reference Manual, DDI 0487, "Statistical Profiling
 * Extension Sample Record Specification").
 *
 * The CPU writes records into the AUX area (linux/perf_event.h, "aux_head"); the kernel publishes
 * aux_head when half of the area is full or the event stops, and says in a PERF_RECORD_AUX of the
 * event's ring what was lost. The decoder trusts no size that it reads.
 */
#ifndef HMD_SPE_H
#define HMD_SPE_H

#include <stddef.h>
#include <stdint.h>

#include "ring.h"

/* A moment by the counter of which timestamps are, and by CLOCK_MONOTONIC. */
struct hmd_spe_clock {
	uint64_t counter, monotonic_ns;
	uint64_t frequency_hz; /* of the counter; 0: timestamps are not converted, times are 0 */
};

struct hmd_spe_source {
	void *header;        /* struct perf_event_mmap_page: aux_head, aux_tail */
	const uint8_t *area; /* the AUX area */
	uint64_t area_bytes; /* power of two, fixed at open: the header's value is not trusted */
	struct hmd_spe_clock clock;
	double ns_per_cycle;
	uint32_t interval;    /* operations between two samples: the period of each row */
	uint32_t min_latency; /* loads that took fewer cycles are counted as cached */
	uint16_t cpu;
	uint8_t misses;     /* loads that missed no cache are counted as cached */
	uint8_t kernel_too; /* accesses to the kernel's own addresses become rows */
};

/* What PERF_RECORD_AUX and other records of an event's ring say. */
struct hmd_spe_notices {
	uint64_t truncated; /* the area was full: the kernel stopped the event */
	uint64_t gaps;      /* records have gaps, or operations to sample collided */
	uint64_t lost;      /* records of the ring that the kernel could not write */
};

/*
 * Opens the event disabled and close-on-exec, for all processes of a CPU, in kernel mode too or
 * without: a descriptor or -errno.
 */
int hmd_spe_open(uint32_t type, uint64_t config, uint64_t config1, uint64_t config2,
		 uint64_t interval, uint32_t watermark, int exclude_kernel, int cpu);

/* Maps an AUX area of `bytes` (a power of two) after a ring of `ring_bytes`: 0 or -errno. */
int hmd_spe_map(int fd, void *header, uint64_t ring_bytes, uint64_t bytes, void **area);
int hmd_spe_unmap(void *area, uint64_t bytes);

/* Reads the generic timer's virtual counter. Returns 0, or -ENOSYS on other architectures. */
int hmd_spe_read_clock(struct hmd_spe_clock *clock);

/*
 * Decodes the records of the AUX area into the columns and frees their room. A row's `thread` is
 * the id in its context packet (CONTEXTIDR), 0 without one; `latency` is in ns. Returns 1 if there
 * were more than the columns have room for, else 0.
 */
int hmd_spe_drain(const struct hmd_spe_source *source, struct hmd_ring_columns *columns,
		  struct hmd_ring_counts *counts);

/* Adds up the records of an event's ring and frees their room. */
void hmd_spe_read_notices(const struct hmd_ring_source *ring, struct hmd_spe_notices *notices);

/* A switch to a thread. */
struct hmd_spe_switch {
	uint64_t time_ns;
	uint32_t pid, thread;
};

/* Moves the switches of such an event's ring into `found`, oldest first; returns their number. */
size_t hmd_spe_read_switches(const struct hmd_ring_source *ring, struct hmd_spe_switch *found,
			     size_t capacity);

#endif
