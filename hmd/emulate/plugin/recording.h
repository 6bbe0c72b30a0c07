/*
 * Recording of one vCPU's misses (struct timing_miss) into a file of the launcher.
 *
 * While the header's `recorded_vcpu` names a vCPU, its misses are appended as struct recorded_miss
 * in place: the sparse file is mapped whole, and `recorded` in the header counts the records.
 * When the file is full, `recorded` still counts, so that a reader sees that some are missing.
 * hmd/emulate/miss_stream.py reads it.
 */
#ifndef HMD_PLUGIN_RECORDING_H
#define HMD_PLUGIN_RECORDING_H

#include <stdint.h>

#include "shared.h"
#include "timing.h"

struct recorded_miss {
	uint64_t instructions;
	uint64_t vaddr;
	uint32_t line;        /* physical address / 64 */
	uint32_t paid_hits;
	uint32_t near_hits;
	uint16_t depends;
	uint8_t flags;
	uint8_t pad;
};

_Static_assert(sizeof(struct recorded_miss) == 32, "layout");

struct recording {
	struct shared_header *header;
	struct recorded_miss *miss; /* NULL: no file was given */
	uint64_t capacity;
};

/* Map the file; 0, or -1 with one line in *why. */
int recording_open(struct recording *recording, const char *path, struct shared_header *header,
		   const char **why);

/* A timing_observer; its context is the struct recording. */
void recording_observe(void *context, unsigned vcpu, const struct timing_miss *miss);

#endif
