/* SPDX-License-Identifier: MIT */
/*
 * Recording of vCPUs' misses (struct timing_miss) into a file of the launcher.
 *
 * While the header's `recorded_vcpus` has a vCPU's bit, its misses are appended as struct
 * recorded_miss in place: the sparse file is mapped whole, and `recorded` in the header counts the
 * records. With each wake-up of one of them, the others that run get a record too (TIMING_MARK):
 * what they had executed by then; its `depends` is the one woken. Their order in the file is that
 * of the host's time. What the programs of these vCPUs give back is recorded too (frees.h). When
 * the file is full, `recorded` still counts, so that a reader sees that some are missing.
 * hmd/emulate/recordings/misses.py reads it.
 */
#ifndef HMD_PLUGIN_RECORDING_H
#define HMD_PLUGIN_RECORDING_H

#include <stdbool.h>
#include <stdint.h>

#include "frees.h"
#include "shared.h"
#include "timing.h"

/* In the place of TIMING_HALT, as TIMING_WAKE and TIMING_MARK are: no access, pages are free. */
#define RECORDING_FREE (TIMING_HALT | 3)

struct recorded_miss {
	uint64_t instructions;
	uint64_t vaddr;
	uint32_t line; /* physical address / 64 */
	uint32_t paid_hits;
	uint32_t near_hits;
	uint16_t depends;
	uint8_t flags;
	uint8_t cpu;
};

_Static_assert(sizeof(struct recorded_miss) == 32, "layout");

struct recording {
	struct shared_header *header;
	const struct timing *timing;
	struct recorded_miss *miss; /* NULL: no file was given */
	uint64_t capacity;
	unsigned vcpus; /* the guest can write the header's number of them */
};

/* Map the file; 0, or -1 with one line in *why. */
int recording_open(struct recording *recording, const char *path, struct shared_header *header,
		   const struct timing *timing, unsigned vcpus, const char **why);

/* Whether a vCPU is recorded now. */
bool recording_wants(const struct recording *recording, unsigned vcpu);

/* Append memory that a program gives back. */
void recording_free(struct recording *recording, unsigned vcpu, uint64_t instructions,
		    const struct freed_range *range);

/* A timing_observer; its context is the struct recording. */
void recording_observe(void *context, unsigned vcpu, const struct timing_miss *miss);

#endif
